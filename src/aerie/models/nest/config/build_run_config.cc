#include "aerie/config/schema/build_parts.h"
#include "aerie/models/nest/config/run_config.h"

namespace aerie::config {

void build_aerie(const NodeReader& node, AerieConfig& out) {
  int64_t seed = static_cast<int64_t>(out.seed);
  node.read("seed", seed);
  out.seed = static_cast<uint64_t>(seed);
  out.compat_nemo_2_6 = node.given("compat");
  if (out.compat_nemo_2_6) {
    out.empty_mask = EmptyMask::kNan;
    out.validation_seed = ValidationSeed::kRandom;
    out.data.shuffle_level = ShuffleLevel::kShard;
  }
  node.read_enum(
      "engine", out.engine,
      {{"auto", Engine::kAuto}, {"fast", Engine::kFast}, {"reference", Engine::kReference}});
  node.read_enum(
      "tokens_precision", out.tokens_precision,
      {{"float32", TokensPrecision::kFloat32}, {"autocast", TokensPrecision::kAutocast}});
  node.read_enum("tf32", out.tf32,
                 {{"none", Tf32::kNone}, {"conv", Tf32::kConv}, {"all", Tf32::kAll}});
  node.read("activation_checkpointing", out.activation_checkpointing);
  node.read_enum("on_nan", out.on_nan,
                 {{"skip", OnNan::kSkip}, {"fallback", OnNan::kFallback}, {"stop", OnNan::kStop}});
  node.read("max_nan_in_a_row", out.max_nan_in_a_row);
  node.read_enum("on_oom", out.on_oom, {{"split", OnOom::kSplit}, {"stop", OnOom::kStop}});
  node.read_enum(
      "on_bad_audio", out.on_bad_audio,
      {{"skip", OnBadAudio::kSkip}, {"zero", OnBadAudio::kZero}, {"fail", OnBadAudio::kFail}});
  node.read("max_bad_fraction", out.max_bad_fraction);
  node.read_enum("empty_mask", out.empty_mask,
                 {{"zero", EmptyMask::kZero}, {"nan", EmptyMask::kNan}});
  node.read("train_pre_encode", out.train_pre_encode);
  node.read_enum("batch_norm_frames", out.batch_norm_frames,
                 {{"padded", BatchNormFrames::kPadded}, {"valid", BatchNormFrames::kValid}});
  node.read_enum("validation_seed", out.validation_seed,
                 {{"fixed", ValidationSeed::kFixed}, {"random", ValidationSeed::kRandom}});
  node.read("loss_scale", out.loss_scale);
  node.read("no_weight_decay", out.no_weight_decay);
  node.read("spike_zscore", out.spike_zscore);
  node.read_enum("step_unit", out.step_unit,
                 {{"optimizer", StepUnit::kOptimizer}, {"micro", StepUnit::kMicro}});
  node.read("lightning_checkpoints", out.lightning_checkpoints);
  node.read("ignore_missing_checkpoints", out.ignore_missing_checkpoints);

  const NodeReader data = node.child("data");
  data.read("cache_dir", out.data.cache_dir);
  data.read("build_cache", out.data.build_cache);
  data.read_enum("cache_format", out.data.cache_format,
                 {{"pcm16", CacheFormat::kPcm16}, {"flac", CacheFormat::kFlac}});
  data.read("index_dir", out.data.index_dir);
  data.read("virtual_ranks", out.data.virtual_ranks);
  data.read("memory_budget_gib", out.data.memory_budget_gib);
  data.read("skip_bad_lines", out.data.skip_bad_lines);
  data.read_enum("shuffle_level", out.data.shuffle_level,
                 {{"sample", ShuffleLevel::kSample}, {"shard", ShuffleLevel::kShard}});
  data.read("min_audio_len_secs", out.data.min_audio_len_secs);
  data.read_enum("pad_audio_mode", out.data.pad_audio_mode,
                 {{"repeat", PadAudioMode::kRepeat}, {"zero", PadAudioMode::kZero}});
  data.read_enum("mix_on", out.data.mix_on,
                 {{"auto", MixOn::kAuto}, {"cpu", MixOn::kCpu}, {"gpu", MixOn::kGpu}});
  data.read_enum("batch_dtype", out.data.batch_dtype,
                 {{"auto", BatchDtype::kAuto},
                  {"int16", BatchDtype::kInt16},
                  {"float32", BatchDtype::kFloat32}});
  data.read("max_shapes", out.data.max_shapes);
}

namespace {

void build_init_from(const NodeReader& root, InitFromConfig& out) {
  root.read("init_strict", out.init_strict);
  const std::pair<const char*, InitFromConfig::Kind> kKinds[] = {
      {"init_from_nemo_model", InitFromConfig::Kind::kNemoModel},
      {"init_from_ptl_ckpt", InitFromConfig::Kind::kPtlCkpt},
  };
  for (const auto& [key, kind] : kKinds) {
    const Value* value = root.find(key);
    if (value == nullptr || value->is_null()) continue;
    out.kind = kind;
    if (!value->is_map()) {
      InitSource source;
      root.read(key, source.path);
      out.sources.push_back(std::move(source));
      continue;
    }
    const NodeReader node = root.child(key);
    for (const MapEntry& entry : value->as_map()) {
      const NodeReader item = node.child(entry.key);
      InitSource source;
      source.label = entry.key;
      item.read("path", source.path);
      item.read("include", source.include);
      item.read("exclude", source.exclude);
      out.sources.push_back(std::move(source));
    }
  }
}

}  // namespace

Result<RunConfig> build_run_config(const Value& resolved) {
  if (!resolved.is_map())
    return invalid_argument(str_cat("expected a mapping of keys, got ", resolved.brief()));
  RunConfig out;
  Status status;
  const NodeReader root(&resolved, "", &status);
  root.read("name", out.name);
  const NodeReader model = root.child("model");
  build_model_parts(model, out.model);
  build_datasets(model, out.model);
  build_trainer(root.child("trainer"), out.trainer);
  build_optim(model, out.trainer, out.model);
  build_exp_manager(root.child("exp_manager"), out.exp_manager);
  build_init_from(root, out.init_from);
  build_aerie(root.child("aerie"), out.aerie);
  if (!status.ok()) return status;
  return out;
}

}  // namespace aerie::config
