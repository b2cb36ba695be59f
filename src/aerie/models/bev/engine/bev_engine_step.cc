#include <algorithm>
#include <utility>

#include <ATen/DeviceAccelerator.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include "aerie/base/strings.h"
#include "aerie/models/bev/engine/batch_tensors.h"
#include "aerie/models/bev/engine/bev_engine.h"
#include "aerie/train/graph/batch_key.h"
#include "aerie/train/graph/torch_status.h"

namespace aerie::bev {

struct BevEngine::Rollback {
  bool window_open = false;
  size_t micros = 0;
  at::Tensor grads;  // undefined: the window was empty
  std::vector<uint8_t> has_grad;
  std::vector<at::Tensor> statistics;
};

void BevEngine::drop_window() {
  window_open_ = false;
  window_.clear();
  statistics_at_open_.clear();
}

BevEngine::Rollback BevEngine::mark() const {
  Rollback out;
  out.window_open = window_open_;
  out.micros = window_.size();
  out.has_grad = *has_grad_;
  for (const int64_t i : statistics_)
    out.statistics.push_back(model_->parameters().tensor(i).clone());
  if (window_open_ && !window_.empty()) out.grads = model_->parameters().flat_grads().clone();
  return out;
}

void BevEngine::roll_back(const Rollback& mark) {
  at::NoGradGuard no_grad;
  const nn::ParameterRegistry& registry = model_->parameters();
  for (size_t k = 0; k < statistics_.size(); ++k)
    registry.tensor(statistics_[k]).copy_(mark.statistics[k]);
  if (mark.grads.defined()) registry.flat_grads().copy_(mark.grads);
  window_.resize(mark.micros);
  *has_grad_ = mark.has_grad;
  if (!mark.window_open) drop_window();
  if (device().is_cuda()) at::accelerator::emptyCache();
}

Status BevEngine::submit(const train::StepRequest& request) {
  AERIE_RETURN_IF_ERROR(add(request));
  if (!request.finish) return ok_status();
  if (request.momentum) optimizer_->set_momentum(*request.momentum);
  AERIE_ASSIGN_OR_RETURN(train::StepOutcome outcome, finish(request));
  finished_.push_back(std::move(outcome));
  return ok_status();
}

Result<std::vector<train::StepOutcome>> BevEngine::collect(bool) {
  return std::exchange(finished_, {});
}

Status BevEngine::add(const train::StepRequest& request) {
  AERIE_CHECK(request.accumulate >= 1 && request.split >= 1, "accumulate ", request.accumulate,
              ", split ", request.split);
  if (ema_ && ema_->swapped()) return internal_error("training while averaged weights are in use");
  Rollback before;
  try {
    before = mark();
    if (!window_open_) {
      model_->parameters().zero_grad();
      window_.clear();
      std::fill(has_grad_->begin(), has_grad_->end(), uint8_t{0});
      statistics_at_open_ = before.statistics;
      window_open_ = true;
    }
  } catch (const std::exception& error) {
    // Nothing but copies was made.
    return train::torch_status(error).with_context("training step");
  }
  Status status;
  for (size_t i = 0; i < request.micro_batches.size() && status.ok(); ++i) {
    try {
      const data::Batch& batch = *request.micro_batches[i];
      const nn::RandomKey random = train::random_key(seed_, request.first_micro_step + i, batch);
      // Other ranks may have samples in a step in which this one has none.
      if (batch.num_samples() == 0) continue;
      auto tensors = to_bev_batch(batch, random, device());
      if (!tensors.ok()) {
        status = tensors.status();
        break;
      }
      auto micro = run_micro(*tensors, request.accumulate, request.split);
      if (micro.ok())
        window_.push_back(std::move(micro).value());
      else
        status =
            train::refine_torch_status(micro.status()).with_context(str_cat("micro-batch ", i));
    } catch (const std::exception& error) {
      status = train::torch_status(error);
    }
  }
  if (status.ok()) return status;
  roll_back(before);
  return with_advice(std::move(status)).with_context("training step");
}

Result<BevEngine::Micro> BevEngine::run_micro(const BevBatch& batch, int64_t accumulate,
                                              int64_t split) {
  at::Tensor factor = at::full({}, 1.0 / static_cast<double>(accumulate),
                               at::TensorOptions(device()).dtype(at::kFloat));
  if (scaler_) factor = factor * scaler_->scale();
  const int64_t samples = batch.images.size(0);
  const int64_t parts = std::min(split, samples);
  if (parts == 1) return run_part(batch, 1.0, factor, recompute_);
  // Losses are means over equally many cells a sample: those of parts, weighted by their samples,
  // add up to the whole's in everything but BatchNorm statistics.
  Micro out;
  for (int64_t p = 0; p < parts; ++p) {
    const int64_t begin = samples * p / parts, end = samples * (p + 1) / parts;
    const double share = static_cast<double>(end - begin) / static_cast<double>(samples);
    AERIE_ASSIGN_OR_RETURN(const Micro part,
                           run_part(batch_samples(batch, begin, end), share, factor,
                                    /*recompute=*/true));
    out.loss = p == 0 ? part.loss : out.loss + part.loss;
    out.parts = p == 0 ? part.parts : out.parts + part.parts;
  }
  return out;
}

Result<BevEngine::Micro> BevEngine::run_part(const BevBatch& batch, double share,
                                             const at::Tensor& factor, bool recompute) {
  AERIE_ASSIGN_OR_RETURN(const at::Tensor logits, forward(batch, /*training=*/true, recompute));
  const MapLosses losses = map_losses(model_->config(), logits, batch.truth);
  {
    const train::DeviceSpans::Scope span(*spans_, "backward");
    const at::Tensor scaled = losses.total * (factor * share);
    if (detect_anomaly_) {
      torch::autograd::DetectAnomalyGuard guard(/*check_nan=*/true);
      scaled.backward();
    } else {
      scaled.backward();
    }
  }
  Micro out;
  std::vector<at::Tensor> values;
  part_names_.clear();
  for (const auto& [name, value] : losses.parts) {
    if (name == "loss") continue;  // the total
    part_names_.push_back(name);
    values.push_back(value.to(at::kFloat));
  }
  out.loss = losses.total.detach().to(at::kFloat) * share;
  out.parts = values.empty() ? at::zeros({0}, out.loss.options()) : at::stack(values) * share;
  return out;
}

Result<at::Tensor> BevEngine::forward(const BevBatch& batch, bool training, bool recompute) {
  const train::DeviceSpans::Scope span(*spans_, training ? "forward" : "evaluate");
  ForwardOptions options;
  options.training = training;
  options.recompute = recompute;
  options.policy = nn::DtypePolicy(precision_);
  std::string culprit;
  if (detect_anomaly_) {
    options.tap = [&](const std::string& name, const at::Tensor& value) {
      if (culprit.empty() && value.is_floating_point() &&
          !at::isfinite(value.detach()).all().item<bool>())
        culprit = name;
    };
  }
  auto logits = model_->forward(batch, options);
  if (logits.ok() && !culprit.empty())
    return internal_error(
               str_cat("detect_anomaly: the first value that is not finite is ", culprit))
        .with_hint("look at the pictures of this batch, lower model.optim.lr, or use precision 32");
  return logits;
}

Result<train::StepOutcome> BevEngine::finish(const train::StepRequest& request) {
  if (request.learning_rates.size() != optimizer_->groups().size()) {
    drop_window();
    return internal_error(str_cat(request.learning_rates.size(), " learning rates for ",
                                  optimizer_->groups().size(), " parameter groups"));
  }
  try {
    at::NoGradGuard no_grad;
    std::optional<train::DeviceSpans::Scope> span(std::in_place, *spans_, "optimizer");
    const nn::ParameterRegistry& registry = model_->parameters();
    const auto options = at::TensorOptions(device()).dtype(at::kFloat);
    std::vector<at::Tensor> losses, parts;
    for (const Micro& micro : window_) {
      losses.push_back(micro.loss);
      parts.push_back(micro.parts);
    }
    const at::Tensor loss = losses.empty() ? at::zeros({0}, options) : at::stack(losses);
    const at::Tensor part = parts.empty() ? at::zeros({0}, options) : at::cat(parts);
    const at::Tensor scale = scaler_ ? scaler_->scale().clone() : at::ones({}, options);
    const optim::GradientReport report = optim::prepare_gradients(
        registry.flat_grads(), scaler_ ? scaler_->inverse() : at::Tensor(), clip_);
    const at::Tensor found =
        at::maximum(report.found_inf, at::isfinite(loss).logical_not().any().to(at::kFloat));

    if (ema_) ema_->begin();
    optimizer_->step(request.learning_rates, found, *has_grad_);
    if (ema_) ema_->update(found);
    for (size_t k = 0; k < statistics_.size(); ++k) {
      const at::Tensor& now = registry.tensor(statistics_[k]);
      now.copy_(at::where(found != 0, statistics_at_open_[k], now));
    }
    if (scaler_) scaler_->update(found);

    span.reset();
    // One transfer for all numbers of the step.
    const at::Tensor numbers =
        at::cat({at::stack({report.norm, found.to(at::kDouble), scale.to(at::kDouble)}),
                 loss.to(at::kDouble), part.to(at::kDouble)})
            .to(at::kCPU);
    spans_->flush();
    const double* value = numbers.const_data_ptr<double>();
    const size_t num = losses.size();
    train::StepOutcome out;
    out.step = request.step;
    out.grad_norm = value[0];
    out.skipped = value[1] != 0.0;
    out.loss_scale = value[2];
    for (size_t i = 0; i < num; ++i) {
      out.micro_losses.push_back(value[3 + i]);
      out.loss += value[3 + i] / static_cast<double>(num);
      for (size_t k = 0; k < part_names_.size(); ++k)
        out.metrics.add(part_names_[k], value[3 + num + i * part_names_.size() + k], 1.0);
    }
    drop_window();
    return out;
  } catch (const std::exception& error) {
    // Whatever it was, the update may be half done: this is no "try again with smaller parts".
    drop_window();
    const Status status = with_advice(train::torch_status(error));
    return internal_error(status.message()).with_context("optimizer step").with_hint(status.hint());
  }
}

}  // namespace aerie::bev
