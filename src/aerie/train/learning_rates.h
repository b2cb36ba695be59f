// Learning rates and momentum of a run, as the loop asks for them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aerie/base/status.h"

namespace aerie::train {

// Learning rates of the parameter groups at a step; schedules that depend on results keep state.
class LearningRates {
 public:
  virtual ~LearningRates() = default;
  virtual std::vector<double> at(int64_t step) const = 0;
  virtual std::optional<double> momentum_at(int64_t step) const {
    (void)step;
    return std::nullopt;
  }
  // End of an epoch, with the latest training loss and, if there was a validation, its result.
  virtual void after_epoch(double train_loss, std::optional<double> monitor) {
    (void)train_loss;
    (void)monitor;
  }
  virtual std::string state_json() const { return "{}"; }
  virtual Status restore(const std::string& json) {
    (void)json;
    return ok_status();
  }
};

}  // namespace aerie::train
