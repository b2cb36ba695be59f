#include "aerie/config/schema/build_loop_config.h"

#include "aerie/config/schema/engine_keys.h"

namespace aerie::config {
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

void build_loop_config(const NodeReader& root, LoopConfig& out) {
  root.read("name", out.name);
  trainer_fields().read(root.child("trainer"), out.trainer);
  out.exp_manager.present = root.child("exp_manager").is_map();
  exp_manager_fields().read(root.child("exp_manager"), out.exp_manager);
  build_init_from(root, out.init_from);
  own_fields().read(root.child("aerie"), out.aerie);
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
