// An MmSchedule as the loop's LearningRates. Steps are micro-batches (StepUnit::kMicro).
#pragma once

#include <utility>

#include "aerie/optim/mm_schedule.h"
#include "aerie/train/learning_rates.h"

namespace aerie::train {

class MmScheduleRates final : public LearningRates {
 public:
  explicit MmScheduleRates(optim::MmSchedule schedule) : schedule_(std::move(schedule)) {}
  std::vector<double> at(int64_t step) const override { return schedule_.at(step); }
  std::optional<double> momentum_at(int64_t step) const override {
    return schedule_.momentum_at(step);
  }

 private:
  optim::MmSchedule schedule_;
};

}  // namespace aerie::train
