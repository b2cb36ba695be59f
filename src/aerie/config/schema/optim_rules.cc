#include "aerie/config/schema/optim_rules.h"

#include "aerie/base/strings.h"
#include "aerie/config/schema/engine_keys.h"
#include "aerie/config/schema/type_spec.h"

namespace aerie::config {

std::span<const OptimizerRule> optimizer_rules() {
  static constexpr OptimizerRule kRules[] = {
      {OptimizerKind::kAdamW, "adamw", "AdamW",
       "betas|eps|weight_decay|amsgrad|maximize|foreach|fused|capturable|differentiable"},
      {OptimizerKind::kAdam, "adam", "Adam",
       "betas|eps|weight_decay|amsgrad|maximize|foreach|fused|capturable|differentiable|"
       "decoupled_weight_decay"},
      {OptimizerKind::kSgd, "sgd", "SGD",
       "momentum|dampening|weight_decay|nesterov|maximize|foreach|fused|differentiable"},
      {OptimizerKind::kNovograd, "novograd", "Novograd",
       "betas|eps|weight_decay|grad_averaging|amsgrad|luc|luc_trust|luc_eps"},
  };
  return kRules;
}

std::span<const ScheduleRule> schedule_rules() {
  using K = ScheduleKind;
  constexpr std::string_view kWarmup = "warmup_steps|warmup_ratio|min_lr|last_epoch";
  constexpr std::string_view kHold =
      "warmup_steps|warmup_ratio|hold_steps|hold_ratio|min_lr|last_epoch";
  static constexpr ScheduleRule kRules[] = {
      {K::kWarmupPolicy, "WarmupPolicy", kWarmup},
      {K::kWarmupHoldPolicy, "WarmupHoldPolicy", kHold},
      {K::kSquareAnnealing, "SquareAnnealing", kWarmup},
      {K::kSquareRootAnnealing, "SquareRootAnnealing", kWarmup},
      {K::kCosineAnnealing, "CosineAnnealing",
       "warmup_steps|warmup_ratio|constant_steps|constant_ratio|min_lr|last_epoch"},
      {K::kNoamAnnealing, "NoamAnnealing", "d_model|warmup_steps|warmup_ratio|min_lr|last_epoch"},
      {K::kNoamHoldAnnealing, "NoamHoldAnnealing",
       "warmup_steps|warmup_ratio|hold_steps|hold_ratio|decay_rate|min_lr|last_epoch"},
      {K::kWarmupHoldAnnealOneMinusSquareRoot, "WarmupHoldAnnealOneMinusSquareRoot", kHold},
      {K::kWarmupHoldAnnealLinear, "WarmupHoldAnnealLinear", kHold},
      {K::kWarmupAnnealing, "WarmupAnnealing", kWarmup},
      {K::kInverseSquareRootAnnealing, "InverseSquareRootAnnealing", kWarmup},
      {K::kT5InverseSquareRootAnnealing, "T5InverseSquareRootAnnealing",
       "constant_steps|constant_ratio|min_lr|last_epoch"},
      {K::kPolynomialDecayAnnealing, "PolynomialDecayAnnealing",
       "warmup_steps|warmup_ratio|power|cycle|min_lr|last_epoch"},
      {K::kPolynomialHoldDecayAnnealing, "PolynomialHoldDecayAnnealing",
       "warmup_steps|warmup_ratio|hold_steps|hold_ratio|power|cycle|min_lr|last_epoch"},
      {K::kStepLR, "StepLR", "step_size|gamma|last_epoch|verbose"},
      {K::kExponentialLR, "ExponentialLR", "gamma|last_epoch|verbose"},
      {K::kReduceLROnPlateau, "ReduceLROnPlateau",
       "mode|factor|patience|threshold|threshold_mode|cooldown|min_lr|eps|verbose"},
      {K::kCyclicLR, "CyclicLR",
       "base_lr|max_lr|step_size_up|step_size_down|mode|gamma|scale_mode|cycle_momentum|"
       "base_momentum|max_momentum|last_epoch|verbose"},
  };
  return kRules;
}

const OptimizerRule* find_optimizer(std::string_view name) {
  for (const OptimizerRule& rule : optimizer_rules())
    if (rule.name == name) return &rule;
  return nullptr;
}

const ScheduleRule* find_schedule(std::string_view name) {
  for (const ScheduleRule& rule : schedule_rules())
    if (rule.name == name) return &rule;
  return nullptr;
}

const OptimizerRule* optimizer_of(const Value& optim) {
  const Value* target = optim.child("_target_");
  if (target != nullptr && target->is_string()) {
    const std::string_view class_name =
        find_target(engine_targets(), "model.optim", target->as_string());
    for (const OptimizerRule& rule : optimizer_rules())
      if (rule.class_name == class_name) return &rule;
    return nullptr;
  }
  const Value* name = optim.child("name");
  if (name == nullptr || name->is_null() || name->is_missing()) return find_optimizer("adam");
  return name->is_string() ? find_optimizer(name->as_string()) : nullptr;
}

std::string_view arguments_below(const Value& node) {
  const Value* args = node.child("args");
  return args != nullptr && args->is_map() ? ".args.params" : "";
}

const Value* argument_of(const Value& node, std::string_view name) {
  const Value* args = node.child("args");
  if (args == nullptr || !args->is_map()) return node.child(name);
  const Value* params = args->child("params");
  return params != nullptr && params->is_map() ? params->child(name) : nullptr;
}

bool is_optimizer_meta(std::string_view key) {
  return is_choice(key,
                   "name|_target_|lr|sched|args|_convert_|_recursive_|_partial_|"
                   // Keys of families with schedules of their own; elsewhere they have no rows.
                   "lr_scaling|momentum_sched|param_groups");
}

bool is_schedule_meta(std::string_view key) {
  return is_choice(key,
                   "name|args|max_steps|monitor|reduce_on_plateau|iters_per_batch|t_max_epochs|"
                   "t_accumulate_grad_batches|t_limit_train_batches|t_num_workers");
}

}  // namespace aerie::config
