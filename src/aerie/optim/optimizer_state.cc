#include "aerie/optim/optimizer_state.h"

#include <cmath>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <nlohmann/json.hpp>

#include "aerie/base/strings.h"

namespace aerie::optim {
namespace {

const std::string& trainable_name(const Optimizer& optimizer, size_t t) {
  const nn::ParameterRegistry& registry = optimizer.registry();
  return registry.entries()[static_cast<size_t>(registry.trainable()[t])].name;
}

// Beyond this float32 no longer counts exactly; no run gets there.
constexpr double kMaxSteps = 16777216.0;

bool plausible(double steps) {
  return std::isfinite(steps) && steps >= 0.0 && steps <= kMaxSteps && steps == std::floor(steps);
}

Result<at::Tensor> read_float(const archive::TensorArchive& archive,
                              const archive::TensorInfo& info) {
  at::ScalarType type;
  switch (info.dtype) {
    case Dtype::kF32:
      type = at::kFloat;
      break;
    case Dtype::kF64:
      type = at::kDouble;
      break;
    case Dtype::kF16:
      type = at::kHalf;
      break;
    case Dtype::kBF16:
      type = at::kBFloat16;
      break;
    default:
      return data_error(str_cat(info.name, " has element type ", dtype_name(info.dtype)));
  }
  at::Tensor out = at::empty(info.shape, type);
  AERIE_RETURN_IF_ERROR(archive.read(info, out.mutable_data_ptr(), info.nbytes()));
  return out;
}

}  // namespace

std::string step_counts_json(const Optimizer& optimizer, const at::Tensor& counts) {
  const at::Tensor host = counts.to(at::kCPU, at::kFloat).contiguous();
  const float* values = host.const_data_ptr<float>();
  const size_t num = static_cast<size_t>(host.numel());
  std::map<int64_t, int64_t> votes;
  int64_t common = 0;
  int64_t most = 0;
  for (size_t t = 0; t < num; ++t) {
    const auto count = static_cast<int64_t>(values[t]);
    if (++votes[count] > most) {
      most = votes[count];
      common = count;
    }
  }
  nlohmann::ordered_json out;
  out["name"] = optimizer_name(optimizer.kind());
  out["step"] = common;
  nlohmann::ordered_json others = nlohmann::ordered_json::object();
  for (size_t t = 0; t < num; ++t) {
    const auto count = static_cast<int64_t>(values[t]);
    if (count != common) others[trainable_name(optimizer, t)] = count;
  }
  if (!others.empty()) out["steps"] = std::move(others);
  return out.dump();
}

Result<at::Tensor> parse_step_counts(const Optimizer& optimizer, const std::string& json) {
  const auto bad = [](std::string text) {
    return data_error(std::move(text)).with_context("optimizer state");
  };
  const auto doc = nlohmann::json::parse(json, nullptr, false);
  if (!doc.is_object() || !doc.contains("step") || !doc["step"].is_number() ||
      !plausible(doc["step"].get<double>()))
    return bad("the step count is missing or damaged");
  const std::string name = optimizer_name(optimizer.kind());
  if (doc.contains("name") && doc["name"] != name)
    return bad(str_cat("the checkpoint was written with optimizer ", doc["name"].dump(),
                       ", this run uses ", name))
        .with_hint("keep model.optim.name, or start from the weights alone (init_from_ptl_ckpt)");
  const size_t num = optimizer.registry().trainable().size();
  std::vector<float> counts(num, doc["step"].get<float>());
  if (doc.contains("steps")) {
    if (!doc["steps"].is_object()) return bad("`steps` is no object");
    std::unordered_map<std::string, size_t> by_name;
    for (size_t t = 0; t < num; ++t) by_name[trainable_name(optimizer, t)] = t;
    for (const auto& [key, value] : doc["steps"].items()) {
      const auto found = by_name.find(key);
      if (found == by_name.end()) return bad(str_cat("no trainable parameter ", key));
      if (!value.is_number() || !plausible(value.get<double>()))
        return bad(str_cat("the step count of ", key, " is damaged"));
      counts[found->second] = value.get<float>();
    }
  }
  return at::tensor(counts, at::kFloat);
}

namespace {
Status bad_state(std::string text) {
  return data_error(std::move(text)).with_context("optimizer_states");
}
}  // namespace

Status load_lightning_state(const archive::LightningCheckpoint& checkpoint, Optimizer& optimizer) {
  const auto bad = bad_state;
  if (checkpoint.optimizers.empty()) return bad("the checkpoint has no optimizer state");
  const archive::OptimizerState& saved = checkpoint.optimizers.front();

  std::vector<int64_t> entries;  // torch's number -> registry entry
  for (const OptimizerGroup& group : optimizer.groups())
    entries.insert(entries.end(), group.entries.begin(), group.entries.end());
  if (!saved.groups.empty()) {
    if (saved.groups.size() != optimizer.groups().size())
      return bad(str_cat("the checkpoint has ", saved.groups.size(),
                         " parameter groups, this run has ", optimizer.groups().size()))
          .with_hint("use the model.optim_param_groups of that run");
    for (size_t g = 0; g < saved.groups.size(); ++g) {
      if (saved.groups[g].params.size() == optimizer.groups()[g].entries.size()) continue;
      return bad(str_cat("parameter group ", g, " has ", saved.groups[g].params.size(),
                         " parameters in the checkpoint and ", optimizer.groups()[g].entries.size(),
                         " here"));
    }
    // Numbers follow the groups; a file that numbers otherwise says so in `params`.
    std::vector<int64_t> order;
    for (const archive::ParamGroup& group : saved.groups)
      order.insert(order.end(), group.params.begin(), group.params.end());
    std::vector<int64_t> by_number(entries.size(), -1);
    for (size_t i = 0; i < order.size(); ++i) {
      if (order[i] < 0 || order[i] >= static_cast<int64_t>(entries.size()) ||
          by_number[static_cast<size_t>(order[i])] >= 0)
        return bad(str_cat("parameter number ", order[i], " is out of range or repeated"));
      by_number[static_cast<size_t>(order[i])] = entries[i];
    }
    entries = std::move(by_number);
  }
  return load_numbered_state(checkpoint, entries, optimizer);
}

Status load_numbered_state(const archive::LightningCheckpoint& checkpoint,
                           const std::vector<int64_t>& entries, Optimizer& optimizer) {
  at::NoGradGuard no_grad;
  const auto bad = bad_state;
  const nn::ParameterRegistry& registry = optimizer.registry();
  if (checkpoint.optimizers.empty()) return bad("the checkpoint has no optimizer state");
  const archive::OptimizerState& saved = checkpoint.optimizers.front();
  std::unordered_map<std::string, at::Tensor> targets;
  for (NamedState& state : optimizer.state()) targets.emplace(state.name, state.tensor);
  std::unordered_map<int64_t, size_t> number_of;
  for (size_t t = 0; t < registry.trainable().size(); ++t) number_of[registry.trainable()[t]] = t;

  std::vector<float> counts(registry.trainable().size(), 0.0f);
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // target, value
  for (const archive::ParamState& param : saved.params) {
    if (param.param < 0 || param.param >= static_cast<int64_t>(entries.size()))
      return bad(str_cat("state for parameter ", param.param, " of ", entries.size()));
    const int64_t entry = entries[static_cast<size_t>(param.param)];
    if (entry < 0) continue;
    const std::string& name = registry.entries()[static_cast<size_t>(entry)].name;
    const auto number = number_of.find(entry);
    if (number == number_of.end()) continue;  // frozen here: nothing to keep
    // SGD writes no step; a momentum buffer tells that there was one.
    const double steps = param.step.value_or(param.tensors.empty() ? 0.0 : 1.0);
    if (!plausible(steps)) return bad(str_cat(name, ": step ", steps));
    counts[number->second] = static_cast<float>(steps);
    for (const archive::TensorInfo& info : param.tensors) {
      const auto target = targets.find(str_cat(info.name, ".", name));
      if (target == targets.end())
        return bad(str_cat(name, " has ", info.name, ", which ", optimizer_name(optimizer.kind()),
                           " does not use"))
            .with_hint("use the optimizer and the settings of that run");
      if (at::IntArrayRef(info.shape) != target->second.sizes())
        return bad(str_cat(info.name, " of ", name, " has shape ", archive::shape_text(info.shape),
                           " instead of ", archive::shape_text(target->second.sizes().vec())));
      auto value = read_float(checkpoint.file.tensors, info);
      if (!value.ok()) return value.status().with_context(name);
      copies.emplace_back(target->second, std::move(value).value());
    }
  }
  optimizer.reset();
  for (auto& [target, value] : copies) target.copy_(value);
  optimizer.set_step_counts(at::tensor(counts, at::kFloat));
  return ok_status();
}

}  // namespace aerie::optim
