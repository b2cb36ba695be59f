#include "aerie/models/bev/config/policies.h"

#include <string>
#include <vector>

#include "aerie/base/strings.h"

namespace aerie::bev {
namespace {

using optim::MmPolicy;

constexpr Policy kPolicies[] = {
    {MmPolicy::kFixed, "fixed", "", "-"},
    {MmPolicy::kStep, "step", "step|gamma|min_lr", "step|gamma|min_momentum"},
    {MmPolicy::kExp, "exp", "gamma", "-"},
    {MmPolicy::kInv, "inv", "gamma|power", "-"},
    {MmPolicy::kPoly, "poly", "power|min_lr", "-"},
    {MmPolicy::kCosineAnnealing, "CosineAnnealing", "min_lr|min_lr_ratio",
     "min_momentum|min_momentum_ratio"},
    {MmPolicy::kFlatCosineAnnealing, "FlatCosineAnnealing", "start_percent|min_lr|min_lr_ratio",
     "-"},
    {MmPolicy::kCosineRestart, "CosineRestart", "periods|restart_weights|min_lr|min_lr_ratio", "-"},
    {MmPolicy::kLinearAnnealing, "LinearAnnealing", "min_lr|min_lr_ratio",
     "min_momentum|min_momentum_ratio"},
    {MmPolicy::kCyclic, "cyclic", "target_ratio|cyclic_times|step_ratio_up|anneal_strategy|gamma",
     "target_ratio|cyclic_times|step_ratio_up|anneal_strategy|gamma"},
    {MmPolicy::kOneCycle, "OneCycle",
     "max_lr|total_steps|pct_start|anneal_strategy|div_factor|final_div_factor|three_phase",
     "base_momentum|max_momentum|pct_start|anneal_strategy|three_phase"},
};

std::string names(bool momentum) {
  std::vector<std::string> out;
  for (const Policy& policy : kPolicies) {
    if (momentum && policy.momentum_arguments == "-") continue;
    out.emplace_back(policy.name);
    if (const std::string lower = to_lower(policy.name); lower != policy.name) out.push_back(lower);
  }
  return join(out, "|");
}

}  // namespace

const Policy* find_policy(std::string_view name) {
  for (const Policy& policy : kPolicies)
    if (to_lower(policy.name) == to_lower(name)) return &policy;
  return nullptr;
}

std::string_view policy_names() {
  static const std::string kNames = names(false);
  return kNames;
}

std::string_view momentum_policy_names() {
  static const std::string kNames = names(true);
  return kNames;
}

}  // namespace aerie::bev
