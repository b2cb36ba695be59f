#include "aerie/train/cadence.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace aerie::train {

CadenceRules cadence_rules(const config::AerieConfig& config) {
  return {config.compat_nemo_2_6, config.step_unit == config::StepUnit::kMicro, config.eval_start};
}

Result<Cadence> Cadence::make(const config::TrainerConfig& trainer, int64_t loader_batches,
                              bool has_validation, const CadenceRules& rules) {
  Cadence out;
  out.rules_ = rules;
  out.accumulate_ = std::max<int64_t>(1, trainer.accumulate_grad_batches);
  out.max_steps_ = trainer.max_steps;
  out.max_epochs_ = trainer.epoch_limit();
  out.log_every_n_steps_ = trainer.log_every_n_steps;  // 0: never

  // Lightning's order: overfit_batches before fast_dev_run before the limits.
  config::BatchLimit train_limit = trainer.limit_train_batches;
  config::BatchLimit val_limit = trainer.limit_val_batches;
  const config::BatchLimit& overfit = trainer.overfit_batches;
  if (trainer.fast_dev_run > 0) {
    train_limit = val_limit = {false, 0.0, trainer.fast_dev_run};
    out.max_steps_ = trainer.fast_dev_run;
    out.max_epochs_ = 1;
    out.log_every_n_steps_ = 1;
  }
  if (overfit.is_fraction ? overfit.fraction > 0.0 : overfit.count > 0)
    train_limit = val_limit = overfit;
  out.train_limit_ = train_limit;
  out.batches_per_epoch_ = train_limit.of(loader_batches);
  if (out.batches_per_epoch_ <= 0) {
    return invalid_argument(str_cat("there is nothing to train on: the loader has ", loader_batches,
                                    " batches an epoch and limit_train_batches leaves ",
                                    out.batches_per_epoch_))
        .with_hint("lower batch_size, set drop_last=false, or raise limit_train_batches");
  }

  const bool validate =
      has_validation && (val_limit.is_fraction ? val_limit.fraction > 0.0 : val_limit.count > 0);
  if (!validate) return out;
  const auto every_n_epoch =
      trainer.fast_dev_run > 0 ? std::optional<int64_t>(1) : trainer.check_val_every_n_epoch;
  out.val_counts_globally_ = !every_n_epoch.has_value();
  out.val_every_epochs_ = every_n_epoch.value_or(1);
  const config::BatchLimit interval =
      trainer.fast_dev_run > 0 ? config::BatchLimit{} : trainer.val_check_interval;
  if (interval.is_fraction) {
    if (out.val_counts_globally_ && interval.fraction != 1.0)
      return invalid_argument(
          "val_check_interval must be an integer when check_val_every_n_epoch is null");
    out.val_fraction_ = interval.fraction;
    // A share too small for one batch means every batch, and so does 0.0.
    out.val_every_batches_ = interval.fraction > 0.0 ? out.val_every({}) : 1;
    if (out.val_counts_globally_) out.val_fraction_ = 0.0;
  } else {
    out.val_every_batches_ = interval.count;
    if (!out.val_counts_globally_ && interval.count > out.batches_per_epoch_) {
      const std::string what = str_cat("val_check_interval ", interval.count, " is more than the ",
                                       out.batches_per_epoch_, " batches of an epoch");
      if (rules.compat)
        return invalid_argument(what).with_hint(
            "lower it, or set check_val_every_n_epoch=null to count across epochs");
      out.val_counts_globally_ = true;
      out.note_ = what + "; it counts across epochs";
    }
  }
  return out;
}

int64_t Cadence::planned_steps() const {
  int64_t steps = max_steps_;
  if (max_epochs_ >= 0) {
    const int64_t by_epochs = max_epochs_ * steps_per_epoch();
    steps = steps < 0 ? by_epochs : std::min(steps, by_epochs);
  }
  return steps;
}

int64_t Cadence::batches_left(const Position& position) const {
  int64_t left = std::numeric_limits<int64_t>::max() - accumulate_;
  if (max_steps_ >= 0) left = max_steps_ - position.step;
  if (max_epochs_ >= 0)
    left = std::min(left, epoch_batches(position) - position.batch +
                              (max_epochs_ - 1 - position.epoch) * batches_per_epoch_);
  return std::max<int64_t>(1, left);
}

int64_t Cadence::next_window(const Position& position) const {
  if (rules_.steps_are_batches)
    return std::min(accumulate_ - position.step % accumulate_, batches_left(position));
  const int64_t in_window = (position.batch - position.window_start) % accumulate_;
  return std::min(accumulate_ - in_window, epoch_batches(position) - position.batch);
}

int64_t Cadence::loss_divisor(const Position& position) const {
  if (!rules_.steps_are_batches) return accumulate_;
  return std::min(accumulate_, position.step % accumulate_ + batches_left(position));
}

int64_t Cadence::val_every(const Position& position) const {
  if (val_fraction_ <= 0.0) return val_every_batches_;
  return std::max<int64_t>(
      1, static_cast<int64_t>(static_cast<double>(epoch_batches(position)) * val_fraction_));
}

bool Cadence::validate_after(const Position& position) const {
  if (val_every_batches_ <= 0) return false;
  if (val_counts_globally_) return evaluation_due(position.total_batch, val_every_batches_);
  if (!evaluation_due(position.epoch + 1, val_every_epochs_)) return false;
  return position.batch % val_every(position) == 0;
}

double Cadence::validations_per_epoch() const {
  if (val_every_batches_ <= 0) return 0.0;
  const double batches = static_cast<double>(batches_per_epoch_);
  const double every = static_cast<double>(val_every_batches_);
  if (val_counts_globally_) return batches / every;
  return std::floor(batches / every) / static_cast<double>(val_every_epochs_);
}

bool Cadence::finished(const Position& position) const {
  if (max_steps_ >= 0 && position.step >= max_steps_) return true;
  return max_epochs_ >= 0 && position.epoch >= max_epochs_;
}

}  // namespace aerie::train
