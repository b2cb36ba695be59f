// Lightning's early stopping: follows one metric and says when to stop. Without the callback it
// only keeps the best value of the task's own metric, for the closing lines of a run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "aerie/config/schema/trainer_config.h"
#include "aerie/train/engine.h"

namespace aerie::train {

class EarlyStopping {
 public:
  // `config` must outlive it.
  EarlyStopping(const config::ExpManagerConfig& config, const TaskInfo& task);

  bool enabled() const { return config_.create_early_stopping_callback; }
  // Checks come at the ends of epochs, not after validations.
  bool at_epoch_ends(const config::TrainerConfig& trainer) const;
  const std::string& metric() const { return metric_; }
  // Takes in a new value. Why the run should stop; empty: go on.
  std::string check(double value);

  // State, for checkpoints.
  std::optional<double> best() const { return best_; }
  int64_t checks_without_gain() const { return checks_without_gain_; }
  void restore(std::optional<double> best, int64_t checks_without_gain);

 private:
  const config::ExpManagerConfig& config_;
  std::string metric_;
  bool higher_is_better_;
  std::optional<double> best_;
  int64_t checks_without_gain_ = 0;
};

}  // namespace aerie::train
