#include <algorithm>
#include <utility>

#include <ATen/DeviceAccelerator.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "aerie/base/strings.h"
#include "aerie/models/bev/engine/batch_tensors.h"
#include "aerie/models/bev/engine/bev_engine.h"
#include "aerie/train/graph/autograd_parts.h"
#include "aerie/train/graph/batch_key.h"
#include "aerie/train/graph/torch_status.h"

namespace aerie::bev {

struct BevEngine::Rollback {
  bool window_open = false;
  size_t micros = 0;
  train::PassMark passes;
  int64_t divisor = 0, samples = 0;
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
  out.divisor = window_divisor_;
  out.samples = window_samples_;
  out.passes = train::mark_passes(model_->parameters(), statistics_, *has_grad_,
                                  /*with_grads=*/window_open_ && !window_.empty());
  return out;
}

void BevEngine::roll_back(const Rollback& mark) {
  train::roll_back_passes(mark.passes, model_->parameters(), statistics_, *has_grad_);
  if (passes_) passes_->open_window();
  window_divisor_ = mark.divisor;
  window_samples_ = mark.samples;
  window_.resize(mark.micros);
  if (!mark.window_open) drop_window();
  if (device().is_cuda()) at::accelerator::emptyCache();
}

Status BevEngine::submit(const train::StepRequest& request) {
  AERIE_RETURN_IF_ERROR(meet_ranks());
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
      window_divisor_ = window_samples_ = 0;
      if (passes_) passes_->open_window();
      std::fill(has_grad_->begin(), has_grad_->end(), uint8_t{0});
      statistics_at_open_ = before.passes.statistics;
      window_open_ = true;
    }
  } catch (const std::exception& error) {
    // Nothing but copies was made.
    return with_advice(train::torch_status(error)).with_context("training step");
  }
  Status status;
  if (passes_) passes_->open_request();
  try {
    status = run_all(request);
  } catch (const std::exception& error) {
    status = train::torch_status(error);
  }
  if (passes_) {
    if (status.code() == StatusCode::kOutOfMemory && device().is_cuda())
      at::accelerator::emptyCache();
    const auto passes = static_cast<int64_t>(request.micro_batches.size()) * request.split;
    status = passes_->agree(std::move(status), passes, request.finish, *has_grad_, request.agree);
  }
  if (status.ok()) return status;
  status = train::roll_back_after(std::move(status), [&] { roll_back(before); });
  return with_advice(std::move(status)).with_context("training step");
}

Status BevEngine::run_all(const train::StepRequest& request) {
  AERIE_ASSIGN_OR_RETURN(const std::vector<double> weights, weigh(request));
  if (passes_ && passes_->ranks().broadcasts_buffers() && window_.empty()) {
    std::vector<at::Tensor> statistics;
    for (const int64_t i : statistics_) statistics.push_back(model_->parameters().tensor(i));
    AERIE_RETURN_IF_ERROR(passes_->ranks().broadcast(std::move(statistics)));
  }
  const size_t count = request.micro_batches.size();
  for (size_t i = 0; i < count; ++i) {
    const data::Batch& batch = *request.micro_batches[i];
    // Other ranks may have samples in a step in which this one has none.
    if (batch.num_samples() == 0) {
      for (int64_t p = 0; passes_ && p < request.split; ++p)
        AERIE_RETURN_IF_ERROR(passes_->without_samples());
      continue;
    }
    if (passes_) passes_->ranks().group().set_phase(dist::Phase::kForward);
    const nn::RandomKey random = train::random_key(seed_, request.first_micro_step + i, batch);
    AERIE_ASSIGN_OR_RETURN(const BevBatch tensors, to_bev_batch(batch, random, device()));
    auto micro = run_micro(tensors, weights[i], request.split, request.finish && i + 1 == count);
    if (!micro.ok())
      return train::refine_torch_status(micro.status()).with_context(str_cat("micro-batch ", i));
    window_.push_back(std::move(micro).value());
  }
  return ok_status();
}

