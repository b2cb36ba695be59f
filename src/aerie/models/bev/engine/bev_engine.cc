#include "aerie/models/bev/engine/bev_engine.h"

#include <algorithm>
#include <utility>

#include "aerie/device/gpu.h"
#include "aerie/models/bev/engine/batch_tensors.h"
#include "aerie/train/graph/batch_key.h"

namespace aerie::bev {

Result<std::unique_ptr<BevEngine>> BevEngine::create(const BevRunConfig& config,
                                                     at::Device device) {
  if (device.is_cuda()) AERIE_RETURN_IF_ERROR(device::load_torch_cuda());
  std::unique_ptr<BevEngine> engine(new BevEngine());
  AERIE_ASSIGN_OR_RETURN(engine->core_, BevCore::create(config, device));
  return engine;
}

Status BevEngine::submit(const train::StepRequest& request) {
  AERIE_RETURN_IF_ERROR(meet_ranks());
  AERIE_RETURN_IF_ERROR(core_->add(request));
  if (!request.finish) return ok_status();
  if (request.momentum) core_->optimizer().set_momentum(*request.momentum);
  AERIE_ASSIGN_OR_RETURN(train::StepOutcome outcome, core_->finish(request));
  finished_.push_back(std::move(outcome));
  return ok_status();
}

Result<std::vector<train::StepOutcome>> BevEngine::collect(bool) {
  return std::exchange(finished_, {});
}

Result<train::EvalOutcome> BevEngine::evaluate(const data::Batch& batch, uint64_t seed,
                                               uint64_t position) {
  if (batch.num_samples() == 0) {
    train::EvalOutcome outcome;
    outcome.counted = false;
    return outcome;
  }
  const auto moved = to_bev_batch(batch, train::random_key(seed, position, batch), core_->device());
  if (!moved.ok()) return with_advice(moved.status());
  const BevBatch& tensors = *moved;
  const int64_t samples = tensors.images.size(0);
  // Samples do not see each other in eval mode, so a batch may be cut wherever it fits.
  const bool shown = sink_ != nullptr && sink_->wants(batch);
  std::vector<float> probability;
  for (int64_t parts = 1;; parts = std::min(parts * 2, samples)) {
    auto outcome = core_->evaluate(tensors, parts, shown ? &probability : nullptr);
    if (outcome.ok() && shown) AERIE_RETURN_IF_ERROR(sink_->take(batch, probability));
    if (outcome.ok()) return outcome;
    if (outcome.status().code() != StatusCode::kOutOfMemory || parts >= samples)
      return with_advice(outcome.status());
    core_->release_memory();
  }
}

}  // namespace aerie::bev
