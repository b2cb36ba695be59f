// Learning-rate schedules: every one NeMo registers (docs/numerics.md 5), free of torch.
//
// s counts completed optimizer steps: the rate used for optimizer step n (0-based) is at(n). NeMo's
// schedules and StepLR, CyclicLR are pure functions of s; ExponentialLR and ReduceLROnPlateau
// advance once per epoch and keep state, which goes into the checkpoint. Not synchronised.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/config/schema/optim_config.h"

namespace aerie::optim {

class Schedule {
 public:
  // `base_rates`: lr of each parameter group. `max_steps`: the M of the formulas (ratios refer to
  // it); nothing when the run has no bound, which is an error for schedules that need one. Without
  // `config` the rates are constant.
  static Result<Schedule> make(const std::optional<config::SchedulerConfig>& config,
                               std::vector<double> base_rates, std::optional<int64_t> max_steps);

  std::vector<double> at(int64_t step) const;
  // CyclicLR with cycle_momentum: sgd's momentum, or the first beta, of every group at a step.
  std::optional<double> momentum_at(int64_t step) const;

  // End of an epoch. `metric` is the monitored value, for ReduceLROnPlateau; without one nothing
  // changes there.
  void after_epoch(std::optional<double> metric);
  // The name of the metric that after_epoch() wants; empty: none.
  std::string monitor() const;

  std::string state_json() const;
  Status restore(const std::string& json);

 private:
  double rate(double base, int64_t step) const;
  double cyclic(double from, double to, int64_t step) const;
  double warmup_rate(double base, int64_t step) const;

  bool constant_ = false;
  config::SchedulerConfig config_;
  std::vector<double> base_;
  int64_t max_steps_ = 0;
  int64_t warmup_ = 0;
  int64_t hold_end_ = 0;  // 0: no hold was given
  int64_t hold_ = 0;
  int64_t constant_steps_ = 0;
  // Per-epoch schedules.
  int64_t epochs_ = 0;
  std::vector<double> plateau_rates_;
  double plateau_best_ = 0.0;
  int64_t plateau_bad_ = 0;
  int64_t plateau_cooldown_ = 0;
};

}  // namespace aerie::optim
