// `model.optim`, `model.optim.sched` and `model.optim_param_groups`. Defaults depend on the
// optimizer's and the schedule's name (adamw decays by 0.01, adam by 0), so fields whose default
// varies are resolved by build_run_config(): the values here are final, never "unset".
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace aerie::config {

enum class OptimizerKind { kAdamW, kAdam, kSgd, kNovograd };

enum class ScheduleKind {
  kWarmupPolicy,
  kWarmupHoldPolicy,
  kSquareAnnealing,
  kSquareRootAnnealing,
  kCosineAnnealing,
  kNoamAnnealing,
  kNoamHoldAnnealing,
  kWarmupHoldAnnealOneMinusSquareRoot,
  kWarmupHoldAnnealLinear,
  kWarmupAnnealing,
  kInverseSquareRootAnnealing,
  kT5InverseSquareRootAnnealing,
  kPolynomialDecayAnnealing,
  kPolynomialHoldDecayAnnealing,
  kStepLR,
  kExponentialLR,
  kReduceLROnPlateau,
  kCyclicLR,
};

struct SchedulerConfig {
  ScheduleKind kind = ScheduleKind::kNoamAnnealing;
  std::string name = "NoamAnnealing";
  // NeMo's rule: trainer.max_steps when >= 0, else this, else computed from epochs. An explicit -1
  // means no schedule where trainer.max_steps is not given; build_run_config() then leaves
  // OptimConfig::sched empty.
  std::optional<int64_t> max_steps;
  std::optional<int64_t> warmup_steps;  // exclusive with warmup_ratio
  std::optional<double> warmup_ratio;   // of max_steps
  std::optional<int64_t> hold_steps;
  std::optional<double> hold_ratio;
  std::optional<int64_t> constant_steps;
  std::optional<double> constant_ratio;
  double min_lr = 0.0;
  int64_t d_model = 512;    // NoamAnnealing
  double decay_rate = 0.5;  // NoamHoldAnnealing
  double power = 1.0;       // Polynomial*
  bool cycle = false;
  int64_t last_epoch = -1;
  // torch's schedules.
  int64_t step_size = 1;     // StepLR
  double gamma = 0.1;        // StepLR, ExponentialLR, CyclicLR
  std::string mode = "min";  // ReduceLROnPlateau: min | max; CyclicLR: triangular[2] | exp_range
  double factor = 0.1;       // ReduceLROnPlateau from here
  int64_t patience = 10;
  double threshold = 1e-4;
  bool threshold_rel = true;  // threshold_mode: rel | abs
  int64_t cooldown = 0;
  double eps = 1e-8;
  std::string monitor = "loss";
  double base_lr = 0.001;  // CyclicLR from here
  double max_lr = 0.1;
  int64_t step_size_up = 2000;
  std::optional<int64_t> step_size_down;
  bool scale_per_cycle = true;  // scale_mode: cycle | iterations
  bool cycle_momentum = true;
  double base_momentum = 0.8;
  double max_momentum = 0.9;
  bool operator==(const SchedulerConfig&) const = default;
};

struct OptimConfig {
  OptimizerKind kind = OptimizerKind::kAdam;  // NeMo's choice when `name` is absent
  std::string name = "adam";
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0.0;
  bool amsgrad = false;
  bool maximize = false;
  double momentum = 0.0;  // sgd from here
  double dampening = 0.0;
  bool nesterov = false;
  bool grad_averaging = false;  // novograd from here
  bool luc = false;
  double luc_trust = 1e-3;
  double luc_eps = 1e-8;
  std::optional<SchedulerConfig> sched;
  bool operator==(const OptimConfig&) const = default;
};

// One entry of optim_param_groups: the parameters whose name starts with `module`. What is unset
// falls back to OptimConfig. Parameters of no entry form the first group.
struct ParamGroupConfig {
  std::string module;
  std::optional<double> lr;
  std::optional<std::array<double, 2>> betas;
  std::optional<double> eps;
  std::optional<double> weight_decay;
  std::optional<double> momentum;
  std::optional<double> dampening;
  std::optional<bool> nesterov;
  std::optional<bool> amsgrad;
  bool operator==(const ParamGroupConfig&) const = default;
};

}  // namespace aerie::config
