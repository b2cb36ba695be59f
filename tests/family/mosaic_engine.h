// The engine of the fixture family: softmax regression on four features of a pixel, with SGD and
// momentum, in plain loops. Deterministic; steps are done when submit() returns.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aerie/train/engine.h"

namespace aerie::mosaic {

inline constexpr size_t kClasses = 3;
inline constexpr size_t kFeatures = 4;  // brightness, brightness squared, height, 1

class MosaicEngine final : public train::Engine {
 public:
  std::string description() const override { return "mosaic engine, cpu, float64"; }
  int64_t num_param_groups() const override { return 1; }
  int64_t num_parameters() const override { return static_cast<int64_t>(weights_.size()); }
  int64_t max_in_flight() const override { return 0; }
  Status submit(const train::StepRequest& request) override;
  Result<std::vector<train::StepOutcome>> collect(bool wait) override;
  // sums: the confusion matrix, truth by prediction.
  Result<train::EvalOutcome> evaluate(const data::Batch& batch, uint64_t seed,
                                      uint64_t position) override;
  Status use_ema_weights(bool) override { return ok_status(); }
  Result<std::unique_ptr<train::StateSnapshot>> snapshot() override;
  Status restore(const train::StateSource& source) override;
  Result<std::string> fall_back_precision() override;
  train::EngineMemory memory() const override { return {}; }

 private:
  using Weights = std::array<double, kClasses * kFeatures>;
  // Calls visit(features, truth, probabilities) for every pixel.
  template <typename Visit>
  void each_pixel(const data::Batch& batch, const Visit& visit) const;

  Weights weights_{}, momentum_{}, gradient_{};
  std::vector<double> micro_losses_;
  double hits_ = 0.0, pixels_ = 0.0;  // of the step under way
  std::vector<train::StepOutcome> finished_;
};

}  // namespace aerie::mosaic
