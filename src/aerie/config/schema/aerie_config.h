// The `aerie:` node: everything NeMo has no key for. It always exists with these defaults. Kinds of
// data and families derive from it what they add.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace aerie::config {

enum class Engine { kAuto, kFast, kReference };
enum class Tf32 { kNone, kConv, kAll };  // kConv is torch's default: convolutions only
enum class OnNan { kSkip, kFallback, kStop };
enum class OnOom { kSplit, kStop };
enum class ValidationSeed { kFixed, kRandom };
enum class StepUnit { kOptimizer, kMicro };
// Over ranks: the mean of their means, as in NeMo, or of all that counts anywhere.
enum class LossReduction { kNemo, kGlobal };

struct AerieDataConfig {
  std::optional<int64_t> virtual_ranks;     // fixes the global order for any number of ranks
  std::optional<double> memory_budget_gib;  // for the loader; null: printed, not limited
  int64_t max_shapes = 16;                  // batch lengths are rounded up to this many values
  bool operator==(const AerieDataConfig&) const = default;
};

struct AerieDistConfig {
  double heartbeat_s = 60.0;  // a rank that is silent for so long ends the run
  bool operator==(const AerieDistConfig&) const = default;
};

struct AerieConfig {
  uint64_t seed = 1234;
  bool compat_nemo_2_6 = false;  // compat: nemo-2.6
  Engine engine = Engine::kAuto;
  Tf32 tf32 = Tf32::kConv;
  bool activation_checkpointing = false;
  OnNan on_nan = OnNan::kSkip;
  int64_t max_nan_in_a_row = 10;
  OnOom on_oom = OnOom::kSplit;
  ValidationSeed validation_seed = ValidationSeed::kFixed;  // compat: kRandom unless set
  std::optional<double> loss_scale;                         // 16-mixed: null is dynamic
  std::vector<std::string> no_weight_decay;  // parameter-name parts that get no weight decay
  double spike_zscore = 6.0;  // loss or gradient norm beyond this is an event; 0: off
  StepUnit step_unit = StepUnit::kOptimizer;  // what limits, logs and checkpoints count
  int64_t eval_start = 0;                     // mm-style: the step or epoch of the first evaluation
  bool lightning_checkpoints = false;         // a .ckpt beside every native checkpoint
  // Start again where metrics.jsonl records saves and there are no checkpoints.
  bool ignore_missing_checkpoints = false;
  bool shard_optimizer = false;  // each rank keeps the optimizer's state of its part of the weights
  LossReduction loss_reduction = LossReduction::kNemo;
  AerieDataConfig data;
  AerieDistConfig dist;
  bool operator==(const AerieConfig&) const = default;
};

}  // namespace aerie::config
