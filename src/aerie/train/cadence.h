// When the loop steps, validates, logs and stops, as pure functions of counters, so that each rule
// has a test: Lightning's where a step is an update of the weights, mmcv's where it is a
// micro-batch.
#pragma once

#include <cstdint>
#include <string>

#include "aerie/base/status.h"
#include "aerie/config/schema/aerie_config.h"
#include "aerie/config/schema/trainer_config.h"

namespace aerie::train {

// Counters of the loop. `batch` counts micro-batches of the epoch already used, `total_batch` those
// of the whole run.
struct Position {
  int64_t step = 0;
  int64_t epoch = 0;
  int64_t batch = 0;
  int64_t total_batch = 0;
  int64_t epoch_batches = 0;  // of this epoch; 0: as many as in the first
  int64_t window_start = 0;   // batch that the epoch's windows count from: where a run went on
  int64_t in_window = 0;      // micro-batches of the update under way
};

// What counts as a step, and what else is not Lightning's.
struct CadenceRules {
  // An integer val_check_interval above the batches of an epoch is an error, as in Lightning;
  // otherwise it counts across epochs and note() says so.
  bool compat = false;
  // A step is a micro-batch, as iteration-based systems count; limits, logs and checkpoints follow,
  // and windows of accumulation cross the ends of epochs.
  bool steps_are_batches = false;
  // Evaluations come at this step (or epoch, where they count epochs) and every interval after it;
  // 0: at every multiple of the interval.
  int64_t eval_start = 0;
};

CadenceRules cadence_rules(const config::AerieConfig& config);

class Cadence {
 public:
  // `loader_batches`: batches the training loader has in an epoch; `has_validation`: there is a
  // validation set with batches.
  static Result<Cadence> make(const config::TrainerConfig& trainer, int64_t loader_batches,
                              bool has_validation, const CadenceRules& rules = {});

  // Of the first epoch; others may have more or fewer.
  int64_t batches_per_epoch() const { return batches_per_epoch_; }
  // Batches to use of an epoch for which the loader has `loader_batches`.
  int64_t limited(int64_t loader_batches) const { return train_limit_.of(loader_batches); }
  // What `window` micro-batches that make one update add to the count of steps.
  int64_t steps_of(int64_t window) const { return rules_.steps_are_batches ? window : 1; }
  // Steps at `position`, which may lie inside a window.
  int64_t step_at(const Position& position) const {
    return position.step + (rules_.steps_are_batches ? position.in_window : 0);
  }
  // Steps of one epoch: the last window may be shorter.
  int64_t steps_per_epoch() const {
    return rules_.steps_are_batches ? batches_per_epoch_
                                    : (batches_per_epoch_ + accumulate_ - 1) / accumulate_;
  }
  // Steps of the whole run as far as steps and epochs bound it; -1 when only time does.
  int64_t planned_steps() const;

  // Micro-batches of the next update at `position`: accumulate, or fewer at the end of an epoch.
  // Where steps are micro-batches, updates come at multiples of accumulate in the whole run, and
  // where the run ends.
  int64_t next_window(const Position& position) const;
  // What the losses of that update are divided by: accumulate, also in a shorter window. Where
  // steps are micro-batches, those left over at the end of the run divide by their own number.
  int64_t loss_divisor(const Position& position) const;
  // Where steps are micro-batches: the run goes on inside a window of which the first part is
  // lost (another end, or another accumulate than before).
  bool resumes_inside_window(const Position& position) const {
    return rules_.steps_are_batches && position.step % accumulate_ != 0 && !finished(position);
  }
  // No epoch follows that of `position`.
  bool last_epoch(const Position& position) const {
    return max_epochs_ >= 0 && position.epoch + 1 >= max_epochs_;
  }
  // After the micro-batch that made `position`: validate now?
  bool validate_after(const Position& position) const;
  // `width`: steps that the update which ended at `step` stands for.
  bool log_after_step(int64_t step, int64_t width = 1) const {
    return passes(step, width, log_every_n_steps_);
  }
  // A multiple of `every` lies among the last `width` steps up to `step`.
  static bool passes(int64_t step, int64_t width, int64_t every) {
    return every > 0 && step / every != (step - width) / every;
  }
  // Validations are due in this epoch at all.
  bool validates_in_epoch(int64_t epoch) const {
    return val_every_batches_ > 0 &&
           (val_counts_globally_ || evaluation_due(epoch + 1, val_every_epochs_));
  }
  // Validations of an epoch, on average.
  double validations_per_epoch() const;
  // The run is over at `position` (steps or epochs used up).
  bool finished(const Position& position) const;

  // The key that ended a run that is over at `position`.
  const char* limit_key(const Position& position) const {
    return max_steps_ >= 0 && position.step >= max_steps_ ? "trainer.max_steps"
                                                          : "trainer.max_epochs";
  }
  // `position` lies inside an accumulation window, whose step is not done.
  bool window_open(const Position& position) const {
    return !rules_.steps_are_batches && position.batch < epoch_batches(position) &&
           (position.batch - position.window_start) % accumulate_ != 0;
  }

  // A sentence for the user about a rule that was bent, or empty.
  const std::string& note() const { return note_; }

 private:
  int64_t epoch_batches(const Position& position) const {
    return position.epoch_batches > 0 ? position.epoch_batches : batches_per_epoch_;
  }
  int64_t val_every(const Position& position) const;
  // Micro-batches until the run ends, as far as steps and epochs bound it.
  int64_t batches_left(const Position& position) const;
  // mmcv's rule of evaluation.interval and evaluation.start.
  bool evaluation_due(int64_t count, int64_t every) const {
    return count >= rules_.eval_start && (count - rules_.eval_start) % every == 0;
  }

  config::BatchLimit train_limit_;
  int64_t batches_per_epoch_ = 0;
  int64_t accumulate_ = 1;
  CadenceRules rules_;
  int64_t max_steps_ = -1;
  int64_t max_epochs_ = -1;
  int64_t log_every_n_steps_ = 50;
  int64_t val_every_batches_ = 0;  // 0: never
  double val_fraction_ = 0.0;      // of an epoch's batches; 0: val_every_batches_ counts
  bool val_counts_globally_ = false;
  int64_t val_every_epochs_ = 1;
  std::string note_;
};

}  // namespace aerie::train
