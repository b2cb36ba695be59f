#include "aerie/models/bev/engine/param_groups.h"

#include <algorithm>

#include "aerie/base/strings.h"
#include "aerie/models/bev/bev_model.h"
#include "aerie/optim/group_settings.h"

namespace aerie::bev {
namespace {

struct Multipliers {
  double lr = 1.0, decay = 1.0;
  bool operator==(const Multipliers&) const = default;
};

// Norms are the only modules whose weight has one axis.
bool is_norm(const nn::ParameterRegistry& registry, const std::string& name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string::npos) return false;
  const int64_t weight = registry.find(name.substr(0, dot) + ".weight");
  return weight >= 0 && registry.entries()[static_cast<size_t>(weight)].shape.size() == 1;
}

bool is_depthwise(const nn::ParamInfo& info) {
  return info.shape.size() == 4 && info.shape[1] == 1 && info.shape[0] > 1;
}

// The longest part that fits, of equally long ones the first of the alphabet.
const ParamRule* rule_of(const ParamGroupsConfig& config, const std::string& name) {
  const ParamRule* best = nullptr;
  for (const ParamRule& rule : config.custom_keys) {
    if (name.find(rule.part) == std::string::npos) continue;
    if (best == nullptr || rule.part.size() > best->part.size() ||
        (rule.part.size() == best->part.size() && rule.part < best->part))
      best = &rule;
  }
  return best;
}

Multipliers multipliers_of(const nn::ParameterRegistry& registry, const ParamGroupsConfig& config,
                           const nn::ParamInfo& info) {
  if (const ParamRule* rule = rule_of(config, info.name); rule != nullptr)
    return {rule->lr_mult, rule->decay_mult.value_or(1.0)};
  const bool bias = ends_with(info.name, ".bias");
  Multipliers out;
  if (is_norm(registry, info.name)) {
    out.decay = config.norm_decay_mult;
    return out;
  }
  if (bias) out.lr = config.bias_lr_mult;
  if (is_depthwise(info))
    out.decay = config.dwconv_decay_mult;
  else if (bias)
    out.decay = config.bias_decay_mult;
  return out;
}

}  // namespace

std::vector<optim::OptimizerGroup> parameter_groups(const nn::ParameterRegistry& registry,
                                                    const BevOptimConfig& config) {
  std::vector<Multipliers> kinds(1);
  std::vector<optim::OptimizerGroup> out(1);
  out[0].settings = optim::group_settings(config);
  for (const int64_t index : registry.parameters()) {
    const nn::ParamInfo& info = registry.entries()[static_cast<size_t>(index)];
    const Multipliers wanted = multipliers_of(registry, config.param_groups, info);
    const auto found = std::find(kinds.begin(), kinds.end(), wanted);
    const auto at = static_cast<size_t>(found - kinds.begin());
    if (found == kinds.end()) {
      kinds.push_back(wanted);
      optim::OptimizerGroup group;
      group.name = str_cat("lr x ", wanted.lr, ", decay x ", wanted.decay);
      group.settings = out[0].settings;
      group.settings.lr *= wanted.lr;
      group.settings.weight_decay *= wanted.decay;
      out.push_back(std::move(group));
    }
    out[at].entries.push_back(index);
  }
  if (out[0].entries.empty() && out.size() > 1) out.erase(out.begin());
  return out;
}

std::vector<std::string> undecayed_names(const nn::ParameterRegistry& registry,
                                         const BevOptimConfig& config) {
  const std::vector<std::string> parts = undecayed_parameters();
  std::vector<std::string> out;
  for (const int64_t index : registry.parameters()) {
    const std::string& name = registry.entries()[static_cast<size_t>(index)].name;
    const bool fits = std::any_of(parts.begin(), parts.end(), [&](const std::string& part) {
      return name.find(part) != std::string::npos;
    });
    const ParamRule* rule = rule_of(config.param_groups, name);
    if (fits && (rule == nullptr || !rule->decay_mult)) out.push_back(name);
  }
  return out;
}

}  // namespace aerie::bev
