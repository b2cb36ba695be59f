#include "bench_reference.h"

#include <cmath>
#include <cstdio>
#include <map>

#include <nlohmann/json.hpp>

#include "aerie/base/env.h"
#include "aerie/base/parse.h"
#include "aerie/base/printable.h"
#include "aerie/base/signals.h"
#include "aerie/base/strings.h"
#include "aerie/base/temp_dir.h"
#include "aerie/config/schema/config_text.h"
#include "aerie/models/nest/config/run_config.h"
#include "aerie/models/nest/run/nest_measure.h"
#include "json_output.h"
#include "peer_process.h"

namespace aerie::tools {

namespace {

using nlohmann::ordered_json;

constexpr const char* kBaseYaml = R"(name: reference-table
model:
  sample_rate: 16000
  num_classes: 8192
  num_books: 1
  code_dim: 16
  squeeze_single: false
  mask_position: pre_conv
  preprocessor:
    _target_: nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor
    sample_rate: ${model.sample_rate}
    normalize: per_feature
    window_size: 0.025
    window_stride: 0.01
    window: hann
    features: 80
    n_fft: 512
    log: true
    frame_splicing: 1
    dither: 1.0e-05
    pad_to: 16
    pad_value: 0.0
  spec_augment:
    _target_: nemo.collections.asr.modules.SpectrogramAugmentation
    freq_masks: 0
    time_masks: 0
    freq_width: 27
    time_width: 0.05
  masking:
    _target_: nemo.collections.asr.modules.RandomBlockMasking
    block_size: 40
    mask_prob: 0.01
    feat_in: ${model.preprocessor.features}
    freeze: true
    allow_overlap: true
  quantizer:
    _target_: nemo.collections.asr.modules.RandomProjectionVectorQuantizer
    feat_in: ${model.preprocessor.features}
    code_dim: ${model.code_dim}
    num_books: ${model.num_books}
    num_classes: ${model.num_classes}
    dist_fn: l2
    freeze: true
    squeeze_single: ${model.squeeze_single}
    combine_time_steps: ${model.encoder.subsampling_factor}
  encoder:
    _target_: nemo.collections.asr.modules.ConformerEncoder
    feat_in: ${model.preprocessor.features}
    feat_out: -1
    n_layers: 17
    d_model: 512
    use_bias: true
    subsampling: dw_striding
    subsampling_factor: 8
    subsampling_conv_channels: 256
    causal_downsampling: false
    ff_expansion_factor: 4
    self_attention_model: rel_pos
    n_heads: 8
    att_context_size: [-1, -1]
    att_context_style: regular
    xscaling: true
    untie_biases: true
    pos_emb_max_len: 5000
    conv_kernel_size: 9
    conv_norm_type: batch_norm
    conv_context_size: null
    dropout: 0.1
    dropout_pre_encoder: 0.1
    dropout_emb: 0.0
    dropout_att: 0.1
    stochastic_depth_drop_prob: 0.0
    stochastic_depth_mode: linear
    stochastic_depth_start_layer: 1
  decoder:
    _target_: nemo.collections.asr.modules.MultiSoftmaxDecoder
    feat_in: ${model.encoder.d_model}
    num_classes: ${model.num_classes}
    num_decoders: ${model.num_books}
    squeeze_single: ${model.squeeze_single}
    use_bias: true
  loss:
    _target_: nemo.collections.asr.losses.MultiMLMLoss
    combine_time_steps: ${model.encoder.subsampling_factor}
    mask_threshold: 0.8
    num_decoders: ${model.num_books}
    squeeze_single: ${model.squeeze_single}
  optim:
    name: adamw
    lr: 5.0
    betas: [0.9, 0.98]
    weight_decay: 0.001
    sched:
      name: NoamAnnealing
      d_model: ${model.encoder.d_model}
      warmup_steps: 25000
      min_lr: 1.0e-06
trainer:
  devices: 1
  max_steps: 500000
  precision: bf16-mixed
)";

struct PeerBenchRequest {
  config::ConfigArgs base;  // configuration and overrides of all rows
  std::vector<ReferenceRow> rows;
  train::NestMeasureOptions measure;
  std::string peer_tree, python = "python3";
  bool json = false;
};

std::string peer_text_option(const config::ConfigArgs& parsed, const char* name) {
  const auto found = parsed.extra.find(name);
  return found == parsed.extra.end() ? std::string() : found->second;
}

Status read_integer(const config::ConfigArgs& parsed, const char* name, int64_t low,
                    int64_t& value) {
  const std::string text = peer_text_option(parsed, name);
  if (text.empty()) return ok_status();
  auto read = parse_int64(text, low, 1'000'000);
  if (!read.ok()) return invalid_argument(read.status().message()).with_context(name);
  value = *read;
  return ok_status();
}

Result<PeerBenchRequest> read_peer_request(const config::ConfigArgs& parsed,
                                           const TempDir& scratch) {
  PeerBenchRequest out;
  out.base = parsed;
  out.base.extra.clear();
  if (out.base.config_name.empty() && out.base.files.empty()) {
    out.base.files = {scratch.file("reference_table.yaml")};
    AERIE_RETURN_IF_ERROR(Env::real().write_file(out.base.files.front(), kBaseYaml));
  }
  const auto set = [&](const char* option, const char* key) {
    const std::string value = peer_text_option(parsed, option);
    if (!value.empty()) out.base.overrides.push_back(str_cat(key, "=", value));
  };
  set("--d-model", "model.encoder.d_model");
  set("--layers", "model.encoder.n_layers");
  set("--heads", "model.encoder.n_heads");
  set("--precision", "trainer.precision");
  set("--engine", "++aerie.engine");
  AERIE_RETURN_IF_ERROR(read_integer(parsed, "--steps", 1, out.measure.steps));
  AERIE_RETURN_IF_ERROR(read_integer(parsed, "--warmup", 0, out.measure.warmup));
  AERIE_RETURN_IF_ERROR(read_integer(parsed, "--batch", 1, out.measure.batch_size));
  if (const std::string text = peer_text_option(parsed, "--seconds"); !text.empty()) {
    auto value = parse_double(text);
    if (!value.ok()) return invalid_argument(value.status().message()).with_context("--seconds");
    out.measure.seconds = *value;
  }
  out.measure.wait_for_results = parsed.extra.contains("--wait");
  out.measure.stop = [] { return caught_signal() != 0; };
  out.peer_tree = peer_text_option(parsed, "--peer");
  if (const std::string python = peer_text_option(parsed, "--python"); !python.empty())
    out.python = python;
  out.json = parsed.extra.contains("--json");

  const std::vector<std::string> wanted = split(peer_text_option(parsed, "--rows"), ',');
  for (const ReferenceRow& row : reference_rows())
    for (const std::string& part : wanted)
      if (row.name.find(part) != std::string::npos) {
        out.rows.push_back(row);
        break;
      }
  if (out.rows.empty())
    return invalid_argument(
               str_cat("no row's name contains ", peer_text_option(parsed, "--rows"), " (--rows)"))
        .with_hint("leave --rows out to see them all");
  return out;
}

// What the peer needs to know of a row (bench/peers/nemo_step.py --cases).
ordered_json peer_case(const std::string& name, const config::LoadedConfig& loaded,
                       const train::NestMeasurement& ours, const train::NestMeasureOptions& how) {
  const config::RunConfig& run = loaded.run;
  // A measured row has a model node.
  const config::Value& model = *loaded.resolved.find("model");
  return {{"case", name},
          {"batch", how.batch_size},
          {"seconds", how.seconds},
          {"precision", peer_precision(config::precision_name(run.trainer.precision))},
          {"steps", how.steps},
          {"warmup", how.warmup},
          {"device", ours.engine.find("cuda") != std::string::npos ? "cuda" : "cpu"},
          {"optimizer", run.model.optim.name},
          {"amsgrad", run.model.optim.amsgrad},
          {"ema_on_cpu", run.exp_manager.ema.enable && run.exp_manager.ema.cpu_offload},
          {"detect_anomaly", run.trainer.detect_anomaly},
          {"model", ordered_json::parse(config::config_json(model)).at("config")}};
}

// Puts the peer's results beside ours; never fails the command.
void add_peer(const PeerBenchRequest& request, const ordered_json& cases, const TempDir& scratch,
              ordered_json& rows) {
  const std::string file = scratch.file("cases.json");
  std::map<std::string, ordered_json> results;
  std::string problem;
  const Status written = Env::real().write_file(file, cases.dump());
  auto output = written.ok() ? run_peer_cases(request.peer_tree, request.python, file)
                             : Result<ProcessOutput>(written);
  if (output.ok()) {
    for (const std::string& line : split(output->text, '\n')) {
      const ordered_json json = ordered_json::parse(line, nullptr, false);
      if (json.is_object() && json.contains("case") && json["case"].is_string())
        results[json["case"].get<std::string>()] = json;
    }
    if (results.empty()) problem = str_cat("the peer printed no result: ", tail_of(output->text));
  } else {
    problem = output.status().to_string();
  }
  for (ordered_json& row : rows) {
    const auto found = results.find(row["case"].get<std::string>());
    if (found == results.end()) {
      row["peer"] = {{"error", problem.empty() ? "no result" : problem}};
      continue;
    }
    row["peer"] = found->second;
    if (found->second.contains("ms"))
      row["peer"]["speedup"] = found->second["ms"].get<double>() / row["step_ms"].get<double>();
  }
}

void print_rows(const ordered_json& rows, bool peer) {
  std::printf(
      "| configuration | precision | engine | ms a step | forward | backward | peak GiB |%s\n",
      peer ? " peer ms | times as fast |" : "");
  std::printf("|---|---|---|---|---|---|---|%s\n", peer ? "---|---|" : "");
  int measured = 0, as_fast = 0;
  for (const ordered_json& row : rows) {
    if (row.contains("error")) continue;
    const auto phase = [&](const char* name) {
      for (const ordered_json& one : row["phases"])
        if (one["name"] == name) return one.value("device_ms", one.value("host_ms", 0.0));
      return std::nan("");
    };
    std::printf("| %s | %s | %s | %.2f | %.1f | %.1f | %.2f |",
                row["case"].get<std::string>().c_str(), row["precision"].get<std::string>().c_str(),
                row["engine"].get<std::string>().c_str(), row["step_ms"].get<double>(),
                phase("forward"), phase("backward"), row["peak_memory_gib"].get<double>());
    if (peer && row["peer"].contains("speedup")) {
      const double speedup = row["peer"]["speedup"].get<double>();
      ++measured;
      as_fast += speedup >= 1.0 ? 1 : 0;
      std::printf(" %.1f | %.2f |", row["peer"]["ms"].get<double>(), speedup);
    } else if (peer) {
      std::printf(" | |");
    }
    std::printf("\n");
  }
  for (const ordered_json& row : rows) {
    if (row.contains("error"))
      std::printf("%s was not measured: %s\n", row["case"].get<std::string>().c_str(),
                  printable_lines(row["error"].get<std::string>()).c_str());
    if (row.contains("peer") && row["peer"].contains("error"))
      std::printf("no peer for %s: %s\n", row["case"].get<std::string>().c_str(),
                  printable_lines(row["peer"]["error"].get<std::string>()).c_str());
  }
  if (measured > 0) std::printf("%d of %d rows take at most the peer's time\n", as_fast, measured);
}

}  // namespace

