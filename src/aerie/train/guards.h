// Watches finished steps for trouble: steps that were skipped because something was not finite, and
// loss or gradient norms far outside their recent spread. State goes into the checkpoint, so that a
// resumed run judges as an uninterrupted one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/train/engine.h"

namespace aerie::train {

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

// Whether a run that ends can be trusted. A step is bad when it was skipped or gave a loss or a
// gradient that is not finite; single ones are no sign of harm (16-mixed skips one whenever its
// loss scale has grown too far, a broken recording spoils one batch).
class StepHealth {
 public:
  static constexpr size_t kWindow = 10;

  void add(bool bad);
  // The last two steps, or at least half of the last kWindow (of all, when there were fewer).
  bool unhealthy() const;
  // "the last 7 steps were not finite or skipped", "1 of the last 10 steps ..."; empty: none was.
  std::string sentence() const;
  const std::vector<bool>& recent_bad() const { return bad_; }  // oldest first
  void restore(std::vector<bool> recent_bad) { bad_ = std::move(recent_bad); }

 private:
  int64_t bad_at_end() const;
  std::vector<bool> bad_;
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
  const StepHealth& health() const { return health_; }

  std::string to_json() const;
  Status restore(const std::string& json);

 private:
  GuardOptions options_;
  int64_t nonfinite_in_a_row_ = 0;
  double smoothed_loss_ = 0.0;
  int64_t smoothed_count_ = 0;
  SpikeDetector loss_;
  SpikeDetector grad_norm_;
  StepHealth health_;
};

}  // namespace aerie::train
