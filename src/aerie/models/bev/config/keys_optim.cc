// The keys of `model.optim` that are mmcv's: schedules, scaling of the rate, multipliers.
#include <array>

#include "aerie/base/strings.h"
#include "aerie/config/schema/type_spec.h"
#include "aerie/models/bev/config/bev_keys.h"
#include "aerie/models/bev/config/policies.h"

namespace aerie::bev {
namespace {

using config::FieldKeys;
using config::KeySpec;
using config::KeyStatus;
using config::NodeReader;
using config::Value;
using config::works;
using optim::MmAnneal;
using optim::MmPolicy;
using optim::MmPolicyConfig;
using optim::MmWarmup;

void read_policy(const NodeReader& node, std::string_view key, MmPolicyConfig& out) {
  const Value* value = node.find(key);
  if (value == nullptr || !value->is_string()) return;
  const Policy* policy = find_policy(value->as_string());
  if (policy == nullptr) return node.fail(key, *value);
  out.policy = policy->policy;
}

void read_step(const NodeReader& node, std::string_view key, MmPolicyConfig& out) {
  const Value* value = node.find(key);
  if (value == nullptr || value->is_null()) return;
  out.step_is_interval = value->is_number();
  node.read(key, out.step);
}

// One number is the highest ratio; the lowest is then a hundred-thousandth of it.
void read_target_ratio(const NodeReader& node, std::string_view key, MmPolicyConfig& out) {
  if (!node.given(key)) return;
  std::vector<double> values;
  node.read(key, values);
  if (values.empty() || values.size() > 2)
    return node.fail(key, *node.find(key), "one or two numbers are expected");
  out.target_ratio = {values[0], values.size() == 2 ? values[1] : values[0] / 1e5};
}

void read_max_lr(const NodeReader& node, std::string_view key, MmPolicyConfig& out) {
  node.read(key, out.max_lr);
}

void read_warmup_ratio(const NodeReader& node, std::string_view key, MmPolicyConfig& out) {
  node.read(key, out.warmup_ratio);
}

FieldKeys<MmPolicyConfig> policy_keys(std::string_view node, bool momentum) {
  using T = MmPolicyConfig;
  FieldKeys<T> keys(node);
  keys.row("name", "str", "",
           works(momentum ? "Which policy sets momentum, or the first beta."
                          : "Which policy of mmcv sets the learning rate.")
               .choices(momentum ? momentum_policy_names() : policy_names())
               .required(),
           read_policy);
  keys.row("by_epoch", "bool|null", "null",
           works("Progress counts whole epochs; null: only where trainer.max_epochs bounds the run "
                 "and trainer.max_steps does not."));
  keys.choice(
      "warmup", &T::warmup,
      {{"constant", MmWarmup::kConstant}, {"linear", MmWarmup::kLinear}, {"exp", MmWarmup::kExp}},
      works("How the first iterations approach the policy's value; null: not at all.")
          .nullable()
          .no_default());
  keys.key("warmup_iters", &T::warmup_iters, works("Iterations of the warm-up.").range(">=0"));
  keys.row("warmup_ratio", "float", momentum ? "0.9" : "0.1",
           works(momentum ? "The first value is the policy's divided by this, since momentum falls "
                            "where rates rise."
                          : "Share of the policy's value that the warm-up begins with.")
               .range("(0,1]"),
           read_warmup_ratio);
  keys.key("warmup_by_epoch", &T::warmup_by_epoch,
           works("warmup_iters counts epochs instead of iterations."));
  keys.key("gamma", &T::gamma,
           works(momentum ? "step: what each drop multiplies by (0.5); cyclic: height of a cycle "
                            "beside the last one's (1)."
                          : "step: what each drop multiplies by (0.1); exp, inv: required; cyclic: "
                            "height of a cycle beside the last one's (1)."));
  keys.row("step", "int|list[int]|null", "null",
           works("step: where the value drops, or the distance of drops.").range(">=1"), read_step);
  if (momentum) {
    keys.key("min_momentum", &T::min_value, works("Least momentum of the policy.").range(">=0"));
    keys.key("min_momentum_ratio", &T::min_ratio,
             works("The same as a share of the optimizer's.").range("[0,1]"));
    keys.key("base_momentum", &T::base_momentum,
             works("OneCycle: momentum where the rate is highest.").range("[0,1)"));
    keys.key("max_momentum", &T::max_momentum,
             works("OneCycle: momentum where the rate is lowest.").range("[0,1)"));
  } else {
    keys.key("power", &T::power, works("poly, inv: exponent of the fall.").range(">=0"));
    keys.key("min_lr", &T::min_value, works("Least rate of the policy.").range(">=0"));
    keys.key("min_lr_ratio", &T::min_ratio,
             works("The same as a share of model.optim.lr.").range("[0,1]"));
    keys.key("start_percent", &T::start_percent,
             works("FlatCosineAnnealing: share of the run before the fall.").range("[0,1]"));
    keys.key("periods", &T::periods,
             works("CosineRestart: lengths of the falls.").range(">=1").nullable());
    keys.key("restart_weights", &T::restart_weights,
             works("CosineRestart: height of every fall.").range(">=0"));
    keys.row("max_lr", "float|list[float]|null", "null",
             works("OneCycle: highest rate, of all groups or of each.").range(">=0"), read_max_lr);
    keys.key("total_steps", &T::total_steps,
             works("OneCycle: length of the cycle; null: of the run.").range(">=1"));
    keys.key("div_factor", &T::div_factor,
             works("OneCycle: max_lr over the first rate.").range(">0"));
    keys.key("final_div_factor", &T::final_div_factor,
             works("OneCycle: first rate over the last.").range(">0"));
  }
  keys.row("target_ratio", "float|list[float]|null", "null",
           works(momentum ? "cyclic: lowest and last momentum over the optimizer's; null: "
                            "[0.85/0.95, 1]."
                          : "cyclic: highest and last rate over model.optim.lr; null: [10, 1e-4].")
               .range(">0"),
           read_target_ratio);
  keys.key("cyclic_times", &T::cyclic_times,
           works("cyclic: cycles of the whole run.").range(">=1"));
  keys.key("step_ratio_up", &T::step_ratio_up,
           works("cyclic: share of a cycle before its turn.").range("[0,1)"));
  keys.choice("anneal_strategy", &T::anneal,
              {{"cos", MmAnneal::kCos}, {"linear", MmAnneal::kLinear}},
              works("cyclic, OneCycle: along a cosine or a straight line."));
  keys.key("pct_start", &T::pct_start,
           works("OneCycle: share of the run in which the rate rises.").range("[0,1]"));
  keys.key("three_phase", &T::three_phase,
           works("OneCycle: fall to the first rate, then to the last."));
  return keys;
}

const FieldKeys<MmPolicyConfig>& rate_keys() {
  static const FieldKeys<MmPolicyConfig> table = policy_keys("model.optim.sched", false);
  return table;
}
const FieldKeys<MmPolicyConfig>& momentum_keys() {
  static const FieldKeys<MmPolicyConfig> table = policy_keys("model.optim.momentum_sched", true);
  return table;
}

const FieldKeys<LrScalingConfig>& scaling_keys() {
  using T = LrScalingConfig;
  static const FieldKeys<T> table("model.optim.lr_scaling", [](FieldKeys<T>& keys) {
    keys.choice("rule", &T::rule,
                {{"none", LrScalingRule::kNone},
                 {"linear", LrScalingRule::kLinear},
                 {"sqrt", LrScalingRule::kSqrt}},
                works("How model.optim.lr grows with the batch: not at all, as the batch, or as "
                      "its square root."));
    keys.key("base_batch", &T::base_batch,
             works("The batch for which model.optim.lr is meant.").range(">=1"));
    keys.key("count_accumulation", &T::count_accumulation,
             works("Accumulated micro-batches count as one larger batch."));
  });
  return table;
}

void read_custom_keys(const NodeReader& node, std::string_view key, ParamGroupsConfig& out) {
  const NodeReader all = node.child(key);
  if (!all.is_map()) return;
  out.custom_keys.clear();
  for (const config::MapEntry& entry : all.node()->as_map()) {
    ParamRule rule;
    rule.part = entry.key;
    const NodeReader one = all.child(entry.key);
    one.read("lr_mult", rule.lr_mult);
    if (one.given("decay_mult")) one.read("decay_mult", rule.decay_mult.emplace(1.0));
    out.custom_keys.push_back(std::move(rule));
  }
}

const FieldKeys<ParamGroupsConfig>& group_keys() {
  using T = ParamGroupsConfig;
  static const FieldKeys<T> table("model.optim.param_groups", [](FieldKeys<T>& keys) {
    keys.row("custom_keys", "map|null", "null",
             works("Parts of parameter names with own multipliers; the longest that fits wins."),
             read_custom_keys);
    keys.row("custom_keys.*.lr_mult", "float", "1.0",
             works("Multiplies the learning rate of these parameters.").range(">=0"));
    keys.row("custom_keys.*.decay_mult", "float", "1.0",
             works("Multiplies the weight decay of these parameters.").range(">=0"));
    keys.key("bias_lr_mult", &T::bias_lr_mult,
             works("Multiplies the rate of biases outside norms.").range(">=0"));
    keys.key("bias_decay_mult", &T::bias_decay_mult,
             works("Multiplies the weight decay of biases outside norms.").range(">=0"));
    keys.key("norm_decay_mult", &T::norm_decay_mult,
             works("Multiplies the weight decay of norms.").range(">=0"));
    keys.key("dwconv_decay_mult", &T::dwconv_decay_mult,
             works("Multiplies the weight decay of depthwise convolutions.").range(">=0"));
  });
  return table;
}

constexpr KeySpec kNodes[] = {
    {"model.optim.lr_scaling", "map|null", "null", "", "", KeyStatus::kWorks,
     "Learning rate by the size of the batch; `linear` or `sqrt` alone is its rule; null: "
     "model.optim.lr as it is written."},
    {"model.optim.param_groups", "map|null", "null", "", "", KeyStatus::kWorks,
     "Multipliers of rate and weight decay by parameter (mmcv's paramwise_cfg)."},
    {"model.optim.sched", "map|null", "null", "", "", KeyStatus::kWorks,
     "The learning-rate policy; null or absent: constant."},
    {"model.optim.momentum_sched", "map|null", "null", "", "", KeyStatus::kWorks,
     "The momentum policy; null or absent: constant."},
};

}  // namespace

std::vector<KeySpec> optim_rows() {
  std::vector<KeySpec> out;
  out.push_back(kNodes[0]);
  append_rows(out, scaling_keys().rows());
  out.push_back(kNodes[1]);
  append_rows(out, group_keys().rows());
  out.push_back(kNodes[2]);
  append_rows(out, rate_keys().rows());
  out.push_back(kNodes[3]);
  append_rows(out, momentum_keys().rows());
  return out;
}

void read_optim(const NodeReader& optim, BevOptimConfig& out) {
  scaling_keys().read(optim.child("lr_scaling"), out.lr_scaling);
  group_keys().read(optim.child("param_groups"), out.param_groups);
  if (const NodeReader sched = optim.child("sched"); sched.is_map()) {
    out.rate.emplace();
    rate_keys().read(sched, *out.rate);
  }
  if (const NodeReader sched = optim.child("momentum_sched"); sched.is_map()) {
    out.momentum_rate.emplace();
    out.momentum_rate->warmup_ratio = 0.9;  // mmcv's, where rates begin at a tenth
    momentum_keys().read(sched, *out.momentum_rate);
  }
}

}  // namespace aerie::bev