std::string reference_base_yaml() {
  return kBaseYaml;
}

const std::vector<ReferenceRow>& reference_rows() {
  static const std::vector<ReferenceRow> rows = {
      {"engine reference", {"++aerie.engine=reference"}},
      {"engine reference, float32", {"++aerie.engine=reference", "trainer.precision=32"}},
      {"engine reference, float16", {"++aerie.engine=reference", "trainer.precision=16-mixed"}},
      {"mask_position post_conv", {"model.mask_position=post_conv"}},
      // NeMo runs it in float32 alone.
      {"post_conv, float32", {"model.mask_position=post_conv", "trainer.precision=32"}},
      {"n_fft 1024", {"model.preprocessor.n_fft=1024"}},
      {"window of 40 ms", {"model.preprocessor.n_fft=1024", "model.preprocessor.window_size=0.04"}},
      {"window none", {"model.preprocessor.window=none"}},
      {"mag_power 1", {"++model.preprocessor.mag_power=1.0"}},
      {"log false", {"model.preprocessor.log=false"}},
      {"normalize all_features", {"model.preprocessor.normalize=all_features"}},
      {"frame_splicing 2",
       {"model.preprocessor.frame_splicing=2", "model.encoder.feat_in=160",
        "model.masking.feat_in=160", "model.quantizer.feat_in=160"}},
      {"exact_pad", {"++model.preprocessor.exact_pad=true"}},
      {"pad_to max", {"model.preprocessor.pad_to=max"}},
      {"nb_augmentation_prob 0.5", {"++model.preprocessor.nb_augmentation_prob=0.5"}},
      {"masking.freeze false", {"model.masking.freeze=false"}},
      {"quantizer.freeze false", {"model.quantizer.freeze=false"}},
      {"code_dim 15", {"model.code_dim=15"}},
      {"8191 classes", {"model.num_classes=8191"}},
      {"tokens_precision autocast", {"++aerie.tokens_precision=autocast"}},
      {"subsampling_factor 4", {"model.encoder.subsampling_factor=4"}},
      {"subsampling striding", {"model.encoder.subsampling=striding"}},
      {"subsampling stacking", {"model.encoder.subsampling=stacking"}},
      {"subsampling stacking_norm", {"model.encoder.subsampling=stacking_norm"}},
      {"self_attention_model abs_pos", {"model.encoder.self_attention_model=abs_pos"}},
      {"self_attention_model rel_pos_local_attn",
       {"model.encoder.self_attention_model=rel_pos_local_attn",
        "model.encoder.att_context_size=[64,64]"}},
      {"local attention with a global token",
       {"model.encoder.self_attention_model=rel_pos_local_attn",
        "model.encoder.att_context_size=[64,64]", "++model.encoder.global_tokens=1"}},
      {"several attention contexts",
       {"model.encoder.att_context_style=chunked_limited",
        "model.encoder.att_context_size=[[70,13],[70,6],[70,1],[70,0]]"}},
      {"untie_biases false", {"model.encoder.untie_biases=false"}},
      {"conv_norm_type layer_norm", {"model.encoder.conv_norm_type=layer_norm"}},
      {"conv_norm_type instance_norm", {"model.encoder.conv_norm_type=instance_norm"}},
      {"conv_norm_type group_norm", {"model.encoder.conv_norm_type=group_norm8"}},
      {"conv_kernel_size 31", {"model.encoder.conv_kernel_size=31"}},
      {"dropout_emb 0.1", {"model.encoder.dropout_emb=0.1"}},
      {"stochastic_depth_drop_prob 0.1", {"model.encoder.stochastic_depth_drop_prob=0.1"}},
      {"feat_out 256", {"model.encoder.feat_out=256", "model.decoder.feat_in=256"}},
      {"width 500", {"model.encoder.d_model=500", "model.encoder.n_heads=4"}},
      {"heads of 66", {"model.encoder.d_model=528", "model.encoder.n_heads=8"}},
      {"heads of 256", {"model.encoder.n_heads=2"}},
      {"optimizer sgd", {"~model.optim.betas", "model.optim.name=sgd", "model.optim.lr=0.1"}},
      {"optimizer novograd", {"model.optim.name=novograd"}},
      {"amsgrad", {"++model.optim.amsgrad=true"}},
      {"ema.cpu_offload", {"++exp_manager.ema.enable=true", "++exp_manager.ema.cpu_offload=true"}},
      {"detect_anomaly", {"++trainer.detect_anomaly=true"}},
  };
  return rows;
}

