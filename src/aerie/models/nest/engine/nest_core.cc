#include "aerie/models/nest/engine/nest_core.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include "aerie/base/strings.h"
#include "aerie/device/gpu.h"
#include "aerie/models/nest/config/run_config.h"
#include "aerie/models/nest/nest_task.h"
#include "aerie/models/nest/step_setup.h"
#include "aerie/nn/cpu_runtime.h"
#include "aerie/train/graph/torch_status.h"

namespace aerie::train {
namespace {

void set_process_switches(const config::RunConfig& config, at::Device device) {
  at::Context& context = at::globalContext();
  nn::set_tf32(config.aerie.tf32);
  context.setBenchmarkCuDNN(config.trainer.benchmark);
  const bool deterministic = config.trainer.deterministic != config::Deterministic::kNo;
  // cuBLAS is repeatable only with a fixed workspace; it reads this when it starts.
  if (deterministic && device.is_cuda()) ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
  context.setDeterministicCuDNN(deterministic);
  context.setDeterministicAlgorithms(deterministic,
                                     config.trainer.deterministic == config::Deterministic::kWarn);
  // Filling fresh memory with NaN is a debugging aid of that mode, not part of determinism.
  context.setDeterministicFillUninitializedMemory(false);
  nn::prepare_cpu_runtime();
}

bool is_statistic(const nn::ParamInfo& info) {
  if (!info.is_buffer || info.alias_of >= 0) return false;
  return ends_with(info.name, ".running_mean") || ends_with(info.name, ".running_var") ||
         ends_with(info.name, ".num_batches_tracked");
}

void empty_device_cache(at::Device device) {
  if (device.is_cuda()) at::accelerator::emptyCache();
}

}  // namespace

struct NestCore::Rollback {
  bool window_open = false;
  size_t micros = 0;
  at::Tensor grads;  // undefined: the window was empty
  std::vector<uint8_t> has_grad;
  std::vector<at::Tensor> statistics;
};

nest::NestBatch batch_rows(const nest::NestBatch& batch, int64_t begin, int64_t end) {
  nest::NestBatch out = batch;
  const int64_t count = end - begin;
  out.audio = batch.audio.narrow(0, begin, count);
  out.noisy = batch.noisy.narrow(0, begin, count);
  out.lengths = batch.lengths.narrow(0, begin, count);
  out.noisy_lengths = batch.noisy_lengths.narrow(0, begin, count);
  // The parts see the same frames as the whole.
  if (out.padded_samples <= 0) out.padded_samples = batch.capacity();
  out.random = batch.random.from(begin);
  return out;
}

Result<std::unique_ptr<NestCore>> NestCore::create(std::unique_ptr<nest::NestModel> model,
                                                   const config::RunConfig& config) {
  try {
    std::unique_ptr<NestCore> core(new NestCore());
    core->model_ = std::move(model);
    core->spans_.emplace(core->model_->parameters().device());
    nn::ParameterRegistry& registry = core->model_->parameters();
    set_process_switches(config, registry.device());
    AERIE_ASSIGN_OR_RETURN(
        core->optimizer_,
        optim::Optimizer::create(registry, config.model.optim, config.model.optim_param_groups,
                                 config.aerie.no_weight_decay));
    core->clip_ = {config.trainer.gradient_clip_val, config.trainer.gradient_clip_algorithm};
    core->loss_scale_ = config.aerie.loss_scale;
    core->detect_anomaly_ = config.trainer.detect_anomaly;
    core->nan_when_empty_ = config.aerie.empty_mask == config::EmptyMask::kNan;
    core->set_precision(config.trainer.precision);
    const config::EmaConfig& ema = config.exp_manager.ema;
    if (ema.enable)
      core->ema_ = std::make_unique<optim::Ema>(registry, ema.decay, ema.every_n_steps,
                                                ema.cpu_offload && registry.device().is_cuda());

    core->has_grad_ = std::make_shared<std::vector<uint8_t>>(registry.trainable().size(), 0);
    for (size_t t = 0; t < registry.trainable().size(); ++t) {
      registry.tensor(registry.trainable()[t])
          .register_hook([flags = core->has_grad_, t](const at::Tensor& grad) {
            if (grad.defined()) (*flags)[t] = 1;
          });
    }
    for (int64_t i = 0; i < registry.size(); ++i)
      if (is_statistic(registry.entries()[static_cast<size_t>(i)])) core->statistics_.push_back(i);
    return core;
  } catch (const std::exception& error) {
    return torch_status(error).with_context("setting up the engine");
  }
}

NestCore::~NestCore() = default;

void NestCore::set_precision(config::Precision precision) {
  precision_ = precision;
  scaler_.reset();
  if (precision != config::Precision::k16Mixed) return;
  optim::GradScaler::Settings settings;
  if (loss_scale_) {
    settings.initial_scale = *loss_scale_;
    settings.dynamic = false;
  }
  scaler_ = std::make_unique<optim::GradScaler>(settings, device());
}

Result<config::Precision> NestCore::fall_back_precision() {
  if (precision_ != config::Precision::k16Mixed)
    return unsupported(
        str_cat("nothing to fall back to from precision ", config::precision_name(precision_)));
  bool bf16 = true;
  if (device().is_cuda()) {
    const auto& gpus = device::driver().gpus;
    const size_t index = static_cast<size_t>(std::max<int>(0, device().index()));
    bf16 = index < gpus.size() && gpus[index].compute_major >= 8;
  }
  set_precision(bf16 ? config::Precision::kBf16Mixed : config::Precision::k32);
  return precision_;
}

FlatParts NestCore::flat_parts() const {
  const auto layers = static_cast<int>(model_->settings().model.encoder.n_layers);
  return make_flat_parts(
      model_->parameters(), kernels::nest_num_parts(layers),
      [this](const nn::ParamInfo& info) { return nest::step_part(*model_, info.name); });
}

Status NestCore::set_reducer(GradientReducer* reducer) {
  if (window_open_) return internal_error("another reducer inside a window");
  watch_.reset();
  reducer_ = nullptr;
  if (reducer == nullptr) return ok_status();
  const FlatParts parts = flat_parts();
  AERIE_RETURN_IF_ERROR(
      reducer->attach(model_->parameters().flat_grads().mutable_data_ptr<float>(), parts));
  watch_ = std::make_unique<BackwardWatch>(model_->parameters(), parts);
  num_parts_ = parts.size();
  reducer_ = reducer;
  return ok_status();
}

Status NestCore::set_exchange(kernels::ExchangeSums exchange, bool recordable) {
  if (window_open_) return internal_error("another exchange inside a window");
  exchange_ = std::move(exchange);
  exchange_recordable_ = recordable;
  return ok_status();
}

void* NestCore::stream() const {
  if (device().is_cpu()) return nullptr;
  return c10::impl::VirtualGuardImpl(device().type()).getStream(device()).native_handle();
}

void NestCore::begin_part(int part) {
  ++reducing_;
  const int code = reducer_->begin(part, stream());
  if (reducer_code_ == 0) reducer_code_ = code;
}

// Begins what no backward pass has begun, as on a rank without samples, and waits in line.
Status NestCore::finish_reduction() {
  while (reducing_ < num_parts_) begin_part(num_parts_ - 1 - reducing_);
  const int code = reducer_->finish(stream());
  if (reducer_code_ == 0) reducer_code_ = code;
  if (reducer_code_ != 0)
    return internal_error(str_cat("adding up gradients over ranks: error ", reducer_code_));
  return reducer_->unite(*has_grad_);
}

void NestCore::open_window(const std::vector<at::Tensor>& statistics) {
  model_->parameters().zero_grad();
  reducing_ = reducer_code_ = 0;
  window_.clear();
  std::fill(has_grad_->begin(), has_grad_->end(), uint8_t{0});
  statistics_at_open_ = statistics;
  window_open_ = true;
}

void NestCore::drop_window() {
  window_open_ = false;
  window_.clear();
  statistics_at_open_.clear();
}

NestCore::Rollback NestCore::mark() const {
  Rollback out;
  out.window_open = window_open_;
  out.micros = window_.size();
  out.has_grad = *has_grad_;
  for (const int64_t i : statistics_)
    out.statistics.push_back(model_->parameters().tensor(i).clone());
  if (window_open_ && !window_.empty()) out.grads = model_->parameters().flat_grads().clone();
  return out;
}

void NestCore::roll_back(const Rollback& mark) {
  at::NoGradGuard no_grad;
  nn::ParameterRegistry& registry = model_->parameters();
  for (size_t k = 0; k < statistics_.size(); ++k)
    registry.tensor(statistics_[k]).copy_(mark.statistics[k]);
  if (mark.grads.defined()) registry.flat_grads().copy_(mark.grads);
  reducing_ = reducer_code_ = 0;
  window_.resize(mark.micros);
  *has_grad_ = mark.has_grad;
  if (!mark.window_open) drop_window();
  empty_device_cache(device());
}

Status NestCore::add(int64_t count, const MakeBatch& batch, int64_t accumulate, int64_t split,
                     bool ends_window) {
  AERIE_CHECK(accumulate >= 1 && split >= 1, "accumulate ", accumulate, ", split ", split);
  if (ema_ && ema_->swapped()) return internal_error("training while averaged weights are in use");
  Rollback before;
  try {
    before = mark();
    if (!window_open_) open_window(before.statistics);
  } catch (const std::exception& error) {
    // Nothing but copies was made.
    empty_device_cache(device());
    return torch_status(error).with_context("training step");
  }
  Status status;
  try {
    for (int64_t i = 0; i < count && status.ok(); ++i) {
      auto made = batch(i);
      if (!made.ok()) {
        status = made.status();
        break;
      }
      auto micro = run_micro(*made, accumulate, split, ends_window && i + 1 == count);
      if (micro.ok()) {
        window_.push_back(std::move(micro).value());
      } else {
        status = refine_torch_status(micro.status()).with_context(str_cat("micro-batch ", i));
      }
    }
  } catch (const std::exception& error) {
    status = torch_status(error);
  }
  if (status.ok()) return status;
  roll_back(before);
  return status.with_context("training step");
}

Result<NestCore::Micro> NestCore::run_micro(const nest::NestBatch& batch, int64_t accumulate,
                                            int64_t split, bool last) {
  const auto options = at::TensorOptions(device());
  Micro micro;
  const int64_t rows = batch.size();
  if (rows == 0) {
    // Other ranks had samples in this step, this one had none.
    micro.loss = at::zeros({}, options.dtype(at::kFloat));
    micro.count = at::zeros({}, options.dtype(at::kLong));
    micro.frames = at::zeros({}, options.dtype(at::kLong));
    return micro;
  }
  at::Tensor factor =
      at::full({}, 1.0 / static_cast<double>(accumulate), options.dtype(at::kFloat));
  if (scaler_) factor = factor * scaler_->scale();
  const int64_t parts = std::min(split, rows);
  if (parts == 1) {
    AERIE_ASSIGN_OR_RETURN(const nest::NestOutput out, forward(batch, /*training=*/true));
    AERIE_RETURN_IF_ERROR(backward(out.loss * factor, last));
    micro.loss = out.loss.detach().to(at::kFloat);
    micro.count = out.loss_parts.count;
    micro.frames = out.encoded_lengths.sum();
    return micro;
  }
  AERIE_ASSIGN_OR_RETURN(const int64_t total, masked_frames(batch, parts));
  const double weight = 1.0 / static_cast<double>(std::max<int64_t>(total, 1));
  at::Tensor sum;
  for (int64_t p = 0; p < parts; ++p) {
    const nest::NestBatch part = batch_rows(batch, rows * p / parts, rows * (p + 1) / parts);
    AERIE_ASSIGN_OR_RETURN(const nest::NestOutput out, forward(part, /*training=*/true));
    AERIE_RETURN_IF_ERROR(backward(out.loss_parts.sum * weight * factor, last && p + 1 == parts));
    const at::Tensor part_sum = out.loss_parts.sum.detach();
    const at::Tensor part_frames = out.encoded_lengths.sum();
    sum = p == 0 ? part_sum : sum + part_sum;
    micro.count = p == 0 ? out.loss_parts.count : micro.count + out.loss_parts.count;
    micro.frames = p == 0 ? part_frames : micro.frames + part_frames;
  }
  micro.loss = nest::mean_loss({sum, micro.count}, nan_when_empty_).to(at::kFloat);
  return micro;
}

Result<nest::NestOutput> NestCore::forward(const nest::NestBatch& batch, bool training) {
  const DeviceSpans::Scope span(*spans_, training ? "forward" : "evaluate");
  nest::ForwardOptions options;
  options.training = training;
  options.policy = nn::DtypePolicy(precision_);
  options.mask_spans = forced_masks_;
  if (training && exchange_) options.exchange = &exchange_;
  std::string culprit;
  if (detect_anomaly_) {
    options.tap = [&](const std::string& name, const at::Tensor& value) {
      if (culprit.empty() && value.is_floating_point() &&
          !at::isfinite(value.detach()).all().item<bool>())
        culprit = name;
    };
  }
  auto out = model_->forward(batch, options);
  if (out.ok() && !culprit.empty())
    return internal_error(
               str_cat("detect_anomaly: the first value that is not finite is ", culprit))
        .with_hint("look at the audio of this batch, lower model.optim.lr, or use precision 32");
  return out;
}

Status NestCore::backward(const at::Tensor& loss, bool last) {
  const DeviceSpans::Scope span(*spans_, "backward");
  // Recomputed layers add to shared parameters one by one: all parts come behind the pass then.
  const bool watched = last && reducer_ != nullptr && !model_->recomputes();
  try {
    if (watched) watch_->arm([this](int part) { begin_part(part); });
    if (detect_anomaly_) {
      torch::autograd::DetectAnomalyGuard guard(/*check_nan=*/true);
      loss.backward();
    } else {
      loss.backward();
    }
    if (watched) watch_->finish();
    return ok_status();
  } catch (const std::exception& error) {
    return torch_status(error).with_context("backward pass");
  }
}

Result<int64_t> NestCore::masked_frames(const nest::NestBatch& batch, int64_t split) {
  at::NoGradGuard no_grad;
  const config::LossConfig& loss = model_->settings().model.loss;
  const nest::Preprocessor& preprocessor = model_->preprocessor();
  const int64_t samples = batch.padded_samples > 0 ? batch.padded_samples : batch.capacity();
  const int64_t rows = batch.size();
  const auto count = [&](const nn::RandomKey& key, const at::Tensor& lengths, int64_t frames) {
    const at::Tensor mask = nest::mask_from_spans(model_->masking().draw(key, lengths), frames);
    return nest::loss_frames(mask, loss.combine_time_steps, loss.mask_threshold)
        .sum()
        .item<int64_t>();
  };
  if (!model_->settings().post_conv) {
    const at::Tensor noisy = batch.noisy_lengths.to(at::kCPU).contiguous();
    at::Tensor lengths = at::empty({rows}, at::kLong);
    for (int64_t b = 0; b < rows; ++b)
      lengths.data_ptr<int64_t>()[b] = preprocessor.frames_of(noisy.data_ptr<int64_t>()[b]);
    return count(batch.random, lengths, preprocessor.padded_frames_of(samples));
  }
  // Lengths behind the subsampling are its own business: ask it, part by part.
  int64_t total = 0;
  for (int64_t p = 0; p < split; ++p) {
    const nest::NestBatch part = batch_rows(batch, rows * p / split, rows * (p + 1) / split);
    const nest::Features features =
        preprocessor.forward(part.noisy.narrow(1, 0, samples), part.noisy_lengths, {});
    nn::ForwardContext context;
    context.policy = nn::DtypePolicy(precision_);
    const auto sub = model_->encoder().subsample(
        context, features.values.to(model_->parameters().dtype()), features.lengths);
    total += count(part.random, sub.lengths, sub.x.size(1));
  }
  return total;
}

std::string NestCore::first_nonfinite_gradient() const {
  const nn::ParameterRegistry& registry = model_->parameters();
  for (const int64_t index : registry.trainable())
    if (!at::isfinite(registry.grad(index)).all().item<bool>())
      return registry.entries()[static_cast<size_t>(index)].name;
  return "";
}

Result<StepOutcome> NestCore::finish(std::span<const double> learning_rates) {
  if (!window_open_) return internal_error("finish() without micro-batches");
  if (learning_rates.size() != optimizer_->groups().size())
    return internal_error(str_cat(learning_rates.size(), " learning rates for ",
                                  optimizer_->groups().size(), " parameter groups"));
  try {
    at::NoGradGuard no_grad;
    std::optional<DeviceSpans::Scope> span(std::in_place, *spans_, "optimizer");
    nn::ParameterRegistry& registry = model_->parameters();
    const auto options = at::TensorOptions(device());
    std::vector<at::Tensor> losses, counts, frames;
    for (const Micro& micro : window_) {
      losses.push_back(micro.loss);
      counts.push_back(micro.count);
      frames.push_back(micro.frames);
    }
    if (losses.empty()) {
      losses.push_back(at::zeros({}, options.dtype(at::kFloat)));
      counts.push_back(at::zeros({}, options.dtype(at::kLong)));
      frames.push_back(counts.back());
    }
    const at::Tensor loss = at::stack(losses);
    const at::Tensor count = at::stack(counts);

    if (reducer_ != nullptr) {
      const Status reduced = finish_reduction();
      if (!reduced.ok()) {
        drop_window();
        return reduced;
      }
    }
    const at::Tensor scale =
        scaler_ ? scaler_->scale().clone() : at::ones({}, options.dtype(at::kFloat));
    const optim::GradientReport report = optim::prepare_gradients(
        registry.flat_grads(), scaler_ ? scaler_->inverse() : at::Tensor(), clip_);
    // NeMo's NaN for an empty mask comes with zero gradients and counts as a step.
    at::Tensor bad_loss =
        at::isfinite(loss).logical_not().logical_and(count > 0).any().to(at::kFloat);
    if (reducer_ != nullptr) {
      // All ranks skip, or none does.
      const int code = reducer_->add_up(bad_loss.mutable_data_ptr<float>(), 1, stream());
      if (code != 0) {
        drop_window();
        return internal_error(str_cat("adding up over ranks: error ", code));
      }
      bad_loss = bad_loss.clamp_max(1.0);
    }
    const at::Tensor found = at::maximum(report.found_inf, bad_loss);

    if (detect_anomaly_ && !(scaler_ && scaler_->settings().dynamic) &&
        found.item<float>() != 0.0f) {
      const std::string name = first_nonfinite_gradient();
      drop_window();
      return internal_error(name.empty() ? std::string("detect_anomaly: the loss is not finite")
                                         : str_cat("detect_anomaly: the gradient of ", name,
                                                   " is the first that is not finite"))
          .with_hint("look at the audio of this batch, lower model.optim.lr, or use precision 32");
    }

    if (ema_) ema_->begin();
    optimizer_->step(learning_rates, found, *has_grad_);
    if (ema_) ema_->update(found);
    for (size_t k = 0; k < statistics_.size(); ++k) {
      const at::Tensor& now = registry.tensor(statistics_[k]);
      now.copy_(at::where(found != 0, statistics_at_open_[k], now));
    }
    if (scaler_) scaler_->update(found);

    span.reset();
    // One transfer for all numbers of the step.
    SpanScope read_back("read-back");
    const at::Tensor numbers =
        at::cat({at::stack({report.norm, found.to(at::kDouble), scale.to(at::kDouble)}),
                 loss.to(at::kDouble), count.to(at::kDouble), at::stack(frames).to(at::kDouble)})
            .to(at::kCPU);
    read_back.end();
    spans_->flush();
    const double* value = numbers.const_data_ptr<double>();
    const size_t num = losses.size();
    StepOutcome out;
    out.grad_norm = value[0];
    out.skipped = value[1] != 0.0;
    out.loss_scale = value[2];
    for (size_t i = 0; i < num; ++i) {
      const double micro_loss = value[3 + i];
      const auto masked = static_cast<int64_t>(value[3 + num + i]);
      out.micro_losses.push_back(micro_loss);
      out.loss += micro_loss / static_cast<double>(num);
      nest::add_frames(out, masked, static_cast<int64_t>(value[3 + 2 * num + i]));
      if (masked == 0) ++out.without_loss;
    }
    drop_window();
    return out;
  } catch (const std::exception& error) {
    // Whatever it was, the update may be half done: this is no "try again with smaller parts".
    drop_window();
    const Status status = torch_status(error);
    return internal_error(status.message()).with_context("optimizer step").with_hint(status.hint());
  }
}

Result<EvalOutcome> NestCore::evaluate(const nest::NestBatch& batch) {
  const int64_t rows = batch.size();
  EvalOutcome outcome;
  if (rows == 0) {
    outcome.counted = false;
    return outcome;
  }
  // Items do not see each other in eval mode, so a batch may be cut wherever it fits.
  for (int64_t parts = 1;; parts = std::min(parts * 2, rows)) {
    Status status;
    try {
      at::NoGradGuard no_grad;
      at::Tensor sum, count;
      for (int64_t p = 0; p < parts && status.ok(); ++p) {
        auto out = forward(batch_rows(batch, rows * p / parts, rows * (p + 1) / parts),
                           /*training=*/false);
        if (!out.ok()) {
          status = refine_torch_status(out.status());
        } else {
          sum = p == 0 ? out->loss_parts.sum : sum + out->loss_parts.sum;
          count = p == 0 ? out->loss_parts.count : count + out->loss_parts.count;
        }
      }
      if (status.ok()) {
        const auto masked = count.item<int64_t>();
        outcome.sums = {static_cast<double>(masked)};
        outcome.loss = nest::mean_loss({sum, count}, nan_when_empty_).item<double>();
        outcome.counted = nan_when_empty_ || masked > 0;
        return outcome;
      }
    } catch (const std::exception& error) {
      status = torch_status(error);
    }
    if (status.code() != StatusCode::kOutOfMemory || parts >= rows)
      return std::move(status).with_context("evaluation");
    empty_device_cache(device());
  }
}

}  // namespace aerie::train
