#include "aerie/train/early_stopping.h"

#include <cmath>

#include "aerie/base/strings.h"

namespace aerie::train {

EarlyStopping::EarlyStopping(const config::ExpManagerConfig& config, const TaskInfo& task)
    : config_(config),
      metric_(enabled() ? config.early_stopping_callback_params.monitor : task.monitor),
      higher_is_better_(enabled() ? config.early_stopping_callback_params.mode_max
                                  : task.monitor_max) {}

// Without a word about it Lightning looks at epochs where each ends with a validation; to Python
// the whole number 1 is 1.0.
bool EarlyStopping::at_epoch_ends(const config::TrainerConfig& trainer) const {
  const config::BatchLimit& interval = trainer.val_check_interval;
  const bool one = interval.is_fraction ? interval.fraction == 1.0 : interval.count == 1;
  return enabled() && config_.early_stopping_callback_params.check_on_train_epoch_end.value_or(
                          one && trainer.check_val_every_n_epoch == 1);
}

std::string EarlyStopping::check(double value) {
  const config::EarlyStoppingConfig& rules = config_.early_stopping_callback_params;
  const auto better = [&](double a, double b) { return higher_is_better_ ? a > b : a < b; };
  const double gain_needed = enabled() ? std::abs(rules.min_delta) : 0.0;
  const bool gained =
      std::isfinite(value) &&
      (!best_ || better(value, *best_ + (higher_is_better_ ? gain_needed : -gain_needed)));
  checks_without_gain_ = gained ? 0 : checks_without_gain_ + 1;
  if (gained) best_ = value;
  if (!enabled()) return "";
  if (rules.check_finite && !std::isfinite(value)) return "the monitored value is not finite";
  if (rules.stopping_threshold && better(value, *rules.stopping_threshold))
    return str_cat("the stopping threshold ", *rules.stopping_threshold, " is reached");
  if (rules.divergence_threshold && better(*rules.divergence_threshold, value))
    return str_cat("the divergence threshold ", *rules.divergence_threshold, " is passed");
  if (!gained && checks_without_gain_ >= rules.patience)
    return str_cat("no gain in ", checks_without_gain_, " validations");
  return "";
}

void EarlyStopping::restore(std::optional<double> best, int64_t checks_without_gain) {
  best_ = best;
  checks_without_gain_ = checks_without_gain;
}

}  // namespace aerie::train
