// `aerie bench bev`: training of LSS + Swin from pictures to updated weights at several batch
// sizes, beside the figures of the guide that the presets come from and beside an eager PyTorch
// peer.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include <nlohmann/json.hpp>

#include "aerie/base/env.h"
#include "aerie/base/parse.h"
#include "aerie/base/path.h"
#include "aerie/base/printable.h"
#include "aerie/base/signals.h"
#include "aerie/base/system.h"
#include "aerie/base/temp_dir.h"
#include "aerie/config/dialects/mm/mm_args.h"
#include "aerie/config/schema/devices.h"
#include "aerie/data/nuscenes/synth/synth_nuscenes.h"
#include "aerie/device/gpu.h"
#include "aerie/metrics/nvml.h"
#include "aerie/models/bev/config/bev_loader.h"
#include "aerie/models/bev/run/bev_job.h"
#include "aerie/models/bev/run/mm_log.h"
#include "aerie/train/cadence.h"
#include "aerie/train/measure.h"
#include "bench_command.h"
#include "cli.h"
#include "json_output.h"
#include "peer_process.h"

namespace aerie::tools {

namespace {

using nlohmann::ordered_json;

// What the guide says of a preset, and of a batch size where no preset is asked for.
struct GuideFigure {
  const char* preset;  // below configs/baseline
  int64_t batch;
  const char* iter_per_s;
  const char* memory_gb;
};
constexpr GuideFigure kGuide[] = {
    {"lss_swin_nuscenes", 4, "7.45 (measured there)", "10"},
    {"lss_swin_nuscenes_optimized", 6, "5-6", "15-18"},
    {"lss_swin_nuscenes_speed", 4, "8-9", "8-10"},
    {"lss_swin_nuscenes_high_memory", 8, "4-5 (3.64 measured there)", "18-20"},
};

struct BevBenchOptions {
  std::string batches = "4,6,8", config, data, peer, python = "python3", configs;
  std::vector<std::string> changes;
  bool presets = false, small = false, json = false;
  int64_t steps = 20, warmup = 5;
};

struct BevBenchRow {
  std::string name, config;
  std::vector<std::string> changes;
  const GuideFigure* guide = nullptr;
  // measured
  int64_t batch = 0;
  std::string profile, precision, engine, loader;
  train::Measurement steps;
  double data_wait_ms = 0.0;
  std::optional<metrics::GpuSample> gpu;
  std::string verdict;
  std::optional<PeerResult> peer;
  std::string peer_note;

