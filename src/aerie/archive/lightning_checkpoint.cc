#include "aerie/archive/lightning_checkpoint.h"

#include <cmath>
#include <cstring>

#include "aerie/archive/text.h"
#include "aerie/base/strings.h"

namespace aerie::archive {
namespace {

class Reader {
 public:
  explicit Reader(LightningCheckpoint& out) : out_(out), tree_(out.file.tree) {}
  Status run();

 private:
  Status error(std::string message) const {
    return data_error(std::move(message)).with_context(out_.file.tensors.name());
  }
  // A number, also one written as a tensor with one element.
  Result<std::optional<double>> number(NodeId id) const;
  std::vector<double> numbers(NodeId id) const;
  // The items of a list or tuple; empty for anything else.
  std::vector<NodeId> list(NodeId id) const {
    if (!tree_.is(id, NodeKind::kList) && !tree_.is(id, NodeKind::kTuple)) return {};
    return tree_.items(id);
  }
  Status read_optimizer(NodeId id, size_t index);
  Status read_group(NodeId id, ParamGroup& group) const;
  Status read_scaler(NodeId id);

  LightningCheckpoint& out_;
  const NodeTree& tree_;
};

Result<std::optional<double>> Reader::number(NodeId id) const {
  if (const TensorInfo* info = out_.file.tensor(id)) {
    if (info->numel() != 1) return std::optional<double>();
    AERIE_ASSIGN_OR_RETURN(const std::string bytes, out_.file.tensors.read(*info));
    const auto as = [&]<typename T>(T value) -> std::optional<double> {
      std::memcpy(&value, bytes.data(), sizeof value);
      return static_cast<double>(value);
    };
    switch (info->dtype) {
      case Dtype::kF32:
        return as(float{});
      case Dtype::kF64:
        return as(double{});
      case Dtype::kI64:
        return as(int64_t{});
      case Dtype::kI32:
        return as(int32_t{});
      default:
        return std::optional<double>();
    }
  }
  return tree_.as_number(id);
}

std::vector<double> Reader::numbers(NodeId id) const {
  std::vector<double> out;
  for (const NodeId item : list(id)) {
    const auto value = tree_.as_number(item);
    if (!value) return {};
    out.push_back(*value);
  }
  return out;
}

Status Reader::read_group(NodeId id, ParamGroup& group) const {
  if (!tree_.is(id, NodeKind::kDict)) return error("an optimizer's param_groups hold no dicts");
  group.node = id;
  const std::vector<NodeId>& items = tree_.items(id);
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    const auto name = tree_.as_string(items[i]);
    if (!name) continue;
    if (*name == "params") {
      for (const NodeId param : list(items[i + 1])) {
        const auto index = tree_.as_int(param);
        if (!index || *index < 0) return error("an optimizer's param_groups name no parameters");
        group.params.push_back(*index);
      }
    } else if (*name == "betas") {
      group.betas = numbers(items[i + 1]);
    } else {
      AERIE_ASSIGN_OR_RETURN(const std::optional<double> value, number(items[i + 1]));
      if (value) group.numbers.emplace_back(*name, *value);
    }
  }
  return ok_status();
}

Status Reader::read_optimizer(NodeId id, size_t index) {
  OptimizerState optimizer;
  // NeMo's `-EMA` files wrap the state together with the averages.
  if (tree_.find(id, "opt") != kNoNode) {
    out_.averaged_steps = tree_.as_int(tree_.find(id, "current_step"));
    id = tree_.find(id, "opt");
  }
  const NodeId state = tree_.find(id, "state");
  const NodeId groups = tree_.find(id, "param_groups");
  if (!tree_.is(state, NodeKind::kDict) || !tree_.is(groups, NodeKind::kList))
    return error(str_cat("optimizer_states[", index, "] lacks its state or param_groups"));
  const std::vector<NodeId>& items = tree_.items(state);
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    const auto param = tree_.as_int(items[i]);
    if (!param || !tree_.is(items[i + 1], NodeKind::kDict))
      return error(str_cat("optimizer_states[", index, "].state does not map numbers to dicts"));
    ParamState entry;
    entry.param = *param;
    const std::vector<NodeId>& fields = tree_.items(items[i + 1]);
    for (size_t f = 0; f + 1 < fields.size(); f += 2) {
      const auto name = tree_.as_string(fields[f]);
      if (!name) continue;
      if (*name == "step") {
        AERIE_ASSIGN_OR_RETURN(entry.step, number(fields[f + 1]));
      } else if (const TensorInfo* info = out_.file.tensor(fields[f + 1])) {
        entry.tensors.push_back(*info);
        entry.tensors.back().name = *name;
      }
    }
    optimizer.params.push_back(std::move(entry));
  }
  for (const NodeId group : tree_.items(groups)) {
    optimizer.groups.emplace_back();
    AERIE_RETURN_IF_ERROR(read_group(group, optimizer.groups.back()));
  }
  out_.optimizers.push_back(std::move(optimizer));
  return ok_status();
}

