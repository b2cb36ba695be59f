#include "aerie/models/nest/engine/nest_core.h"

#include <algorithm>
#include <utility>

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

#include "aerie/base/strings.h"
#include "aerie/models/nest/config/run_config.h"
#include "aerie/models/nest/nest_task.h"
#include "aerie/models/nest/step_setup.h"
#include "aerie/train/graph/torch_status.h"

namespace aerie::train {
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
    std::unique_ptr<NestCore> core(new NestCore(std::move(model)));
    set_process_switches(config.trainer, config.aerie.tf32, core->device());
    AERIE_ASSIGN_OR_RETURN(
        auto optimizer,
        optim::Optimizer::create(core->registry(), config.model.optim,
                                 config.model.optim_param_groups, config.aerie.no_weight_decay));
    optim::GradScaler::Settings scaling;
    if (config.aerie.loss_scale) {
      scaling.initial_scale = *config.aerie.loss_scale;
      scaling.dynamic = false;
    }
    core->set_up(std::move(optimizer), config.trainer, config.exp_manager.ema, scaling,
                 {config.trainer.gradient_clip_val, config.trainer.gradient_clip_algorithm});
    core->nan_when_empty_ = config.aerie.empty_mask == config::EmptyMask::kNan;
    return core;
  } catch (const std::exception& error) {
    return torch_status(error).with_context("setting up the engine");
  }
}

FlatParts NestCore::flat_parts() const {
  const auto layers = static_cast<int>(model_->settings().model.encoder.n_layers);
  return make_flat_parts(
      model_->parameters(), kernels::nest_num_parts(layers),
      [this](const nn::ParamInfo& info) { return nest::step_part(*model_, info.name); });
}

Status NestCore::set_exchange(kernels::ExchangeSums exchange, bool recordable) {
  AERIE_RETURN_IF_ERROR(AutogradCore::set_exchange({}, recordable));
  const config::EncoderConfig& encoder = model_->settings().model.encoder;
  // Other norms have nothing to exchange.
  if (!exchange || encoder.conv_norm_type != config::ConvNorm::kBatchNorm) return ok_status();
  std::vector<RankedPasses::Exchanged> layers;
  for (int64_t i = 0; i < encoder.n_layers; ++i) {
    const int64_t weight =
        registry().find(str_cat("encoder.layers.", i, ".conv.batch_norm.weight"));
    layers.push_back({static_cast<int>(i), encoder.d_model, weight});
  }
  passes_.set_exchange(std::move(exchange), std::move(layers));
  return ok_status();
}

void NestCore::drop_window() {
  AutogradCore::drop_window();
  window_.clear();
}

Status NestCore::add(int64_t count, const MakeBatch& batch, int64_t accumulate, int64_t split,
                     bool ends_window, const Vote& vote) {
  AERIE_CHECK(accumulate >= 1 && split >= 1, "accumulate ", accumulate, ", split ", split);
  const size_t micros = window_.size();
  Status status = in_window([&] { return run_all(count, batch, accumulate, split, ends_window); },
                            count * split, ends_window, vote);
  if (!status.ok()) window_.resize(micros);
  return status;
}

Status NestCore::run_all(int64_t count, const MakeBatch& batch, int64_t accumulate, int64_t split,
                         bool ends_window) {
  Weight weight;
  weight.accumulate = accumulate;
  std::vector<nest::NestBatch> all;  // of a global loss, which is known before the first
  if (global_loss_) {
    for (int64_t i = 0; i < count; ++i) {
      AERIE_ASSIGN_OR_RETURN(nest::NestBatch made, batch(i));
      all.push_back(std::move(made));
    }
    AERIE_ASSIGN_OR_RETURN(weight, weigh(all, split));
  }
  for (int64_t i = 0; i < count; ++i) {
    nest::NestBatch made;
    if (global_loss_) {
      made = std::move(all[static_cast<size_t>(i)]);
    } else {
      AERIE_ASSIGN_OR_RETURN(made, batch(i));
    }
    auto micro = run_micro(made, weight, split, ends_window && i + 1 == count);
    if (!micro.ok())
      return refine_torch_status(micro.status()).with_context(str_cat("micro-batch ", i));
    window_.push_back(std::move(micro).value());
  }
  return ok_status();
}

