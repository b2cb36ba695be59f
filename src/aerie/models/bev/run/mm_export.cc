#include "aerie/models/bev/run/mm_export.h"

#include <algorithm>
#include <ctime>
#include <unordered_map>
#include <utility>

#include <nlohmann/json.hpp>

#include "aerie/archive/omegaconf.h"
#include "aerie/archive/torch_file.h"
#include "aerie/archive/tree_builder.h"
#include "aerie/base/path.h"
#include "aerie/base/strings.h"
#include "aerie/models/bev/bev_model.h"
#include "aerie/models/bev/engine/param_groups.h"
#include "aerie/optim/torch_settings.h"

namespace aerie::bev {
namespace {

using archive::NodeId;
using archive::NodeKind;
using archive::OutTensor;
using archive::TreeBuilder;
using Json = nlohmann::json;
using Kind = config::OptimizerKind;

constexpr const char* kMmcvVersion = "1.7.1";  // whose files these are

// Tensors of a snapshot by the file they belong to.
std::vector<OutTensor> tensors_of(const train::StateSnapshot& snapshot, std::string_view file) {
  std::vector<OutTensor> out;
  for (const train::SnapshotTensor& tensor : snapshot.tensors())
    if (tensor.file == file)
      out.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.data, {}});
  return out;
}

std::string time_text() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&now, &parts);
  char text[64];
  std::strftime(text, sizeof text, "%a %b %e %H:%M:%S %Y", &parts);
  return text;
}

NodeId scaler_node(TreeBuilder& out, const Json& saved, const LossScaleConfig& config) {
  const NodeId scaler = out.dict();
  out.set(scaler, "scale", out.tree.add_float(saved.value("scale", config.initial)));
  out.set(scaler, "growth_factor", out.tree.add_float(config.growth_factor));
  out.set(scaler, "backoff_factor", out.tree.add_float(config.backoff_factor));
  out.set(scaler, "growth_interval", out.tree.add_int(config.growth_interval));
  out.set(scaler, "_growth_tracker", out.tree.add_int(saved.value("growth_tracker", int64_t{0})));
  return scaler;
}

NodeId setting_node(TreeBuilder& out, const config::Value& value) {
  if (!value.is_list()) return archive::add_plain_value(out.tree, value);
  const NodeId tuple = out.tree.add_container(NodeKind::kTuple);
  for (const config::Value& item : value.as_list())
    out.append(tuple, archive::add_plain_value(out.tree, item));
  return tuple;
}

}  // namespace

Result<MmExport> MmExport::make(const BevRunConfig& run, std::string config_yaml, RatesAt rates) {
  MmExport out;
  out.run_ = run;
  out.config_yaml_ = std::move(config_yaml);
  out.rates_ = std::move(rates);
  const auto declare = [&](const nn::ParameterRegistry& registry) -> Status {
    const std::vector<optim::OptimizerGroup> groups = parameter_groups(registry, run.optim);
    const std::vector<std::string> undecayed = undecayed_names(registry, run.optim);
    std::unordered_map<int64_t, size_t> group_of;
    for (size_t g = 0; g < groups.size(); ++g) {
      out.base_rates_.push_back(groups[g].settings.lr);
      for (const int64_t entry : groups[g].entries) group_of[entry] = g;
    }
    for (const int64_t entry : registry.parameters()) {
      Parameter parameter;
      parameter.name = registry.entries()[static_cast<size_t>(entry)].name;
      parameter.group = group_of.at(entry);
      optim::GroupSettings settings = groups[parameter.group].settings;
      if (std::find(undecayed.begin(), undecayed.end(), parameter.name) != undecayed.end())
        settings.weight_decay = 0.0;
      parameter.settings = optim::torch_settings(run.optim.kind, settings);
      out.one_group_ =
          out.one_group_ &&
          (out.parameters_.empty() ||
           (parameter.group == out.parameters_.front().group &&
            config::Value(parameter.settings) == config::Value(out.parameters_.front().settings)));
      out.parameters_.push_back(std::move(parameter));
    }
    return unsupported("only the names are wanted");
  };
  (void)BevModel::create(run.model, 0, at::kCPU, declare);
  if (out.parameters_.empty()) return internal_error("the model declares no parameters");
  return out;
}

