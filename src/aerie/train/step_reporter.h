// What a finished step tells the user: its record in metrics.jsonl, TensorBoard's points, the
// progress line. One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "aerie/base/clock.h"
#include "aerie/config/schema/loop_config.h"
#include "aerie/metrics/metrics_log.h"
#include "aerie/metrics/nvml.h"
#include "aerie/metrics/tfevents_writer.h"
#include "aerie/train/engine.h"
#include "aerie/ui/progress_line.h"

namespace aerie::train {

// What is known of a step beside its outcome.
struct StepInfo {
  int64_t step = 0;   // steps done after it
  int64_t width = 1;  // that it stands for
  int64_t epoch = 0;
  double learning_rate = 0.0;
  std::optional<double> momentum;  // where the schedule changes it
  double data_wait_s = 0.0;
  double amount = 0.0;  // of input, as TaskInfo::amount counts it
  double padding_share = 0.0;
  double step_s = 0.0;  // since the step before it
};

class StepReporter {
 public:
  struct Parts {
    const TaskInfo* task = nullptr;
    const config::LoopConfig* config = nullptr;
    metrics::TfEventsWriter* tensorboard = nullptr;  // may be null
    metrics::NvmlSampler* nvml = nullptr;            // may be null
    Clock* clock = nullptr;
    std::function<void(const metrics::Record&)> write;
  };
  explicit StepReporter(Parts parts) : parts_(std::move(parts)) {}

  // Every step; `due`: it is one that is logged. `phase_s`: time in the named phases.
  void log(const StepOutcome& outcome, const StepInfo& info, bool due,
           const std::map<std::string, double>& phase_s, double wall_s);
  // The progress line after a step. `other_share`: of the wall time so far, what validations and
  // saves took.
  ui::ProgressInfo progress(const StepInfo& info, int64_t planned_steps, double smoothed_loss,
                            double other_share);

 private:
  std::optional<metrics::GpuSample> gpu_sample();

  Parts parts_;
  std::deque<double> step_times_;  // step_timing_kwargs: the window
  int64_t shown_ = 0;
  double smooth_step_s_ = 0.0, smooth_amount_ = 0.0, smooth_wait_s_ = 0.0;
  std::optional<metrics::GpuSample> gpu_;
  double gpu_read_s_ = 0.0;
};

}  // namespace aerie::train
