// train::Engine for NEST on the reference model, CPU or CUDA: the yardstick for faster engines, and
// what trains on machines without a GPU. submit() returns when the step is done.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "aerie/config/schema/nest_config.h"
#include "aerie/train/engine.h"
#include "aerie/train/nest/engine_state.h"
#include "aerie/train/nest/nest_core.h"

namespace aerie::train {

class ReferenceEngine final : public Engine {
 public:
  // Tensors of a batch on the model's device; to_nest_batch() unless a test has its own.
  using ToTensors =
      std::function<Result<nest::NestBatch>(const data::Batch& batch, const nn::RandomKey& random)>;

  // Builds the model on `device` with fresh weights; a caller that has others puts them into
  // core().model() before the first step. Draws of training are keyed by config.aerie.seed.
  static Result<std::unique_ptr<ReferenceEngine>> create(const config::RunConfig& config,
                                                         at::Device device,
                                                         ToTensors to_tensors = {});

  std::string description() const override;
  int64_t num_param_groups() const override;
  int64_t num_parameters() const override;
  int64_t max_in_flight() const override { return 0; }
  // kOutOfMemory leaves everything as it was before the call, also the gradients of an unfinished
  // window: they are copied before a call that adds to them.
  Status submit(const StepRequest& request) override;
  Result<std::vector<StepOutcome>> collect(bool wait) override;
  Result<EvalOutcome> evaluate(const data::Batch& batch, uint64_t seed, uint64_t position) override;
  Status use_ema_weights(bool on) override;
  Result<std::unique_ptr<StateSnapshot>> snapshot() override;
  Status restore(const StateSource& source) override;
  Result<std::string> fall_back_precision() override;
  EngineMemory memory() const override;

  NestCore& core() { return *core_; }
  // Base learning rate of every parameter group, for the schedule.
  std::vector<double> base_rates() const { return core_->optimizer().base_rates(); }

 private:
  ReferenceEngine() = default;

  std::unique_ptr<NestCore> core_;
  ToTensors to_tensors_;
  uint64_t seed_ = 0;
  bool fallen_back_ = false;
  std::vector<StepOutcome> finished_;
  std::shared_ptr<SnapshotMemory> snapshot_memory_ = std::make_shared<SnapshotMemory>();
};

}  // namespace aerie::train