Result<std::vector<double>> BevEngine::weigh(const train::StepRequest& request) {
  const size_t count = request.micro_batches.size();
  if (!global_loss_)
    return std::vector<double>(count, 1.0 / static_cast<double>(request.accumulate));
  int64_t own = 0;
  for (const data::Batch* batch : request.micro_batches) own += batch->num_samples();
  auto all = static_cast<double>(own);
  if (passes_) AERIE_RETURN_IF_ERROR(passes_->reducer().add_up_on_host(std::span(&all, 1)));
  const int64_t samples = std::max<int64_t>(static_cast<int64_t>(all), 1);
  window_samples_ += samples;
  // Where a window comes in several requests, the first has set the divisor; finish() makes up for
  // it.
  if (window_divisor_ == 0) window_divisor_ = samples;
  const int world = passes_ ? passes_->reducer().world() : 1;  // a mean over them follows
  std::vector<double> out;
  for (const data::Batch* batch : request.micro_batches)
    out.push_back(static_cast<double>(batch->num_samples() * world) /
                  static_cast<double>(window_divisor_));
  return out;
}

Result<BevEngine::Micro> BevEngine::run_micro(const BevBatch& batch, double weight, int64_t split,
                                              bool last) {
  at::Tensor factor = at::full({}, weight, at::TensorOptions(device()).dtype(at::kFloat));
  if (scaler_) factor = factor * scaler_->scale();
  const int64_t samples = batch.images.size(0);
  // All ranks make as many passes when they meet in them.
  const bool meet = passes_ && passes_->exchange() != nullptr;
  const int64_t parts = meet ? split : std::min(split, samples);
  Micro out;
  if (parts == 1) {
    AERIE_ASSIGN_OR_RETURN(out, run_part(batch, 1.0, factor, recompute_, last));
    out.samples = samples;
    return out;
  }
  // Losses are means over equally many cells a sample: those of parts, weighted by their samples,
  // add up to the whole's in everything but BatchNorm statistics. torch's reducer takes recomputed
  // blocks for a mistake.
  const bool recompute = recompute_ || !(passes_ && passes_->reducer().watches_backward());
  for (int64_t p = 0; p < parts; ++p) {
    const int64_t begin = samples * p / parts, end = samples * (p + 1) / parts;
    if (begin == end) {
      AERIE_RETURN_IF_ERROR(passes_->without_samples());
      continue;
    }
    const double share = static_cast<double>(end - begin) / static_cast<double>(samples);
    AERIE_ASSIGN_OR_RETURN(const Micro part, run_part(batch_samples(batch, begin, end), share,
                                                      factor, recompute, last && end == samples));
    out.loss = out.loss.defined() ? out.loss + part.loss : part.loss;
    out.parts = out.parts.defined() ? out.parts + part.parts : part.parts;
  }
  out.samples = samples;
  return out;
}

Result<BevEngine::Micro> BevEngine::run_part(const BevBatch& batch, double share,
                                             const at::Tensor& factor, bool recompute, bool last) {
  AERIE_ASSIGN_OR_RETURN(const at::Tensor logits, forward(batch, /*training=*/true, recompute,
                                                          passes_ ? passes_->exchange() : nullptr));
  const MapLosses losses = map_losses(model_->config(), logits, batch.truth);
  AERIE_RETURN_IF_ERROR(backward(losses.total * (factor * share), recompute, last));
  Micro out;
  std::vector<at::Tensor> values;
  for (const auto& [name, value] : losses.parts)
    if (name != "loss") values.push_back(value.to(at::kFloat));  // the total
  out.loss = losses.total.detach().to(at::kFloat) * share;
  out.parts = values.empty() ? at::zeros({0}, out.loss.options()) : at::stack(values) * share;
  return out;
}

Status BevEngine::backward(const at::Tensor& loss, bool recompute, bool last) {
  const train::DeviceSpans::Scope span(*spans_, "backward");
  const auto run = [&] { train::run_backward(loss, detect_anomaly_); };
  if (passes_) return passes_->backward(loss, last, /*whole=*/!recompute, run);
  run();
  return ok_status();
}

// Black pictures of one camera: what is exchanged does not depend on them.
Status BevEngine::rehearse(const kernels::ExchangeSums& exchange) {
  const BevConfig& c = model_->config();
  std::vector<at::Tensor> kept;
  for (const int64_t i : statistics_) kept.push_back(model_->parameters().tensor(i).clone());
  const at::NoGradGuard no_grad;
  BevBatch batch;
  batch.images = at::zeros({1, 1, 3, c.image_height, c.image_width},
                           at::TensorOptions(device()).dtype(at::kByte));
  const at::Tensor identity = at::eye(4, at::TensorOptions().dtype(at::kFloat)).view({1, 1, 4, 4});
  batch.matrices = {identity, identity, identity, identity[0]};
  const Status status = forward(batch, /*training=*/true, /*recompute=*/false, &exchange).status();
  for (size_t k = 0; k < statistics_.size(); ++k)
    model_->parameters().tensor(statistics_[k]).copy_(kept[k]);
  return status.with_context("looking at a pass without samples");
}

