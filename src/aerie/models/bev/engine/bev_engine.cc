#include "aerie/models/bev/engine/bev_engine.h"

#include <algorithm>
#include <utility>

#include <ATen/DeviceAccelerator.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid.h>

#include "aerie/base/strings.h"
#include "aerie/device/gpu.h"
#include "aerie/models/bev/engine/batch_tensors.h"
#include "aerie/models/bev/engine/param_groups.h"
#include "aerie/train/graph/autograd_parts.h"
#include "aerie/train/graph/batch_key.h"
#include "aerie/train/graph/torch_status.h"

namespace aerie::bev {
Result<std::unique_ptr<BevEngine>> BevEngine::create(const BevRunConfig& config,
                                                     at::Device device) {
  if (device.is_cuda()) AERIE_RETURN_IF_ERROR(device::load_torch_cuda());
  try {
    train::set_process_switches(config.trainer, config.aerie.tf32, device,
                                /*fixed_workspace=*/true);
    BevConfig sizes = config.model;
    sizes.depth_float32 = sizes.depth_float32 || config.view_fp32;
    std::unique_ptr<BevEngine> engine(new BevEngine());
    AERIE_ASSIGN_OR_RETURN(engine->model_, BevModel::create(sizes, config.aerie.seed, device));
    nn::ParameterRegistry& registry = engine->model_->parameters();
    engine->spans_.emplace(device);
    engine->optimizer_ = std::make_unique<optim::Optimizer>(
        registry, config.optim.kind, parameter_groups(registry, config.optim),
        undecayed_names(registry, config.optim));
    engine->clip_ = {config.trainer.gradient_clip_val, config.trainer.gradient_clip_algorithm,
                     config.clip_norm_type};
    engine->loss_scale_ = config.loss_scale;
    engine->seed_ = config.aerie.seed;
    engine->detect_anomaly_ = config.trainer.detect_anomaly;
    engine->recompute_ = config.aerie.activation_checkpointing;
    engine->global_loss_ = config.aerie.loss_reduction == config::LossReduction::kGlobal;
    engine->part_names_ = map_loss_names(sizes);
    engine->set_precision(config.trainer.precision);
    engine->ema_ = train::make_ema(registry, config.exp_manager.ema);
    engine->has_grad_ = train::watch_gradients(registry);
    engine->statistics_ = train::batch_norm_statistics(registry);
    return engine;
  } catch (const std::exception& error) {
    return with_advice(train::torch_status(error)).with_context("setting up the engine");
  }
}

Status BevEngine::with_advice(Status status) {
  if (status.code() != StatusCode::kOutOfMemory) return status;
  return std::move(status).with_hint(
      "lower the batch (model.train_ds.batch_size, model.validation_ds.batch_size) and raise "
      "accumulation for it, use fp16, fewer workers, smaller pictures or a smaller model");
}

std::string BevEngine::description() const {
  return str_cat("reference engine, ", device().str(), ", precision ",
                 config::precision_name(precision_));
}

int64_t BevEngine::num_param_groups() const {
  return static_cast<int64_t>(optimizer_->groups().size());
}

int64_t BevEngine::num_parameters() const {
  return model_->parameters().num_trainable_elements();
}

void BevEngine::set_precision(config::Precision precision) {
  precision_ = precision;
  scaler_.reset();
  if (precision != config::Precision::k16Mixed) return;
  optim::GradScaler::Settings settings;
  settings.initial_scale = loss_scale_.initial;
  settings.growth_factor = loss_scale_.growth_factor;
  settings.backoff_factor = loss_scale_.backoff_factor;
  settings.growth_interval = loss_scale_.growth_interval;
  settings.dynamic = loss_scale_.dynamic;
  scaler_ = std::make_unique<optim::GradScaler>(settings, device());
}

Result<std::string> BevEngine::fall_back_precision() {
  AERIE_ASSIGN_OR_RETURN(const config::Precision lower,
                         train::precision_below(precision_, device()));
  set_precision(lower);
  fallen_back_ = true;
  return std::string(config::precision_name(precision_));
}

train::FlatState BevEngine::flat_state() {
  return {model_->parameters(), *optimizer_, scaler_.get(), ema_.get()};
}

void BevEngine::reserve_snapshots() {
  snapshot_memory_->reserve(device(), train::snapshot_bytes(flat_state()));
}

Status BevEngine::use_ema_weights(bool on) {
  if (ema_ == nullptr || ema_->swapped() == on) return ok_status();
  try {
    ema_->swap();
    return ok_status();
  } catch (const std::exception& error) {
    return train::torch_status(error).with_context("averaged weights");
  }
}

Status BevEngine::set_ranks(std::shared_ptr<train::EngineRanks> ranks) {
  if (window_open_) return internal_error("other ranks inside a window");
  AERIE_ASSIGN_OR_RETURN(passes_,
                         train::RankedPasses::create(std::move(ranks), model_->parameters()));
  passes_->set_rehearsal([this](const kernels::ExchangeSums& note) { return rehearse(note); });
  met_ = false;
  return ok_status();
}

Status BevEngine::meet_ranks() {
  if (met_) return ok_status();
  AERIE_RETURN_IF_ERROR(passes_->ranks().broadcast_state(flat_state()));
  met_ = true;
  return ok_status();
}

Status BevEngine::show_state(bool gather) {
  if (!optimizer_->kept()) return ok_status();
  return train::show_whole_state(*optimizer_, &passes_->reducer(), passes_->stream(), gather);
}

Result<std::unique_ptr<train::StateSnapshot>> BevEngine::snapshot() {
  if (window_open_) return internal_error("snapshot inside a window: its gradients would be lost");
  AERIE_RETURN_IF_ERROR(show_state(/*gather=*/true));
  auto snapshot = train::take_snapshot(flat_state(), snapshot_memory_,
                                       train::fallen_back_texts(fallen_back_, precision_));
  optimizer_->hide_whole(/*take=*/false);
  return snapshot;
}

Status BevEngine::join_snapshot() {
  AERIE_RETURN_IF_ERROR(show_state(/*gather=*/true));
  optimizer_->hide_whole(/*take=*/false);
  return ok_status();
}

Status BevEngine::restore(const train::StateSource& source) {
  AERIE_RETURN_IF_ERROR(show_state(/*gather=*/false));
  const Status restored = restore_whole(source);
  optimizer_->hide_whole(/*take=*/restored.ok());
  AERIE_RETURN_IF_ERROR(restored);
  met_ = passes_ == nullptr;
  finished_.clear();
  return ok_status();
}

Status BevEngine::restore_whole(const train::StateSource& source) {
  AERIE_ASSIGN_OR_RETURN(train::ReadState read, train::read_state(flat_state(), source));
  AERIE_ASSIGN_OR_RETURN(const auto saved, train::fallen_back_to(read, precision_));
  drop_window();
  if (saved) set_precision(*saved);
  AERIE_RETURN_IF_ERROR(read.write(flat_state()));
  fallen_back_ = saved.has_value();
  return ok_status();
}

Result<train::EvalOutcome> BevEngine::evaluate(const data::Batch& batch, uint64_t seed,
                                               uint64_t position) {
  if (batch.num_samples() == 0) {
    train::EvalOutcome outcome;
    outcome.counted = false;
    return outcome;
  }
  const auto moved = to_bev_batch(batch, train::random_key(seed, position, batch), device());
  if (!moved.ok()) return with_advice(moved.status());
  const BevBatch& tensors = *moved;
  const int64_t samples = tensors.images.size(0);
  // Samples do not see each other in eval mode, so a batch may be cut wherever it fits.
  const bool shown = sink_ != nullptr && sink_->wants(batch);
  std::vector<float> probability;
  for (int64_t parts = 1;; parts = std::min(parts * 2, samples)) {
    auto outcome = evaluate_parts(tensors, parts, shown ? &probability : nullptr);
    if (outcome.ok() && shown) AERIE_RETURN_IF_ERROR(sink_->take(batch, probability));
    if (outcome.ok()) return outcome;
    if (outcome.status().code() != StatusCode::kOutOfMemory || parts >= samples)
      return with_advice(outcome.status());
    if (device().is_cuda()) at::accelerator::emptyCache();
  }
}

Result<train::EvalOutcome> BevEngine::evaluate_parts(const BevBatch& batch, int64_t parts,
                                                     std::vector<float>* probability) {
  try {
    at::NoGradGuard no_grad;
    const int64_t samples = batch.images.size(0);
    at::Tensor counts, signs, loss;
    if (probability != nullptr) probability->clear();
    for (int64_t p = 0; p < parts; ++p) {
      const int64_t begin = samples * p / parts, end = samples * (p + 1) / parts;
      const BevBatch part = parts == 1 ? batch : batch_samples(batch, begin, end);
      auto logits = forward(part, /*training=*/false);
      if (!logits.ok())
        return train::refine_torch_status(logits.status()).with_context("evaluation");
      const at::Tensor shares = at::sigmoid(logits->to(at::kFloat));
      const at::Tensor part_counts = map_counts(shares, part.truth);
      const at::Tensor part_signs = sign_counts(*logits, part.truth);
      if (probability != nullptr) {
        const at::Tensor here = shares.to(at::kCPU).contiguous();
        const float* begin_of = here.const_data_ptr<float>();
        probability->insert(probability->end(), begin_of, begin_of + here.numel());
      }
      const at::Tensor part_loss =
          map_losses(model_->config(), *logits, part.truth).total.to(at::kDouble) *
          (static_cast<double>(end - begin) / static_cast<double>(samples));
      counts = p == 0 ? part_counts : counts + part_counts;
      signs = p == 0 ? part_signs : signs + part_signs;
      loss = p == 0 ? part_loss : loss + part_loss;
    }
    train::EvalOutcome outcome;
    outcome.loss = loss.item<double>();
    const at::Tensor numbers =
        at::cat({counts.flatten(), signs.flatten()}).to(at::kCPU, at::kDouble).contiguous();
    const double* first = numbers.const_data_ptr<double>();
    outcome.sums.assign(first, first + numbers.numel());
    return outcome;
  } catch (const std::exception& error) {
    return train::torch_status(error).with_context("evaluation");
  }
}

train::EngineMemory BevEngine::memory() const {
  const train::MemoryUse use = train::memory_use(device(), 0);
  return {use.current_gib, use.peak_gib};
}

}  // namespace aerie::bev
