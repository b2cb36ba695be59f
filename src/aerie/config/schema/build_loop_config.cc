#include "aerie/config/schema/build_loop_config.h"

#include "aerie/config/schema/engine_keys.h"

namespace aerie::config {
namespace {

void build_aerie(const NodeReader& node, AerieConfig& out) {
  int64_t seed = static_cast<int64_t>(out.seed);
  node.read("seed", seed);
  out.seed = static_cast<uint64_t>(seed);
  out.compat_nemo_2_6 = node.given("compat");
  if (out.compat_nemo_2_6) {
    out.validation_seed = ValidationSeed::kRandom;
  }
  node.read_enum(
      "engine", out.engine,
      {{"auto", Engine::kAuto}, {"fast", Engine::kFast}, {"reference", Engine::kReference}});
  node.read_enum("tf32", out.tf32,
                 {{"none", Tf32::kNone}, {"conv", Tf32::kConv}, {"all", Tf32::kAll}});
  node.read("activation_checkpointing", out.activation_checkpointing);
  node.read_enum("on_nan", out.on_nan,
                 {{"skip", OnNan::kSkip}, {"fallback", OnNan::kFallback}, {"stop", OnNan::kStop}});
  node.read("max_nan_in_a_row", out.max_nan_in_a_row);
  node.read_enum("on_oom", out.on_oom, {{"split", OnOom::kSplit}, {"stop", OnOom::kStop}});
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
  data.read("virtual_ranks", out.data.virtual_ranks);
  data.read("memory_budget_gib", out.data.memory_budget_gib);
  data.read("max_shapes", out.data.max_shapes);
}

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

void build_loop_config(const NodeReader& root, LoopConfig& out) {
  root.read("name", out.name);
  trainer_fields().read(root.child("trainer"), out.trainer);
  out.exp_manager.present = root.child("exp_manager").is_map();
  exp_manager_fields().read(root.child("exp_manager"), out.exp_manager);
  build_init_from(root, out.init_from);
  build_aerie(root.child("aerie"), out.aerie);
}

Result<LoopConfig> build_loop_config(const Value& resolved) {
  if (!resolved.is_map())
    return invalid_argument(str_cat("expected a mapping of keys, got ", resolved.brief()));
  LoopConfig out;
  Status status;
  build_loop_config(NodeReader(&resolved, "", &status), out);
  if (!status.ok()) return status;
  return out;
}

}  // namespace aerie::config