Result<at::Tensor> BevEngine::forward(const BevBatch& batch, bool training, bool recompute,
                                      const kernels::ExchangeSums* exchange) {
  const train::DeviceSpans::Scope span(*spans_, training ? "forward" : "evaluate");
  ForwardOptions options;
  options.training = training;
  options.recompute = recompute;
  options.exchange = exchange;
  options.policy = nn::DtypePolicy(precision_);
  std::string culprit;
  if (detect_anomaly_) options.tap = train::first_nonfinite(&culprit);
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
    const auto num_parts = static_cast<int64_t>(part_names_.size());
    // Of all micro-batches, and then of all ranks: is a loss not finite, weights, losses, parts.
    at::Tensor totals = at::zeros({3 + num_parts}, options.dtype(at::kDouble));
    std::vector<at::Tensor> losses;
    for (const Micro& micro : window_) {
      const double weight = global_loss_ ? static_cast<double>(micro.samples) : 1.0;
      losses.push_back(micro.loss);
      const at::Tensor own = micro.loss.to(at::kDouble).view({1});
      totals += at::cat({at::isfinite(own).logical_not().to(at::kDouble),
                         at::full({1}, weight, totals.options()), own * weight,
                         micro.parts.to(at::kDouble) * weight});
    }
    const at::Tensor loss = losses.empty() ? at::zeros({0}, options) : at::stack(losses);
    const at::Tensor scale = scaler_ ? scaler_->scale().clone() : at::ones({}, options);

    at::Tensor grads = registry.flat_grads();
    std::function<void(const at::Tensor&)> add_up_squares;
    if (passes_) {
      train::GradientReducer& reducer = passes_->reducer();
      const auto add_up = [&](const at::Tensor& values) {
        const int code = reducer.add_up_wide(values.mutable_data_ptr<double>(), values.numel(),
                                             passes_->stream());
        TORCH_CHECK(code == 0, reducer.error(code).message());
      };
      if (const Status reduced = passes_->finish(*has_grad_); !reduced.ok()) {
        drop_window();
        return reduced;
      }
      add_up(totals);
      if (reducer.shards()) {
        const train::FlatRange own = reducer.owned();
        if (!optimizer_->kept()) optimizer_->keep(own.begin, own.begin + own.count);
        if (!reducer.sums_everywhere()) {
          grads = grads.narrow(0, own.begin, own.count);
          add_up_squares = add_up;
        }
      }
    }
    if (global_loss_ && window_samples_ != window_divisor_)
      grads.mul_(static_cast<double>(window_divisor_) / static_cast<double>(window_samples_));
    const optim::GradientReport report = optim::prepare_gradients(
        grads, scaler_ ? scaler_->inverse() : at::Tensor(), clip_, add_up_squares);
    // All ranks skip, or none does.
    const at::Tensor found = at::maximum(report.found_inf, (totals[0] != 0.0).to(at::kFloat));

    if (ema_) ema_->begin();
    optimizer_->step(request.learning_rates, found, *has_grad_);
    if (passes_ && passes_->reducer().shards()) {
      train::GradientReducer& reducer = passes_->reducer();
      const int code = reducer.gather(registry.flat_params(), passes_->stream());
      TORCH_CHECK(code == 0, reducer.error(code).message());
    }
    if (ema_) ema_->update(found);
    train::keep_statistics(registry, statistics_, statistics_at_open_, found);
    if (scaler_) scaler_->update(found);

    span.reset();
    // One transfer for all numbers of the step.
    const at::Tensor numbers =
        at::cat({at::stack({report.norm, found.to(at::kDouble), scale.to(at::kDouble)}), totals,
                 loss.to(at::kDouble)})
            .to(at::kCPU);
    spans_->flush();
    const double* value = numbers.const_data_ptr<double>();
    train::StepOutcome out;
    out.step = request.step;
    out.grad_norm = value[0];
    out.skipped = value[1] != 0.0;
    out.loss_scale = value[2];
    const double* total = value + 3;
    const double weight = total[1];
    if (weight > 0.0) {
      out.loss = total[2] / weight;
      for (size_t k = 0; k < part_names_.size(); ++k)
        out.metrics.add(part_names_[k], total[3 + k], weight);
    }
    for (size_t i = 0; i < losses.size(); ++i)
      out.micro_losses.push_back(total[3 + static_cast<size_t>(num_parts) + i]);
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