  double iter_per_s() const { return steps.step_ms_mean > 0.0 ? 1e3 / steps.step_ms_mean : 0.0; }
  double samples_per_s() const { return iter_per_s() * static_cast<double>(batch); }
  double wait_share() const {
    return steps.step_ms_mean > 0.0 ? data_wait_ms / steps.step_ms_mean : 0.0;
  }
  // Percent; nothing where the driver counts none.
  std::optional<double> gpu_util() const {
    if (!gpu || gpu->utilisation_percent < 0.0) return std::nullopt;
    return gpu->utilisation_percent;
  }
};

Result<std::vector<BevBenchRow>> rows_of(const BevBenchOptions& options) {
  std::vector<BevBenchRow> rows;
  const auto add = [&](const std::string& name, const std::string& config,
                       const GuideFigure* guide) -> BevBenchRow& {
    BevBenchRow row;
    row.name = name;
    row.config = config;
    row.guide = guide;
    rows.push_back(std::move(row));
    return rows.back();
  };
  if (options.presets) {
    for (const GuideFigure& guide : kGuide)
      add(guide.preset, join_path(options.configs, str_cat(guide.preset, ".py")), &guide);
    return rows;
  }
  std::string config = options.config;
  if (config.empty())
    config = join_path(options.configs, options.small ? "lss_swin_quickstart.yaml"
                                                      : "lss_swin_nuscenes_optimized.py");
  const bool python = ends_with(config, ".py");
  for (const std::string& text : split(options.batches, ',')) {
    const auto batch = parse_int64(text, 1, 65536);
    if (!batch.ok()) return batch.status().with_context("--batch");
    const GuideFigure* guide = nullptr;
    if (options.config.empty() && !options.small)
      for (const GuideFigure& one : kGuide)
        if (one.batch == *batch) guide = &one;  // of batch 4 the fp16 row, which comes later
    BevBenchRow& row = add(str_cat("batch ", *batch), config, guide);
    row.changes = {
        str_cat(python ? "data.samples_per_gpu=" : "model.train_ds.batch_size=", *batch)};
  }
  return rows;
}

Status measure_row(const BevBenchOptions& options, const std::string& root, BevBenchRow& row) {
  config::mm::MmArgs args;
  args.config = row.config;
  const bool python = ends_with(row.config, ".py");
  // Any path: values of options lose spaces and are lists at commas.
  if (python)
    args.changes = {{"data.train.data_root", root}, {"data.val.data_root", root}};
  else
    args.changes = {{"model.train_ds.root", root}};
  // On equal terms: the peer lets cuDNN try its algorithms.
  if (!options.peer.empty())
    args.options.push_back(python ? "cudnn_benchmark=True" : "trainer.benchmark=true");
  args.options.insert(args.options.end(), row.changes.begin(), row.changes.end());
  args.options.insert(args.options.end(), options.changes.begin(), options.changes.end());
  bev::BevLoadOptions load;
  load.for_training = true;
  AERIE_ASSIGN_OR_RETURN(const bev::LoadedBevConfig loaded,
                         bev::load_bev_config(Env::real(), args, load));
  const bev::BevRunConfig& run = loaded.run;
  AERIE_ASSIGN_OR_RETURN(const config::DevicePlan devices,
                         config::plan_devices(run.trainer, config::count_visible_gpus()));
  const std::unique_ptr<train::Job> job = bev::make_bev_job(loaded);
  train::DataOptions data_options;
  data_options.env = &Env::real();
  data_options.validation = false;
  data_options.gpu = devices.gpu;
  data_options.gpu_index = devices.ids.front();
  data_options.quiet = true;
  AERIE_ASSIGN_OR_RETURN(const train::JobData data, job->open_data(data_options));
  if (data.train->batches_per_epoch() == 0)
    return data_error(str_cat("fewer samples than one batch of ", run.data.train_ds.batch_size))
        .with_hint("give a larger set in --data, or smaller batches");
  AERIE_RETURN_IF_ERROR(data.train->start_epoch(0));
  train::EngineOptions engine_options;
  engine_options.gpu = devices.gpu;
  engine_options.gpu_index = devices.ids.front();
  AERIE_ASSIGN_OR_RETURN(train::BuiltEngine engine, job->make_engine(engine_options));
  AERIE_ASSIGN_OR_RETURN(const train::Cadence cadence,
                         train::Cadence::make(run.trainer, data.train->batches_per_epoch(), false,
                                              train::cadence_rules(run.aerie)));
  AERIE_ASSIGN_OR_RETURN(const auto rates, job->make_rates(engine.base_rates, cadence));
  const auto nvml = devices.gpu ? metrics::NvmlSampler::start(
                                      device::pci_bus_id(devices.ids.front()).c_str(), 0.1)
                                : nullptr;
  train::MeasureOptions measure;
  measure.warmup = options.warmup;
  measure.learning_rates = rates->at(0);
  measure.wait_for_results = false;
  measure.stop = [] { return caught_signal() != 0; };
  // What comes before is not what the GPU does in steady state.
  measure.steps = 1;
  AERIE_RETURN_IF_ERROR(train::measure_steps(*engine.engine, *data.train, measure).status());
  if (nvml != nullptr) (void)nvml->read_now();
  measure.warmup = 0;
  measure.steps = options.steps;
  AERIE_ASSIGN_OR_RETURN(row.steps, train::measure_steps(*engine.engine, *data.train, measure));
  if (nvml != nullptr) row.gpu = nvml->read_now();
  row.batch = run.data.train_ds.batch_size;
  row.profile = run.model.profile;
  row.precision = config::precision_name(run.trainer.precision);
  row.engine = engine.engine->description();
  row.loader = data.loader;
  if (const train::PhaseTime* wait = row.steps.phase(train::kPhaseDataWait))
    row.data_wait_ms = wait->host_ms_mean;  // as the step that it is part of
  row.verdict = bev::step_verdict(row.wait_share(), row.gpu_util()).sentence;
  return ok_status();
}

void run_bev_peer(const BevBenchOptions& options, bool gpu, BevBenchRow& row) {
  if (options.small || !options.config.empty()) {
    row.peer_note = "the peer knows the sizes of the profiles alone";
    return;
  }
  const std::string script = join_path(options.peer, "bev_step.py");
  if (!Env::real().exists(script)) {
    row.peer_note = str_cat(options.peer, " holds no bev_step.py");
    return;
  }
  const auto output =
      run_process({options.python, script,
                   str_cat(row.profile, ":", row.batch, ":", peer_precision(row.precision)),
                   "--device", gpu ? "cuda" : "cpu", "--steps", str_cat(options.steps), "--warmup",
                   str_cat(options.warmup)},
                  {});
  if (!output.ok()) {
    row.peer_note = output.status().to_string();
    return;
  }
  auto found = find_peer_result(output->text);
  if (found.ok())
    row.peer = *std::move(found);
  else
    row.peer_note = tail_of(output->text);
}

ordered_json row_json(const BevBenchRow& row) {
  ordered_json json{{"name", row.name},
                    {"batch", row.batch},
                    {"profile", row.profile},
                    {"precision", row.precision},
                    {"engine", row.engine},
                    {"loader", row.loader},
                    {"iter_per_s", row.iter_per_s()},
                    {"samples_per_s", row.samples_per_s()},
                    {"step_ms", row.steps.step_ms_mean},
                    {"step_ms_median", row.steps.step_ms},
                    {"data_time_ms", row.data_wait_ms},
                    {"data_wait_share", row.wait_share()},
                    {"peak_memory_gib", row.steps.memory.peak_gib},
                    {"verdict", row.verdict}};
  if (row.gpu) {
    if (row.gpu_util()) json["gpu_util"] = *row.gpu_util();
    json["gpu_memory_used_gib"] = row.gpu->peak_memory_used_gib;
  }
  if (row.guide != nullptr)
    json["guide"] = {{"iter_per_s", row.guide->iter_per_s}, {"memory_gb", row.guide->memory_gb}};
  if (row.peer) {
    json["peer"] = ordered_json::parse(row.peer->json, nullptr, false);
    json["beside_peer"] = (row.steps.step_ms_mean - row.data_wait_ms) / row.peer->ms;
  }
  if (!row.peer_note.empty()) json["peer_note"] = row.peer_note;
  return json;
}

void print_rows(const std::vector<BevBenchRow>& rows, bool peer) {
  size_t width = 10;
  for (const BevBenchRow& row : rows) width = std::max(width, row.name.size());
  std::printf("%-*s  %5s  %-10s  %8s  %9s  %9s  %5s  %7s%s  %s\n", static_cast<int>(width), "",
              "batch", "precision", "iter/s", "samples/s", "data_time", "GPU %", "GiB",
              peer ? "   peer ms  of peer" : "", "verdict; the guide's iter/s and GB");
  for (const BevBenchRow& row : rows) {
    char gpu[16] = "-";
    if (row.gpu_util()) std::snprintf(gpu, sizeof gpu, "%.0f", *row.gpu_util());
    char beside[40] = "";
    if (peer && row.peer)
      std::snprintf(beside, sizeof beside, "  %8.1f  %6.2fx", row.peer->ms,
                    (row.steps.step_ms_mean - row.data_wait_ms) / row.peer->ms);
    else if (peer)
      std::snprintf(beside, sizeof beside, "  %8s  %7s", "-", "-");
    std::string note = row.verdict;
    if (row.guide != nullptr)
      note += str_cat("; guide ", row.guide->iter_per_s, " iter/s, ", row.guide->memory_gb, " GB");
    std::printf("%-*s  %5lld  %-10s  %8.3f  %9.2f  %6.1f ms  %5s  %7.2f%s  %s\n",
                static_cast<int>(width), row.name.c_str(), static_cast<long long>(row.batch),
                row.precision.c_str(), row.iter_per_s(), row.samples_per_s(), row.data_wait_ms, gpu,
                row.steps.memory.peak_gib, beside, note.c_str());
    if (!row.peer_note.empty())
      std::printf("%-*s  no peer: %s\n", static_cast<int>(width), "",
                  printable(row.peer_note).c_str());
  }
}

}  // namespace

Status run_bench_bev(const std::vector<std::string>& args) {
  CLI::App app(
      "Trains LSS + Swin for some steps at every batch size, from JPEG to updated weights, and "
      "says\n"
      "iterations and samples a second, the wait for data (data_time), how busy the GPU was, "
      "memory,\n"
      "what limits it, and what the guide of the presets says. Without --data on a synthetic set\n"
      "that is made for it (32 training samples of 1600 x 900).",
      "aerie bench bev");
  app.footer(
      "example: aerie bench bev --batch 4,6,8 --data /data/nuscenes --peer bench/peers\n"
      "         aerie bench bev --small --batch 1,2 --steps 3   (a CPU)\n\n"
      "The peer is eager PyTorch on data that lies on the device already; `of peer` is aerie's "
      "step\n"
      "without its wait for data over the peer's. Beside it both let cuDNN try its algorithms\n"
      "(cudnn_benchmark). AERIE_PYTHON is its interpreter (default python3).");
  BevBenchOptions options;
  options.configs = config_folder("baseline");
  app.add_option("--batch,--batches", options.batches, "sizes, a list with commas")
      ->capture_default_str();
  app.add_option("--data", options.data, "root of a nuScenes data set");
  app.add_flag("--presets", options.presets,
               "the four presets of configs/baseline as they are, instead of --batch");
  app.add_option("--config", options.config,
                 "another configuration (default: lss_swin_nuscenes_optimized.py)");
  app.add_flag("--small", options.small, "the sizes of the quick start: for CPUs");
  app.add_option("--options,--cfg-options", options.changes, "KEY=VALUE of every row");
  app.add_option("--peer", options.peer, "folder with bev_step.py and bev_peer.py");
  app.add_option("--steps", options.steps, "timed steps of every row")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  app.add_option("--warmup", options.warmup, "steps before that")
      ->capture_default_str()
      ->check(CLI::Range(0, 1000000));
  app.add_flag("--json", options.json, "machine-readable output");
  bool help = false;
  AERIE_RETURN_IF_ERROR(parse_args(app, args, &help));
  if (help) return ok_status();
  if (options.presets && (options.small || !options.config.empty()))
    return invalid_argument("--presets does not go with --small or --config");
  if (const char* python = std::getenv("AERIE_PYTHON"); python != nullptr) options.python = python;
  const SignalCatcher signals;
  AERIE_ASSIGN_OR_RETURN(std::vector<BevBenchRow> rows, rows_of(options));
  std::unique_ptr<TempDir> made;
  std::string root = expand_user(options.data);
  if (root.empty()) {
    made = std::make_unique<TempDir>();
    nuscenes::SynthOptions synth;
    synth.out = root = made->file("town");
    synth.quiet = options.json;
    if (options.small) synth.image_width = 400, synth.image_height = 225;
    AERIE_RETURN_IF_ERROR(nuscenes::make_nuscenes(synth).status());
  }
  const bool gpu = config::count_visible_gpus() > 0;
  for (BevBenchRow& row : rows) {
    if (caught_signal() != 0) return Status(StatusCode::kCancelled, "stopped by a signal");
    AERIE_RETURN_IF_ERROR(measure_row(options, root, row).with_context(row.name));
    if (!options.peer.empty()) run_bev_peer(options, gpu, row);
  }
  if (!options.json) {
    std::printf("%s, %d cores; %s\n\n", cpu_name().c_str(), static_cast<int>(cpu_count()),
                printable(rows.front().engine).c_str());
    print_rows(rows, !options.peer.empty());
    return ok_status();
  }
  ordered_json all{{"cpu", cpu_name()}, {"cores", cpu_count()}, {"rows", ordered_json::array()}};
  for (const BevBenchRow& row : rows) all["rows"].push_back(row_json(row));
  print_document(all);
  return ok_status();
}

}  // namespace aerie::tools
