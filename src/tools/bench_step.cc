// `aerie bench step`: the training step without data behind it, and a Python peer beside it.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "aerie/base/env.h"
#include "aerie/base/log.h"
#include "aerie/base/parse.h"
#include "aerie/base/printable.h"
#include "aerie/base/signals.h"
#include "aerie/base/strings.h"
#include "aerie/base/system.h"
#include "aerie/base/temp_dir.h"
#include "aerie/config/schema/value_parsers.h"
#include "aerie/config/yaml.h"
#include "aerie/device/gpu.h"
#include "aerie/models/nest/config/run_config.h"
#include "aerie/models/nest/config/run_config_loader.h"
#include "aerie/models/nest/run/nest_measure.h"
#include "bench_command.h"
#include "bench_plan.h"
#include "bench_reference.h"
#include "bench_world.h"
#include "json_output.h"
#include "peer_process.h"
#include "version.h"

namespace aerie::tools {

namespace {

using nlohmann::ordered_json;

void print_bench_step_help() {
  std::printf(
      "usage: aerie bench step [CONFIG] [OPTIONS] [OVERRIDES]\n\n"
      "Times one training step (features to optimizer) on made-up clips whose lengths are spread\n"
      "from 0.8 to 1.0 of --seconds: median over the steps, and the phases it consists of.\n"
      "Without a configuration the model is NEST-L (d 512, 17 layers).\n\n"
      "  --batch N,M,...     clips a batch; several are measured one after another (default 16, "
      "or\n"
      "                      the config's batch_size)\n"
      "  --seconds S         of the longest clip (default 15)\n"
      "  --precision P       32, 16-mixed or bf16-mixed (default: the config's, else 32)\n"
      "  --engine E          auto, fast or reference\n"
      "  --steps N           measured steps (default 12) after --warmup N (default 4)\n"
      "  --d-model N, --layers N, --heads N   of the built-in model\n"
      "  --wait              wait for the results of each step; otherwise an engine that can work\n"
      "                      ahead does so, as in training\n"
      "  --peer TREE         then run the same step in Python: a folder with NeMo (`nemo/` "
      "inside)\n"
      "                      or with a bench_step.py of its own\n"
      "  --table             the cases of the published table, 50 steps each: NEST-L, XL and S, "
      "long\n"
      "                      and short batches, all precisions, float32 with TF32 too; needs a "
      "GPU; "
      "every\n"
      "                      case must run on the fast engine\n"
      "  --reference-table   one row for everything that the fast engine does not cover (or with "
      "a\n"
      "                      configuration: for that and each of them), all peers in one process;\n"
      "                      --rows TEXT,... takes the rows whose names contain one of these\n"
      "  --world N,M,...     on so many ranks of this machine, one case: all-reduces, the step "
      "with\n"
      "                      and without them, what keys of trainer.strategy change, and what "
      "`aerie\n"
      "                      plan` predicts; --threads N a rank, --no-keys for the configured keys "
      "alone\n"
      "  --plan              print what a step chooses (overlap, recomputation, attention's "
      "backward,\n"
      "                      the kernel of every GEMM) and measure nothing; needs no GPU\n"
      "  --device-model NAME of --plan: h200, h100, a100, ... (default: this machine's GPU, else "
      "h200)\n"
      "  --python EXE        for the peer (default python3)\n"
      "  --json              machine-readable output\n"
      "%s\n"
      "example: aerie bench step --batch 16,64 --precision bf16-mixed\n"
      "         aerie bench step --plan --device-model h200 --precision bf16-mixed\n",
      std::string(config::config_options_help()).c_str());
}

// What is measured beside the rest of a request.
struct Case {
  std::string name;  // of a row; empty: the batch says it
  int64_t batch = 16;
  double seconds = 15.0;
  config::Precision precision = config::Precision::k32;
  int64_t d_model = 0, layers = 0, heads = 0;  // 0: the request's
  bool tf32 = false;                           // everywhere; otherwise where the request says
};

struct Request {
  config::RunConfig run;
  std::string model_yaml;  // of a configuration; empty: the built-in model
  std::vector<Case> cases;
  bool table = false;
  train::NestMeasureOptions measure;
  PeerRequest peer;  // tree empty: none
  bool json = false;
};

Result<int64_t> integer_option(const config::ConfigArgs& parsed, const char* name, int64_t fallback,
                               int64_t low, int64_t high) {
  const auto found = parsed.extra.find(name);
  if (found == parsed.extra.end()) return fallback;
  auto value = parse_int64(found->second, low, high);
  if (!value.ok()) return invalid_argument(value.status().message()).with_context(name);
  return *value;
}

std::string text_option(const config::ConfigArgs& parsed, const char* name) {
  const auto found = parsed.extra.find(name);
  return found == parsed.extra.end() ? std::string() : found->second;
}

void set_sizes(config::RunConfig& run, int64_t d_model, int64_t layers, int64_t heads) {
  run.model.encoder.d_model = d_model;
  run.model.encoder.n_layers = layers;
  run.model.encoder.n_heads = heads;
  run.model.decoder.feat_in = d_model;
  run.model.optim.sched->d_model = d_model;
}

Status read_model(const config::ConfigArgs& parsed, Request& out) {
  const bool has_config = !parsed.config_name.empty() || !parsed.files.empty();
  const bool has_sizes = parsed.extra.contains("--d-model") || parsed.extra.contains("--layers") ||
                         parsed.extra.contains("--heads");
  if (has_config) {
    if (has_sizes)
      return invalid_argument("--d-model, --layers and --heads are for the built-in model")
          .with_hint("with a configuration use model.encoder.d_model=...");
    AERIE_ASSIGN_OR_RETURN(config::LoadedConfig loaded, config::load_run_config(parsed));
    out.json = parsed.extra.contains("--json");
    if (!out.json)
      for (const config::Finding& warning : loaded.findings.warnings())
        log_warn("config", warning.to_string());
    out.run = std::move(loaded.run);
    if (const config::Value* model = loaded.resolved.find("model")) {
      AERIE_ASSIGN_OR_RETURN(out.model_yaml, config::emit_yaml(*model));
    }
    return ok_status();
  }
  if (!parsed.overrides.empty())
    return invalid_argument("overrides need a configuration")
        .with_hint("add --config-path and --config-name, or use --d-model, --layers, --heads");
  out.run = train::nest_l_config();
  config::EncoderConfig& encoder = out.run.model.encoder;
  AERIE_ASSIGN_OR_RETURN(encoder.d_model, integer_option(parsed, "--d-model", 512, 8, 65536));
  AERIE_ASSIGN_OR_RETURN(encoder.n_layers, integer_option(parsed, "--layers", 17, 1, 1024));
  AERIE_ASSIGN_OR_RETURN(encoder.n_heads, integer_option(parsed, "--heads", 8, 1, 1024));
  if (encoder.d_model % encoder.n_heads != 0)
    return invalid_argument(
        str_cat("--d-model ", encoder.d_model, " is not a multiple of --heads ", encoder.n_heads));
  set_sizes(out.run, encoder.d_model, encoder.n_layers, encoder.n_heads);
  return ok_status();
}

std::vector<Case> table_cases() {
  using config::Precision;
  return {{"NEST-L 2 x 15 s", 2, 15.0, Precision::kBf16Mixed, 512, 17, 8},
          {"NEST-L 16 x 15 s", 16, 15.0, Precision::kBf16Mixed, 512, 17, 8},
          {"NEST-L 16 x 15 s", 16, 15.0, Precision::k16Mixed, 512, 17, 8},
          {"NEST-L 16 x 15 s", 16, 15.0, Precision::k32, 512, 17, 8},
          {"NEST-L 16 x 15 s", 16, 15.0, Precision::k32, 512, 17, 8, /*tf32=*/true},
          {"NEST-L 64 x 15 s", 64, 15.0, Precision::kBf16Mixed, 512, 17, 8},
          {"NEST-L 68 x 30 s", 68, 30.0, Precision::kBf16Mixed, 512, 17, 8},
          {"NEST-XL 16 x 15 s", 16, 15.0, Precision::kBf16Mixed, 1024, 24, 8},
          {"NEST-S 16 x 15 s", 16, 15.0, Precision::kBf16Mixed, 176, 16, 4},
          {"NEST-S 32 x 15 s", 32, 15.0, Precision::kBf16Mixed, 176, 16, 4}};
}

Result<Request> read_request(const config::ConfigArgs& parsed) {
  Request out;
  AERIE_RETURN_IF_ERROR(read_model(parsed, out));
  out.json = parsed.extra.contains("--json");
  const bool has_config = !out.model_yaml.empty();
  std::vector<int64_t> batches{has_config ? out.run.model.train_ds.batch_size.value_or(16) : 16};
  if (const std::string list = text_option(parsed, "--batch"); !list.empty()) {
    batches.clear();
    for (const std::string& one : split(list, ',')) {
      auto value = parse_int64(one, 1, 65536);
      if (!value.ok()) return invalid_argument(value.status().message()).with_context("--batch");
      batches.push_back(*value);
    }
  }
  if (const std::string text = text_option(parsed, "--seconds"); !text.empty()) {
    auto value = parse_double(text);
    if (!value.ok()) return invalid_argument(value.status().message()).with_context("--seconds");
    out.measure.seconds = *value;
  }
  if (const std::string text = text_option(parsed, "--precision"); !text.empty()) {
    auto value = config::parse_precision(config::Value(text));
    if (!value.ok()) return invalid_argument(value.status().message()).with_context("--precision");
    out.run.trainer.precision = *value;
  }
  if (const std::string text = text_option(parsed, "--engine"); !text.empty()) {
    if (text == "auto")
      out.run.aerie.engine = config::Engine::kAuto;
    else if (text == "fast")
      out.run.aerie.engine = config::Engine::kFast;
    else if (text == "reference")
      out.run.aerie.engine = config::Engine::kReference;
    else
      return invalid_argument("--engine must be auto, fast or reference");
  }
  out.table = parsed.extra.contains("--table");
  const bool plan = parsed.extra.contains("--plan");
  if (!plan && parsed.extra.contains("--device-model"))
    return invalid_argument("--device-model is for --plan");
  if (out.table) {
    if (!plan && device::driver().gpus.empty())
      return unsupported("--table takes hours without a GPU, and there is none")
          .with_hint("measure single cases with --batch, --seconds and --precision");
    for (const char* name :
         {"--batch", "--seconds", "--precision", "--d-model", "--layers", "--heads"})
      if (has_config || parsed.extra.contains(name))
        return invalid_argument(str_cat("--table has its own cases: no ",
                                        has_config ? "configuration" : name, " beside it"));
    out.cases = table_cases();
  } else {
    for (const int64_t batch : batches)
      out.cases.push_back({"", batch, out.measure.seconds, out.run.trainer.precision});
  }
  AERIE_ASSIGN_OR_RETURN(out.measure.steps,
                         integer_option(parsed, "--steps", out.table ? 50 : 12, 1, 1'000'000));
  AERIE_ASSIGN_OR_RETURN(out.measure.warmup,
                         integer_option(parsed, "--warmup", out.table ? 6 : 4, 0, 1'000'000));
  out.measure.wait_for_results = parsed.extra.contains("--wait");
  out.peer.tree = text_option(parsed, "--peer");
  if (const std::string python = text_option(parsed, "--python"); !python.empty())
    out.peer.python = python;
  return out;
}

// With TF32 everywhere, float32 is something else.
bool has_tf32(const config::RunConfig& run) {
  return run.trainer.precision == config::Precision::k32 && run.aerie.tf32 == config::Tf32::kAll;
}
std::string precision_text(const config::RunConfig& run) {
  return str_cat(config::precision_name(run.trainer.precision), has_tf32(run) ? " with TF32" : "");
}

ordered_json to_json(const train::NestMeasurement& m, const Request& request) {
  ordered_json json{{"batch", m.batch_size},
                    {"seconds", m.seconds},
                    {"precision", precision_text(request.run)},
                    {"engine", m.engine},
                    {"d_model", request.run.model.encoder.d_model},
                    {"layers", request.run.model.encoder.n_layers},
                    {"parameters", m.parameters},
                    {"build_s", m.build_s},
                    {"padded_audio_s_per_s", m.padded_audio_s / m.steps.step_ms * 1e3},
                    {"tflops", m.step_tflop / m.steps.step_ms * 1e3}};
  if (m.device_gib > 0.0) json["nvml_memory_gib"] = m.device_gib;
  json.update(ordered_json::parse(m.steps.to_json()));
  return json;
}

std::string gib_text(double gib) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", gib);
  return text;
}

void print_text(const train::NestMeasurement& m, const Request& request) {
  std::printf(
      "%lld x %g s, d %lld, %lld layers, %.1f M parameters, %s\n"
      "%s"
      "  %.0f audio-s/s (%.0f with padding), %.2f TFLOP/s, peak %.2f GiB%s, loss %.4f%s\n",
      static_cast<long long>(m.batch_size), m.seconds,
      static_cast<long long>(request.run.model.encoder.d_model),
      static_cast<long long>(request.run.model.encoder.n_layers),
      static_cast<double>(m.parameters) * 1e-6, m.engine.c_str(), m.steps.to_text().c_str(),
      m.steps.throughput, m.padded_audio_s / m.steps.step_ms * 1e3,
      m.step_tflop / m.steps.step_ms * 1e3, m.steps.memory.peak_gib,
      m.device_gib > 0.0 ? str_cat(" allocated, ", gib_text(m.device_gib), " GiB by NVML").c_str()
                         : "",
      m.steps.loss,
      m.steps.skipped > 0 ? str_cat(", ", m.steps.skipped, " steps skipped").c_str() : "");
}

// What each case would do, without doing it.
Status print_plans(Request& request, const std::string& device_model) {
  ordered_json all = ordered_json::array();
  for (const Case& one : request.cases) {
    request.run.trainer.precision = one.precision;
    if (one.d_model > 0) set_sizes(request.run, one.d_model, one.layers, one.heads);
    AERIE_ASSIGN_OR_RETURN(const PlannedCase planned,
                           plan_case(request.run, one.batch, one.seconds, device_model));
    if (!request.json) std::printf("%s%s", all.empty() ? "" : "\n", planned.text.c_str());
    all.push_back(ordered_json::parse(planned.json));
  }
  if (request.json) print_document(all);
  return ok_status();
}

// The same case in Python; never fails the command.
ordered_json run_peer_case(Request& request, const train::NestMeasurement& ours,
                           const std::string& model_file) {
  PeerRequest peer = request.peer;
  peer.batch = ours.batch_size;
  peer.seconds = ours.seconds;
  peer.precision = config::precision_name(request.run.trainer.precision);
  peer.tf32 = has_tf32(request.run);
  peer.d_model = request.run.model.encoder.d_model;
  peer.layers = request.run.model.encoder.n_layers;
  peer.heads = request.run.model.encoder.n_heads;
  peer.steps = request.measure.steps;
  peer.warmup = request.measure.warmup;
  peer.gpu = ours.engine.find("cuda") != std::string::npos;
  peer.model_file = model_file;
  const auto result = run_peer_step(peer);
  if (!result.ok()) return {{"error", result.status().to_string()}};
  ordered_json json = ordered_json::parse(result->json, nullptr, false);
  json["speedup"] = result->ms / ours.steps.step_ms;
  return json;
}

// One line per case, in Markdown.
void print_table(const ordered_json& all) {
  const bool peer = std::any_of(all.begin(), all.end(),
                                [](const ordered_json& one) { return one.contains("peer"); });
  std::printf(
      "\n| case | precision | engine | ms a step | audio s per s | allocated GiB | NVML GiB |%s\n",
      peer ? " peer ms | times as fast |" : "");
  std::printf("|---|---|---|---|---|---|---|%s\n", peer ? "---|---|" : "");
  for (const ordered_json& one : all) {
    std::printf("| %s | %s | %s | %.2f | %.0f | %.2f | %s |",
                one["case"].get<std::string>().c_str(), one["precision"].get<std::string>().c_str(),
                one["engine_kind"].get<std::string>().c_str(), one["step_ms"].get<double>(),
                one["padded_audio_s_per_s"].get<double>(), one["peak_memory_gib"].get<double>(),
                one.contains("nvml_memory_gib")
                    ? gib_text(one["nvml_memory_gib"].get<double>()).c_str()
                    : "");
    if (peer && one.contains("peer") && one["peer"].contains("speedup"))
      std::printf(" %.1f | %.1f |", one["peer"].value("ms", std::nan("")),
                  one["peer"].value("speedup", std::nan("")));
    else if (peer)
      std::printf(" | |");
    std::printf("\n");
  }
  for (const ordered_json& one : all)
    if (one.contains("peer") && one["peer"].contains("error"))
      std::printf("no peer for %s in %s: %s\n", one["case"].get<std::string>().c_str(),
                  one["precision"].get<std::string>().c_str(),
                  printable_lines(one["peer"]["error"].get<std::string>()).c_str());
}

// --world: this process starts the ranks, or is one of them (--world-part, --world-file).
Status run_worlds(const config::ConfigArgs& parsed, const std::vector<std::string>& args,
                  Request& request) {
  if (request.table || !request.peer.tree.empty() || request.cases.size() != 1)
    return invalid_argument("--world measures one case: no --table, no --peer, one --batch");
  WorldBench bench;
  bench.args = args;
  for (const std::string& one : split(text_option(parsed, "--world"), ',')) {
    auto value = parse_int64(trim(one), 1, 1024);
    if (!value.ok()) return invalid_argument(value.status().message()).with_context("--world");
    bench.worlds.push_back(static_cast<int>(*value));
  }
  AERIE_ASSIGN_OR_RETURN(const int64_t threads, integer_option(parsed, "--threads", 0, 1, 4096));
  bench.threads = static_cast<int>(threads);
  bench.keys = !parsed.extra.contains("--no-keys");
  bench.json = request.json;
  request.measure.batch_size = request.cases.front().batch;
  // As the configurations of NEST have it.
  if (request.model_yaml.empty()) request.run.trainer.sync_batchnorm = true;
  bench.run = request.run;
  bench.measure = request.measure;
  bench.to_json = [&](const train::NestMeasurement& measured) {
    ordered_json json = to_json(measured, request);
    json["case"] = str_cat(measured.batch_size, " x ", measured.seconds, " s");
    return json;
  };
  const std::string part = text_option(parsed, "--world-part");
  if (part.empty()) return run_bench_world(bench);
  return run_bench_rank(bench, part, text_option(parsed, "--world-file"));
}

}  // namespace