Result<NestCore::Weight> NestCore::weigh(const std::vector<nest::NestBatch>& batches,
                                         int64_t split) {
  int64_t frames = 0;
  for (const nest::NestBatch& batch : batches) {
    if (batch.size() == 0) continue;
    AERIE_ASSIGN_OR_RETURN(const int64_t masked,
                           masked_frames(batch, std::min(split, batch.size())));
    frames += masked;
  }
  AERIE_ASSIGN_OR_RETURN(const int64_t divisor, divisor_for(frames));
  Weight weight;
  weight.global = true;
  // A mean over the ranks follows.
  weight.of_sum = static_cast<double>(world()) / static_cast<double>(divisor);
  return weight;
}

Result<NestCore::Micro> NestCore::run_micro(const nest::NestBatch& batch, const Weight& weight,
                                            int64_t split, bool last) {
  const auto options = at::TensorOptions(device());
  Micro micro;
  const int64_t rows = batch.size();
  if (rows == 0) {
    // Other ranks had samples in this step, this one had none.
    micro.loss = at::zeros({}, options.dtype(at::kFloat));
    micro.count = at::zeros({}, options.dtype(at::kLong));
    micro.frames = at::zeros({}, options.dtype(at::kLong));
    for (int64_t p = 0; p < split; ++p) AERIE_RETURN_IF_ERROR(passes_.without_samples());
    return micro;
  }
  at::Tensor factor =
      at::full({}, weight.global ? weight.of_sum : 1.0 / static_cast<double>(weight.accumulate),
               options.dtype(at::kFloat));
  if (scaler_) factor = factor * scaler_->scale();
  const int64_t parts = num_passes(split, rows);
  if (parts == 1 && !weight.global) {
    AERIE_ASSIGN_OR_RETURN(const nest::NestOutput out, forward(batch, /*training=*/true));
    AERIE_RETURN_IF_ERROR(backward(out.loss * factor, last));
    micro.loss = out.loss.detach().to(at::kFloat);
    micro.count = out.loss_parts.count;
    micro.frames = out.encoded_lengths.sum();
    return micro;
  }
  double of_part = 1.0;
  if (!weight.global) {
    AERIE_ASSIGN_OR_RETURN(const int64_t total, masked_frames(batch, std::min(parts, rows)));
    of_part = 1.0 / static_cast<double>(std::max<int64_t>(total, 1));
  }
  at::Tensor sum;
  for (int64_t p = 0; p < parts; ++p) {
    const int64_t begin = rows * p / parts, end = rows * (p + 1) / parts;
    if (begin == end) {
      AERIE_RETURN_IF_ERROR(passes_.without_samples());
      continue;
    }
    const nest::NestBatch part = parts == 1 ? batch : batch_rows(batch, begin, end);
    AERIE_ASSIGN_OR_RETURN(const nest::NestOutput out, forward(part, /*training=*/true));
    AERIE_RETURN_IF_ERROR(backward(out.loss_parts.sum * of_part * factor, last && end == rows));
    const at::Tensor part_sum = out.loss_parts.sum.detach();
    const at::Tensor part_frames = out.encoded_lengths.sum();
    sum = sum.defined() ? sum + part_sum : part_sum;
    micro.count = micro.count.defined() ? micro.count + out.loss_parts.count : out.loss_parts.count;
    micro.frames = micro.frames.defined() ? micro.frames + part_frames : part_frames;
  }
  micro.loss = nest::mean_loss({sum, micro.count}, nan_when_empty_).to(at::kFloat);
  return micro;
}

Result<nest::NestOutput> NestCore::forward(const nest::NestBatch& batch, bool training) {
  if (training) passes_.enter(dist::Phase::kForward);
  const DeviceSpans::Scope span(spans_, training ? "forward" : "evaluate");
  nest::ForwardOptions options;
  options.training = training;
  options.policy = nn::DtypePolicy(precision_);
  options.mask_spans = forced_masks_;
  if (training && exchange()) options.exchange = &exchange();
  std::string culprit;
  if (detect_anomaly_) options.tap = first_nonfinite(&culprit);
  auto out = model_->forward(batch, options);
  if (out.ok() && !culprit.empty())
    return internal_error(
               str_cat("detect_anomaly: the first value that is not finite is ", culprit))
        .with_hint("look at the audio of this batch, lower model.optim.lr, or use precision 32");
  return out;
}

