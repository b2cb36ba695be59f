#include "aerie/train/nest/reference_engine.h"

#include <utility>

#include <ATen/DeviceAccelerator.h>

#include "aerie/base/strings.h"
#include "aerie/base/system.h"
#include "aerie/config/schema/run_config.h"
#include "aerie/device/gpu.h"
#include "aerie/train/nest/batch_tensors.h"
#include "aerie/train/nest/torch_status.h"

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
      return to_nest_batch(batch, random, device);
    };
  }
  return engine;
}

std::string ReferenceEngine::description() const {
  return str_cat("reference engine, ", core_->device().str(), ", precision ",
                 config::precision_name(core_->precision()));
}

int64_t ReferenceEngine::num_param_groups() const {
  return static_cast<int64_t>(core_->optimizer().groups().size());
}

int64_t ReferenceEngine::num_parameters() const {
  return core_->model().parameters().num_trainable_elements();
}

Status ReferenceEngine::submit(const StepRequest& request) {
  const auto make = [&](int64_t i) {
    nn::RandomKey random;
    random.seed = seed_;
    random.micro_step = request.first_micro_step + static_cast<uint64_t>(i);
    const DeviceSpans::Scope span(core_->spans(), "host prepare");
    return to_tensors_(*request.micro_batches[static_cast<size_t>(i)], random);
  };
  AERIE_RETURN_IF_ERROR(core_->add(static_cast<int64_t>(request.micro_batches.size()), make,
                                   request.accumulate, request.split));
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
  nn::RandomKey random;
  random.seed = seed;
  random.micro_step = position;
  AERIE_ASSIGN_OR_RETURN(const nest::NestBatch tensors, to_tensors_(batch, random));
  return core_->evaluate(tensors);
}

Status ReferenceEngine::use_ema_weights(bool on) {
  optim::Ema* ema = core_->ema();
  if (ema == nullptr || ema->swapped() == on) return ok_status();
  try {
    ema->swap();
    return ok_status();
  } catch (const std::exception& error) {
    return torch_status(error).with_context("averaged weights");
  }
}

Result<std::unique_ptr<StateSnapshot>> ReferenceEngine::snapshot() {
  return take_snapshot(*core_, snapshot_memory_, fallen_back_);
}

Status ReferenceEngine::restore(const StateSource& source) {
  AERIE_ASSIGN_OR_RETURN(const RestoredInfo info, restore_state(*core_, source));
  fallen_back_ = info.fallen_back;
  finished_.clear();
  return ok_status();
}

Result<std::string> ReferenceEngine::fall_back_precision() {
  AERIE_ASSIGN_OR_RETURN(const config::Precision precision, core_->fall_back_precision());
  fallen_back_ = true;
  return std::string(config::precision_name(precision));
}

EngineMemory ReferenceEngine::memory() const {
  constexpr double kGib = 1073741824.0;
  EngineMemory out;
  if (core_->device().is_cuda()) {
    const auto stats =
        at::accelerator::getDeviceStats(std::max<c10::DeviceIndex>(0, core_->device().index()));
    out.current_gib = static_cast<double>(stats.allocated_bytes[0].current) / kGib;
    out.peak_gib = static_cast<double>(stats.allocated_bytes[0].peak) / kGib;
  } else {
    const ProcessMemory memory = process_memory();
    out.current_gib = static_cast<double>(memory.rss_bytes) / kGib;
    out.peak_gib = static_cast<double>(memory.peak_rss_bytes) / kGib;
  }
  return out;
}

}  // namespace aerie::train
