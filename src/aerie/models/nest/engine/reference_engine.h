// train::Engine for NEST on the reference model, CPU or CUDA: the yardstick for faster engines, and
// what trains on machines without a GPU. submit() returns when the step is done.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <c10/core/Device.h>

#include "aerie/models/nest/config/nest_config.h"
#include "aerie/models/nest/engine/core_engine.h"

namespace aerie::train {

class ReferenceEngine final : public CoreEngine {
 public:
  // Tensors of a batch on the model's device; to_nest_batch() unless a test has its own.
  using ToTensors =
      std::function<Result<nest::NestBatch>(const data::Batch& batch, const nn::RandomKey& random)>;

  // Builds the model on `device` with fresh weights; a caller that has others puts them into
  // core().model() before the first step. Draws of training are keyed by config.aerie.seed.
  static Result<std::unique_ptr<ReferenceEngine>> create(const config::RunConfig& config,
                                                         at::Device device,
                                                         ToTensors to_tensors = {});

  int64_t max_in_flight() const override { return 0; }
  // kOutOfMemory leaves everything as it was before the call, also the gradients of an unfinished
  // window: they are copied before a call that adds to them.
  Status submit(const StepRequest& request) override;
  Result<std::vector<StepOutcome>> collect(bool wait) override;
  Result<EvalOutcome> evaluate(const data::Batch& batch, uint64_t seed, uint64_t position) override;

 private:
  ReferenceEngine() = default;
  const char* kind() const override { return "reference"; }

  ToTensors to_tensors_;
  uint64_t seed_ = 0;
};

}  // namespace aerie::train
