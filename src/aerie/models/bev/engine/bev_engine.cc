#include "aerie/models/bev/engine/bev_engine.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid.h>

#include "aerie/base/strings.h"
#include "aerie/base/system.h"
#include "aerie/device/gpu.h"
#include "aerie/models/bev/engine/batch_tensors.h"
#include "aerie/models/bev/engine/param_groups.h"
#include "aerie/nn/cpu_runtime.h"
#include "aerie/train/graph/batch_key.h"
#include "aerie/train/graph/torch_status.h"

namespace aerie::bev {
namespace {

constexpr const char* kFallenBackTo = "fallen_back_to";  // in the scalars of a state

void set_process_switches(const BevRunConfig& config, at::Device device) {
  at::Context& context = at::globalContext();
  nn::set_tf32(config.aerie.tf32);
  context.setBenchmarkCuDNN(config.trainer.benchmark);
  const bool deterministic = config.trainer.deterministic != config::Deterministic::kNo;
  // cuBLAS is repeatable only with a fixed workspace. Torch looks once in a process, at the first
  // product, so that a deterministic engine after another one would be refused.
  if (device.is_cuda()) ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
  context.setDeterministicCuDNN(deterministic);
  context.setDeterministicAlgorithms(deterministic,
                                     config.trainer.deterministic == config::Deterministic::kWarn);
  // Filling fresh memory with NaN is a debugging aid of that mode, not part of determinism.
  context.setDeterministicFillUninitializedMemory(false);
  nn::prepare_cpu_runtime();
}

bool is_statistic(const nn::ParamInfo& info) {
  return info.is_buffer && info.alias_of < 0 &&
         (ends_with(info.name, ".running_mean") || ends_with(info.name, ".running_var") ||
          ends_with(info.name, ".num_batches_tracked"));
}

}  // namespace

Result<std::unique_ptr<BevEngine>> BevEngine::create(const BevRunConfig& config,
                                                     at::Device device) {
  if (device.is_cuda()) AERIE_RETURN_IF_ERROR(device::load_torch_cuda());
  try {
    set_process_switches(config, device);
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
    const config::EmaConfig& ema = config.exp_manager.ema;
    if (ema.enable)
      engine->ema_ = std::make_unique<optim::Ema>(registry, ema.decay, ema.every_n_steps,
                                                  ema.cpu_offload && device.is_cuda());
    engine->has_grad_ = std::make_shared<std::vector<uint8_t>>(registry.trainable().size(), 0);
    for (size_t t = 0; t < registry.trainable().size(); ++t) {
      registry.tensor(registry.trainable()[t])
          .register_hook([flags = engine->has_grad_, t](const at::Tensor& grad) {
            if (grad.defined()) (*flags)[t] = 1;
          });
    }
    for (int64_t i = 0; i < registry.size(); ++i)
      if (is_statistic(registry.entries()[static_cast<size_t>(i)]))
        engine->statistics_.push_back(i);
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
  if (precision_ != config::Precision::k16Mixed)
    return unsupported(
        str_cat("nothing to fall back to from precision ", config::precision_name(precision_)));
  bool bf16 = true;
  if (device().is_cuda()) {
    const auto& gpus = device::driver().gpus;
    const auto index = static_cast<size_t>(std::max<int>(0, device().index()));
    bf16 = index < gpus.size() && gpus[index].compute_major >= 8;
  }
  set_precision(bf16 ? config::Precision::kBf16Mixed : config::Precision::k32);
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
  try {
    optimizer_->show_whole();
    if (!gather) return ok_status();
    for (const at::Tensor& buffer : optimizer_->buffers())
      if (const int code = passes_->reducer().gather(buffer, passes_->stream()); code != 0)
        return passes_->reducer().error(code);
    return ok_status();
  } catch (const std::exception& error) {
    return train::torch_status(error).with_context("collecting the optimizer's state");
  }
}

Result<std::unique_ptr<train::StateSnapshot>> BevEngine::snapshot() {
  if (window_open_) return internal_error("snapshot inside a window: its gradients would be lost");
  train::TextScalars texts;
  if (fallen_back_) texts.emplace_back(kFallenBackTo, config::precision_name(precision_));
  AERIE_RETURN_IF_ERROR(show_state(/*gather=*/true));
  auto snapshot = train::take_snapshot(flat_state(), snapshot_memory_, std::move(texts));
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
  bool fallen_back = false;
  config::Precision precision = precision_;
  if (const auto saved = read.text(kFallenBackTo)) {
    if (*saved != "bf16-mixed" && *saved != "32")
      return data_error("the precision in the checkpoint is damaged");
    // Only for a run that would otherwise start in 16-mixed again.
    if (precision == config::Precision::k16Mixed) {
      precision = *saved == "32" ? config::Precision::k32 : config::Precision::kBf16Mixed;
      fallen_back = true;
    }
  }
  drop_window();
  if (fallen_back) set_precision(precision);
  AERIE_RETURN_IF_ERROR(read.write(flat_state()));
  fallen_back_ = fallen_back;
  return ok_status();
}

Result<train::EvalOutcome> BevEngine::evaluate(const data::Batch& batch, uint64_t seed,
                                               uint64_t position) {
  if (batch.num_samples() == 0) {
    train::EvalOutcome outcome;
    outcome.counted = false;
    return outcome;
  }
  AERIE_ASSIGN_OR_RETURN(const BevBatch tensors,
                         to_bev_batch(batch, train::random_key(seed, position, batch), device()));
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
  constexpr double kGib = 1073741824.0;
  train::EngineMemory out;
  if (device().is_cuda()) {
    const auto stats =
        at::accelerator::getDeviceStats(std::max<c10::DeviceIndex>(0, device().index()));
    out.current_gib = static_cast<double>(stats.allocated_bytes[0].current) / kGib;
    out.peak_gib = static_cast<double>(stats.allocated_bytes[0].peak) / kGib;
  } else {
    const ProcessMemory memory = process_memory();
    out.current_gib = static_cast<double>(memory.rss_bytes) / kGib;
    out.peak_gib = static_cast<double>(memory.peak_rss_bytes) / kGib;
  }
  return out;
}

}  // namespace aerie::bev
