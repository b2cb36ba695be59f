// Watches finished steps for trouble: steps that were skipped because something was not finite, and
// loss or gradient norms far outside their recent spread. State goes into the checkpoint, so that a
// resumed run judges as an uninterrupted one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/metrics/run_end.h"
#include "aerie/train/engine.h"

namespace aerie::train {

using metrics::StepHealth;

// Rolling mean and spread over the last kWindow values; z-score of a new one against them.
class SpikeDetector {
 public:
  static constexpr size_t kWindow = 128;

  // The z-score of `value` against what came before (0 until the window is full), then takes it in.
  double update(double value);
  std::vector<double> values() const { return values_; }
  void restore(std::vector<double> values) { values_ = std::move(values); }

 private:
  std::vector<double> values_;  // oldest first
};

struct GuardOptions {
  int64_t max_nan_in_a_row = 10;
  double spike_zscore = 6.0;  // 0: off
};

// What the loop has to do after a step.
struct GuardVerdict {
  bool nonfinite = false;  // this step was skipped
  bool give_up = false;    // too many in a row
  bool loss_spike = false;
  bool grad_spike = false;
  double loss_zscore = 0.0;
  double grad_zscore = 0.0;
};

class Guards {
 public:
  explicit Guards(GuardOptions options) : options_(options) {}

  GuardVerdict after_step(const StepOutcome& outcome);
  int64_t nonfinite_in_a_row() const { return nonfinite_in_a_row_; }
  void forgive() { nonfinite_in_a_row_ = 0; }  // after a fall-back to another precision
  double smoothed_loss() const { return smoothed_loss_; }
  const metrics::StepHealth& health() const { return health_; }

  std::string to_json() const;
  Status restore(const std::string& json);

 private:
  GuardOptions options_;
  int64_t nonfinite_in_a_row_ = 0;
  double smoothed_loss_ = 0.0;
  int64_t smoothed_count_ = 0;
  SpikeDetector loss_;
  SpikeDetector grad_norm_;
  metrics::StepHealth health_;
};

}  // namespace aerie::train