Status Reader::read_scaler(NodeId id) {
  ScalerState scaler;
  AERIE_ASSIGN_OR_RETURN(const auto scale, number(tree_.find(id, "scale")));
  if (!scale || !std::isfinite(*scale)) return ok_status();  // a disabled scaler saves nothing
  scaler.scale = *scale;
  const auto field = [&](const char* name, auto& value) -> Status {
    AERIE_ASSIGN_OR_RETURN(const auto found, number(tree_.find(id, name)));
    if (found && std::abs(*found) < 1e15)
      value = static_cast<std::decay_t<decltype(value)>>(*found);
    return ok_status();
  };
  AERIE_RETURN_IF_ERROR(field("growth_factor", scaler.growth_factor));
  AERIE_RETURN_IF_ERROR(field("backoff_factor", scaler.backoff_factor));
  AERIE_RETURN_IF_ERROR(field("growth_interval", scaler.growth_interval));
  AERIE_RETURN_IF_ERROR(field("_growth_tracker", scaler.growth_tracker));
  out_.scaler = scaler;
  return ok_status();
}

Status Reader::run() {
  const NodeId root = out_.file.root;
  AERIE_ASSIGN_OR_RETURN(out_.weights, weights_of(out_.file));
  out_.epoch = tree_.as_int(tree_.find(root, "epoch")).value_or(0);
  out_.global_step = tree_.as_int(tree_.find(root, "global_step")).value_or(0);
  out_.lightning_version =
      tree_.as_string(tree_.find(root, "pytorch-lightning_version")).value_or("");
  out_.loops = tree_.find(root, "loops");
  out_.callbacks = tree_.find(root, "callbacks");
  out_.hyper_parameters = tree_.find(root, "hyper_parameters");
  const std::vector<NodeId> optimizers = list(tree_.find(root, "optimizer_states"));
  for (size_t i = 0; i < optimizers.size(); ++i)
    AERIE_RETURN_IF_ERROR(read_optimizer(optimizers[i], i));
  // mmcv has one, under this name.
  if (const NodeId one = tree_.find(root, "optimizer");
      optimizers.empty() && tree_.find(one, "param_groups") != kNoNode)
    AERIE_RETURN_IF_ERROR(read_optimizer(one, 0));
  for (const NodeId id : list(tree_.find(root, "lr_schedulers"))) {
    SchedulerState scheduler;
    scheduler.node = id;
    scheduler.last_epoch = tree_.as_int(tree_.find(id, "last_epoch"));
    scheduler.step_count = tree_.as_int(tree_.find(id, "_step_count"));
    scheduler.base_lrs = numbers(tree_.find(id, "base_lrs"));
    scheduler.last_lrs = numbers(tree_.find(id, "_last_lr"));
    out_.schedulers.push_back(std::move(scheduler));
  }
  // Under the plugin's class name: Lightning 2, Lightning 1.6 and later, and before.
  for (const char* key : {"MixedPrecision", "NativeMixedPrecisionPlugin", "MixedPrecisionPlugin",
                          "native_amp_scaling_state"}) {
    const NodeId id = tree_.find(root, key);
    if (id != kNoNode && !out_.scaler) AERIE_RETURN_IF_ERROR(read_scaler(id));
  }
  const NodeId mmcv = tree_.find(tree_.find(tree_.find(root, "meta"), "fp16"), "loss_scaler");
  if (mmcv != kNoNode && !out_.scaler) AERIE_RETURN_IF_ERROR(read_scaler(mmcv));
  return ok_status();
}

}  // namespace

std::optional<double> ParamGroup::number(std::string_view name) const {
  for (const auto& [key, value] : numbers)
    if (key == name) return value;
  return std::nullopt;
}

const TensorInfo* LightningCheckpoint::moment(const OptimizerState& optimizer, int64_t param,
                                              std::string_view name) const {
  for (const ParamState& state : optimizer.params) {
    if (state.param != param) continue;
    for (const TensorInfo& info : state.tensors)
      if (info.name == name) return &info;
  }
  return nullptr;
}

Result<LightningCheckpoint> as_lightning_checkpoint(TorchFile file) {
  LightningCheckpoint checkpoint;
  checkpoint.file = std::move(file);
  AERIE_RETURN_IF_ERROR(Reader(checkpoint).run());
  return checkpoint;
}

Result<LightningCheckpoint> read_lightning_checkpoint(SourcePtr source) {
  AERIE_ASSIGN_OR_RETURN(TorchFile file, read_torch_file(std::move(source)));
  return as_lightning_checkpoint(std::move(file));
}

Result<LightningCheckpoint> read_lightning_checkpoint(Env& env, const std::string& path) {
  AERIE_ASSIGN_OR_RETURN(SourcePtr source, file_source(env, path));
  return read_lightning_checkpoint(std::move(source));
}

}  // namespace aerie::archive