Status run_reference_table(const config::ConfigArgs& parsed) {
  const TempDir scratch;
  AERIE_ASSIGN_OR_RETURN(const PeerBenchRequest request, read_peer_request(parsed, scratch));
  const SignalCatcher signals;
  ordered_json rows = ordered_json::array(), cases = ordered_json::array();
  for (const ReferenceRow& row : request.rows) {
    if (caught_signal() != 0) break;
    config::ConfigArgs args = request.base;
    args.overrides.insert(args.overrides.end(), row.overrides.begin(), row.overrides.end());
    auto loaded = config::load_run_config(args);
    auto measured = loaded.ok() ? train::measure(loaded->run, request.measure)
                                : Result<train::NestMeasurement>(loaded.status());
    if (!measured.ok()) {
      rows.push_back({{"case", row.name}, {"error", measured.status().to_string()}});
      continue;
    }
    ordered_json json{{"case", row.name},
                      {"precision", config::precision_name(loaded->run.trainer.precision)},
                      {"engine", measured->engine.substr(0, measured->engine.find(' '))},
                      {"parameters", measured->parameters}};
    json.update(ordered_json::parse(measured->steps.to_json()));
    if (!request.json)
      std::fprintf(stderr, "%s: %.2f ms a step, %s\n", row.name.c_str(), measured->steps.step_ms,
                   measured->engine.c_str());
    rows.push_back(std::move(json));
    cases.push_back(peer_case(row.name, *loaded, *measured, request.measure));
  }
  const bool peer = !request.peer_tree.empty() && !cases.empty() && caught_signal() == 0;
  if (peer) add_peer(request, cases, scratch, rows);
  if (request.json)
    print_document(rows);
  else
    print_rows(rows, peer);
  return ok_status();
}

}  // namespace aerie::tools