Result<int64_t> NestCore::masked_frames(const nest::NestBatch& batch, int64_t split) {
  at::NoGradGuard no_grad;
  const config::LossConfig& loss = model_->settings().model.loss;
  const nest::Preprocessor& preprocessor = model_->preprocessor();
  const int64_t samples = batch.padded_samples > 0 ? batch.padded_samples : batch.capacity();
  const int64_t rows = batch.size();
  const auto count = [&](const nn::RandomKey& key, const at::Tensor& lengths, int64_t frames) {
    const at::Tensor mask = nest::mask_from_spans(
        forced_masks_ != nullptr ? *forced_masks_ : model_->masking().draw(key, lengths), frames);
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
  for (const int64_t index : registry().trainable())
    if (!at::isfinite(registry().grad(index)).all().item<bool>())
      return registry().entries()[static_cast<size_t>(index)].name;
  return "";
}

Result<StepOutcome> NestCore::finish(std::span<const double> learning_rates) {
  if (!window_open()) return internal_error("finish() without micro-batches");
  AERIE_RETURN_IF_ERROR(check_rates(learning_rates));
  try {
    at::NoGradGuard no_grad;
    std::optional<DeviceSpans::Scope> span(std::in_place, spans_, "optimizer");
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

    AERIE_RETURN_IF_ERROR(reduce());
    const at::Tensor scale =
        scaler_ ? scaler_->scale().clone() : at::ones({}, options.dtype(at::kFloat));
    const optim::GradientReport report = prepare_gradients();
    // NeMo's NaN for an empty mask comes with zero gradients and counts as a step.
    const at::Tensor bad_loss =
        at::isfinite(loss).logical_not().logical_and(count > 0).any().to(at::kFloat);
    // Of a global loss, what all ranks have of it.
    std::vector<at::Tensor> extra;
    if (global_loss_)
      extra.push_back(
          at::stack({at::where(count > 0, loss.to(at::kDouble) * count.to(at::kDouble), 0.0).sum(),
                     count.sum().to(at::kDouble)}));
    // All ranks skip, or none does.
    AERIE_RETURN_IF_ERROR(add_up(bad_loss));
    if (global_loss_) AERIE_RETURN_IF_ERROR(add_up(extra[0]));
    const at::Tensor found = at::maximum(report.found_inf, bad_loss.clamp_max(1.0));

    if (detect_anomaly_ && !(scaler_ && scaler_->settings().dynamic) &&
        found.item<float>() != 0.0f) {
      const std::string name = first_nonfinite_gradient();
      drop_window();
      return internal_error(name.empty() ? std::string("detect_anomaly: the loss is not finite")
                                         : str_cat("detect_anomaly: the gradient of ", name,
                                                   " is the first that is not finite"))
          .with_hint("look at the audio of this batch, lower model.optim.lr, or use precision 32");
    }

    update(learning_rates, found);

    span.reset();
    // One transfer for all numbers of the step.
    SpanScope read_back("read-back");
    extra.insert(extra.begin(),
                 {at::stack({report.norm, found.to(at::kDouble), scale.to(at::kDouble)}),
                  loss.to(at::kDouble), count.to(at::kDouble), at::stack(frames).to(at::kDouble)});
    const at::Tensor numbers = at::cat(extra).to(at::kCPU);
    read_back.end();
    spans_.flush();
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
    if (const double* sums = value + 3 + 3 * num; global_loss_ && sums[1] > 0.0)
      out.loss = sums[0] / sums[1];
    drop_window();
    return out;
  } catch (const std::exception& error) {
    return half_done(torch_status(error));
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
        if (global_loss_) outcome.weight = static_cast<double>(masked);
        return outcome;
      }
    } catch (const std::exception& error) {
      status = torch_status(error);
    }
    if (status.code() != StatusCode::kOutOfMemory || parts >= rows)
      return std::move(status).with_context("evaluation");
    release_memory();
  }
}

}  // namespace aerie::train