Status MmExport::write(Env& env, const std::string& path, const train::MmMark& mark,
                       const train::TrainState& state, const train::StateSnapshot& snapshot) const {
  const Json scalars = Json::parse(snapshot.scalars_json(), nullptr, false);
  if (!scalars.is_object() || !scalars.contains("optimizer") || !scalars["optimizer"].is_object())
    return data_error("the engine's state is damaged");
  TreeBuilder out;
  const NodeId root = out.dict(), meta = out.dict();
  const bool epoch_over = state.epoch_batches > 0 && state.batch_in_epoch >= state.epoch_batches;
  const bool between = state.batch_in_epoch == 0 && state.epoch > 0;
  out.set(meta, "config", out.tree.add_string(config_yaml_));
  out.set(meta, "seed", out.tree.add_int(static_cast<int64_t>(run_.aerie.seed)));
  out.set(meta, "exp_name", out.tree.add_string(run_.name));
  const NodeId classes = out.tree.add_container(NodeKind::kTuple);
  for (const std::string& name : run_.model.classes) out.append(classes, out.tree.add_string(name));
  out.set(meta, "CLASSES", classes);
  const NodeId messages = out.dict();
  const Json early = Json::parse(state.early_stopping_json, nullptr, false);
  if (early.is_object() && early.contains("best") && early["best"].is_number())
    out.set(messages, "best_score", out.tree.add_float(early["best"].get<double>()));
  out.set(messages, "last_ckpt", out.tree.add_string(path));
  out.set(meta, "hook_msgs", messages);
  if (scalars.contains("scaler") && scalars["scaler"].is_object()) {
    const NodeId fp16 = out.dict();
    out.set(fp16, "loss_scaler", scaler_node(out, scalars["scaler"], run_.loss_scale));
    out.set(meta, "fp16", fp16);
  }
  out.set(meta, "mmcv_version", out.tree.add_string(kMmcvVersion));
  out.set(meta, "time", out.tree.add_string(time_text()));
  // The epoch that mmcv goes on with: of an unfinished one the next, as its runners write it.
  out.set(meta, "epoch", out.tree.add_int(state.epoch + (epoch_over || !between ? 1 : 0)));
  out.set(meta, "iter", out.tree.add_int(state.step));
  const NodeId ours = out.dict();
  out.set(ours, "checkpoint", out.tree.add_string(mark.native));
  out.set(ours, "step", out.tree.add_int(mark.step));
  out.set(meta, "aerie", ours);
  out.set(root, "meta", meta);

  const NodeId weights = out.tree.add_dict(/*ordered=*/true);
  for (OutTensor& tensor : tensors_of(snapshot, "model")) {
    const std::string name = tensor.name;
    out.set(weights, name, out.tensor(std::move(tensor)));
  }
  out.set(root, "state_dict", weights);

  std::unordered_map<std::string, OutTensor> moments;
  for (OutTensor& tensor : tensors_of(snapshot, "optimizer")) {
    const std::string name = tensor.name;
    moments.emplace(name, std::move(tensor));
  }
  const bool stateless = run_.optim.kind == Kind::kSgd && run_.optim.momentum == 0.0;
  // save_weights_only leaves it out, as mmcv's save_optimizer=False does.
  if (!moments.empty() || stateless || state.step == 0) {
    const Rates rates = rates_(std::max<int64_t>(0, state.step - 1));
    const Json common = scalars["optimizer"].value("step", Json(0));
    const Json others = scalars["optimizer"].value("steps", Json::object());
    const NodeId per_param = out.dict(), groups = out.tree.add_list();
    NodeId group = archive::kNoNode, params = archive::kNoNode;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const Parameter& parameter = parameters_[i];
      if (i == 0 || !one_group_) {
        group = out.dict();
        params = out.tree.add_list();
        const auto rate = [&](const std::vector<double>& all) {
          return out.tree.add_float(parameter.group < all.size() ? all[parameter.group]
                                                                 : base_rates_[parameter.group]);
        };
        out.set(group, "lr", rate(rates.learning_rates));
        for (const config::MapEntry& setting : parameter.settings) {
          config::Value value = setting.value;
          if (rates.momentum && setting.key == "momentum") value = config::Value(*rates.momentum);
          if (rates.momentum && setting.key == "betas")
            value.as_list()[0] = config::Value(*rates.momentum);
          out.set(group, setting.key, setting_node(out, value));
        }
        out.set(group, "initial_lr", rate(base_rates_));
        out.set(group, "params", params);
        out.append(groups, group);
      }
      const auto number = static_cast<int64_t>(i);
      out.append(params, out.tree.add_int(number));
      const Json& count = others.contains(parameter.name) ? others.at(parameter.name) : common;
      const double steps = count.is_number() ? count.get<double>() : 0.0;
      if (steps <= 0.0) continue;
      const NodeId entry = out.dict();
      bool any = false;
      for (const char* kind : {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer"}) {
        const auto found = moments.find(str_cat(kind, ".", parameter.name));
        if (found == moments.end()) continue;
        if (!any && run_.optim.kind != Kind::kSgd)
          out.set(entry, "step", out.scalar(static_cast<float>(steps)));
        any = true;
        out.set(entry, kind, out.tensor(found->second));
      }
      if (any) out.set(per_param, number, entry);
    }
    const NodeId optimizer = out.dict();
    out.set(optimizer, "state", per_param);
    out.set(optimizer, "param_groups", groups);
    out.set(root, "optimizer", optimizer);
  }
  AERIE_ASSIGN_OR_RETURN(
      const archive::TorchWriter writer,
      archive::TorchWriter::make(out.tree, root, std::move(out.tensors), file_stem(path)));
  return archive::write_atomically(env, path,
                                   [&](const archive::Sink& sink) { return writer.write(sink); });
}

}  // namespace aerie::bev
