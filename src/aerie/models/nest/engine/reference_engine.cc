#include "aerie/models/nest/engine/reference_engine.h"

#include <utility>

#include "aerie/base/log.h"
#include "aerie/device/gpu.h"
#include "aerie/models/nest/engine/batch_tensors.h"
#include "aerie/train/graph/batch_key.h"

namespace aerie::train {

Result<std::unique_ptr<ReferenceEngine>> ReferenceEngine::create(const config::RunConfig& config,
                                                                 at::Device device,
                                                                 ToTensors to_tensors) {
  if (device.is_cuda()) AERIE_RETURN_IF_ERROR(device::load_torch_cuda());
  AERIE_ASSIGN_OR_RETURN(auto model, nest::NestModel::create(config.model, config.aerie, device));
  std::unique_ptr<ReferenceEngine> engine(new ReferenceEngine());
  AERIE_ASSIGN_OR_RETURN(engine->core_, NestCore::create(std::move(model), config));
  engine->seed_ = config.aerie.seed;
  engine->to_tensors_ = std::move(to_tensors);
  if (!engine->to_tensors_) {
    engine->to_tensors_ = [device](const data::Batch& batch, const nn::RandomKey& random) {
      return to_nest_batch(data::speech_batch(batch), random, device);
    };
  }
  return engine;
}

Status ReferenceEngine::submit(const StepRequest& request) {
  AERIE_RETURN_IF_ERROR(meet_ranks());
  const auto make = [&](int64_t i) {
    const DeviceSpans::Scope span(core_->spans(), "host prepare");
    const data::Batch& batch = *request.micro_batches[static_cast<size_t>(i)];
    return to_tensors_(
        batch, random_key(seed_, request.first_micro_step + static_cast<uint64_t>(i), batch));
  };
  const auto add = [&] {
    return core_->add(static_cast<int64_t>(request.micro_batches.size()), make, request.accumulate,
                      request.split, request.finish, request.agree);
  };
  Status status = add();
  if (status.code() == StatusCode::kOutOfMemory && !core_->model().recomputes()) {
    log_warn("train",
             "no room for the activations of a batch: they are recomputed in the backward pass "
             "from now on (",
             status.message(), ")");
    core_->model().set_recompute(true);
    status = add();
  }
  AERIE_RETURN_IF_ERROR(status);
  if (!request.finish) return ok_status();
  if (request.momentum) core_->optimizer().set_momentum(*request.momentum);
  AERIE_ASSIGN_OR_RETURN(StepOutcome outcome, core_->finish(request.learning_rates));
  outcome.step = request.step;
  finished_.push_back(std::move(outcome));
  return ok_status();
}

Result<std::vector<StepOutcome>> ReferenceEngine::collect(bool) {
  return std::exchange(finished_, {});
}

Result<EvalOutcome> ReferenceEngine::evaluate(const data::Batch& batch, uint64_t seed,
                                              uint64_t position) {
  AERIE_ASSIGN_OR_RETURN(const nest::NestBatch tensors,
                         to_tensors_(batch, random_key(seed, position, batch)));
  return core_->evaluate(tensors);
}

}  // namespace aerie::train
