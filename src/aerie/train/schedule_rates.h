// A Schedule as the loop's LearningRates.
#pragma once

#include <utility>

#include "aerie/optim/schedule.h"
#include "aerie/train/learning_rates.h"

namespace aerie::train {

class ScheduleRates final : public LearningRates {
 public:
  explicit ScheduleRates(optim::Schedule schedule) : schedule_(std::move(schedule)) {}
  std::vector<double> at(int64_t step) const override { return schedule_.at(step); }
  std::optional<double> momentum_at(int64_t step) const override {
    return schedule_.momentum_at(step);
  }
  void after_epoch(double train_loss, std::optional<double> monitor) override {
    // NeMo's default monitor is "loss"; anything else that is known here is the validation loss.
    const std::string wanted = schedule_.monitor();
    if (wanted == "loss" || wanted == "train_loss") {
      schedule_.after_epoch(train_loss);
    } else {
      schedule_.after_epoch(monitor);
    }
  }
  std::string state_json() const override { return schedule_.state_json(); }
  Status restore(const std::string& json) override { return schedule_.restore(json); }

 private:
  optim::Schedule schedule_;
};

}  // namespace aerie::train
