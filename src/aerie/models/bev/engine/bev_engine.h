// train::Engine on the reference model, CPU or CUDA: the yardstick for faster engines, and what
// trains where there is no GPU. submit() returns when the step is done.
#pragma once

#include <memory>
#include <vector>

#include <c10/core/Device.h>

#include "aerie/base/status.h"
#include "aerie/models/bev/engine/bev_core.h"
#include "aerie/models/bev/engine/prediction_sink.h"
#include "aerie/train/autograd/autograd_engine.h"

namespace aerie::bev {

class BevEngine final : public train::AutogradEngine {
 public:
  static Result<std::unique_ptr<BevEngine>> create(const BevRunConfig& config, at::Device device);

  int64_t max_in_flight() const override { return 0; }
  Status submit(const train::StepRequest& request) override;
  Result<std::vector<train::StepOutcome>> collect(bool wait) override;
  // sums: map_counts() of the batch, [tp, fp, fn][class][threshold], then sign_counts().
  Result<train::EvalOutcome> evaluate(const data::Batch& batch, uint64_t seed,
                                      uint64_t position) override;

  train::AutogradCore& autograd() const override { return *core_; }
  BevModel& model() { return core_->model(); }
  optim::Optimizer& optimizer() { return core_->optimizer(); }
  optim::GradScaler* scaler() { return core_->scaler(); }  // null: no scaling
  int64_t num_graphs() const { return core_->num_graphs(); }
  // Who sees the predictions of evaluate(); null: nobody. Outlives the evaluations.
  void set_prediction_sink(PredictionSink* sink) { sink_ = sink; }

 private:
  BevEngine() = default;
  const char* kind() const override { return "reference"; }

  std::unique_ptr<BevCore> core_;
  PredictionSink* sink_ = nullptr;
};

}  // namespace aerie::bev
