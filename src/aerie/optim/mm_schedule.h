// Learning-rate and momentum policies of mmcv (lr_config, momentum_config), free of torch: pure
// functions of the iteration, which counts micro-batches from 0. Immutable once made.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "aerie/base/status.h"

namespace aerie::optim {

enum class MmPolicy {
  kFixed,
  kStep,
  kExp,
  kInv,
  kPoly,
  kCosineAnnealing,
  kFlatCosineAnnealing,
  kCosineRestart,
  kLinearAnnealing,
  kCyclic,
  kOneCycle,
};
enum class MmWarmup { kNone, kConstant, kLinear, kExp };
enum class MmAnneal { kCos, kLinear };

// One policy. Of a rate the values are rates, of momentum they are momenta; what a policy does not
// know it does not read.
struct MmPolicyConfig {
  MmPolicy policy = MmPolicy::kFixed;
  bool by_epoch = false;  // progress is the number of whole epochs instead of iterations
  MmWarmup warmup = MmWarmup::kNone;
  int64_t warmup_iters = 0;
  double warmup_ratio = 0.1;     // of the regular value, at the first iteration; momentum's 0.9
  bool warmup_by_epoch = false;  // warmup_iters counts epochs

  double power = 1.0;               // poly, inv
  std::optional<double> min_value;  // min_lr, min_momentum
  std::optional<double> min_ratio;  // min_lr_ratio, min_momentum_ratio: of the base value
  std::optional<double> gamma;      // step 0.1 (momentum 0.5), cyclic 1; exp and inv need it
  std::vector<int64_t> step;        // step: where the value drops
  bool step_is_interval = false;    // ... `step` has one number, the distance of drops
  double start_percent = 0.75;      // FlatCosineAnnealing
  std::vector<int64_t> periods;     // CosineRestart
  std::vector<double> restart_weights = {1.0};
  std::optional<std::array<double, 2>> target_ratio;  // cyclic: [10, 1e-4], momentum [0.85/0.95, 1]
  int64_t cyclic_times = 1;
  double step_ratio_up = 0.4;
  MmAnneal anneal = MmAnneal::kCos;  // cyclic, OneCycle
  std::vector<double> max_lr;        // OneCycle: of every group, or one for all
  std::optional<int64_t> total_steps;
  double pct_start = 0.3;
  double div_factor = 25.0;
  double final_div_factor = 1e4;
  bool three_phase = false;
  double base_momentum = 0.85;  // OneCycle of momentum
  double max_momentum = 0.95;
  bool operator==(const MmPolicyConfig&) const = default;
};

// How long the run is.
struct MmRunLength {
  int64_t max_iters = 0;
  int64_t epoch_iters = 1;            // of one epoch
  std::optional<int64_t> max_epochs;  // empty: as many as max_iters make, the last one begun
};

class MmSchedule {
 public:
  // `base_rates`: lr of each parameter group; `base_momentum`: momentum or first beta of all.
  static Result<MmSchedule> make(const MmPolicyConfig& rate,
                                 const std::optional<MmPolicyConfig>& momentum,
                                 std::vector<double> base_rates, double base_momentum,
                                 const MmRunLength& length);

  // What mmcv sets before this iteration.
  std::vector<double> at(int64_t iteration) const;
  // Empty: the optimizer's own.
  std::optional<double> momentum_at(int64_t iteration) const;

 private:
  MmPolicyConfig rate_;
  std::optional<MmPolicyConfig> momentum_;
  std::vector<double> base_;
  double base_momentum_ = 0.0;
  MmRunLength length_;
};

}  // namespace aerie::optim