Status run_bench_step(const std::vector<std::string>& args) {
  std::vector<config::ExtraOption> extra{{"--wait", false},    {"--json", false},
                                         {"--table", false},   {"--reference-table", false},
                                         {"--no-keys", false}, {"--plan", false}};
  for (const char* name :
       {"--batch", "--seconds", "--precision", "--engine", "--steps", "--warmup", "--d-model",
        "--layers", "--heads", "--peer", "--python", "--rows", "--world", "--threads",
        "--world-part", "--world-file", "--device-model"})
    extra.push_back({name, true});
  AERIE_ASSIGN_OR_RETURN(const config::ConfigArgs parsed, config::parse_config_args(args, extra));
  if (parsed.help) {
    print_bench_step_help();
    return ok_status();
  }
  if (parsed.extra.contains("--reference-table")) return run_reference_table(parsed);
  AERIE_ASSIGN_OR_RETURN(Request request, read_request(parsed));
  if (parsed.extra.contains("--world")) return run_worlds(parsed, args, request);
  if (parsed.extra.contains("--plan"))
    return print_plans(request, text_option(parsed, "--device-model"));
  const SignalCatcher signals;
  request.measure.stop = [] { return caught_signal() != 0; };

  std::unique_ptr<TempDir> scratch;
  std::string model_file;
  if (!request.peer.tree.empty() && !request.model_yaml.empty()) {
    scratch = std::make_unique<TempDir>();
    model_file = scratch->file("model.yaml");
    AERIE_RETURN_IF_ERROR(Env::real().write_file(model_file, request.model_yaml));
  }
  ordered_json all = ordered_json::array();
  std::string fell_back;
  const config::Tf32 tf32 = request.run.aerie.tf32;
  for (const Case& one : request.cases) {
    request.measure.batch_size = one.batch;
    request.measure.seconds = one.seconds;
    request.run.trainer.precision = one.precision;
    request.run.aerie.tf32 = one.tf32 ? config::Tf32::kAll : tf32;
    if (one.d_model > 0) set_sizes(request.run, one.d_model, one.layers, one.heads);
    auto measured = train::measure(request.run, request.measure);
    if (!measured.ok()) return measured.status().with_context(str_cat("batch of ", one.batch));
    ordered_json json = to_json(*measured, request);
    json["case"] = !one.name.empty() ? one.name : str_cat(one.batch, " x ", one.seconds, " s");
    json["engine_kind"] = measured->engine.substr(0, measured->engine.find(' '));
    const bool gpu = measured->engine.find("cuda") != std::string::npos;
    if (request.table && gpu && json["engine_kind"] != "fast")
      fell_back += str_cat(fell_back.empty() ? "" : ", ", json["case"].get<std::string>(), " in ",
                           precision_text(request.run));
    if (!request.json) print_text(*measured, request);
    if (!request.peer.tree.empty() && caught_signal() == 0) {
      json["peer"] = run_peer_case(request, *measured, model_file);
      const ordered_json& peer = json["peer"];
      if (!request.json && peer.contains("error"))
        std::printf("  peer: %s\n", printable_lines(peer["error"].get<std::string>()).c_str());
      else if (!request.json)
        std::printf("  peer: %.3f ms a step (%s); aerie is %.2f times as fast\n",
                    peer.value("ms", std::nan("")),
                    printable(peer.value("what", std::string("Python"))).c_str(),
                    peer.value("speedup", std::nan("")));
    }
    std::fflush(stdout);
    all.push_back(std::move(json));
    if (caught_signal() != 0) break;
  }
  if (request.json)
    print_document(all);
  else if (all.size() > 1)
    print_table(all);
  if (!fell_back.empty())
    return Status(StatusCode::kInternal,
                  str_cat("the fast engine did not run these cases: ", fell_back));
  return ok_status();
}

}  // namespace aerie::tools
