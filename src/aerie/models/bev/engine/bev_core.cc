#include "aerie/models/bev/engine/bev_core.h"

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
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "aerie/base/strings.h"
#include "aerie/models/bev/engine/batch_tensors.h"
#include "aerie/models/bev/engine/param_groups.h"
#include "aerie/train/graph/batch_key.h"
#include "aerie/train/graph/torch_status.h"
#include "aerie/train/measure.h"

namespace aerie::bev {

Result<std::unique_ptr<BevCore>> BevCore::create(const BevRunConfig& config, at::Device device) {
  try {
    train::set_process_switches(config.trainer, config.aerie.tf32, device,
                                /*fixed_workspace=*/true);
    BevConfig sizes = config.model;
    sizes.depth_float32 = sizes.depth_float32 || config.view_fp32;
    AERIE_ASSIGN_OR_RETURN(auto model, BevModel::create(sizes, config.aerie.seed, device));
    std::unique_ptr<BevCore> core(new BevCore(std::move(model)));
    const nn::ParameterRegistry& registry = core->registry();
    core->set_up(std::make_unique<optim::Optimizer>(core->registry(), config.optim.kind,
                                                    parameter_groups(registry, config.optim),
                                                    undecayed_names(registry, config.optim)),
                 config.trainer, config.exp_manager.ema,
                 {config.loss_scale.initial, config.loss_scale.growth_factor,
                  config.loss_scale.backoff_factor, config.loss_scale.growth_interval,
                  config.loss_scale.dynamic},
                 {config.trainer.gradient_clip_val, config.trainer.gradient_clip_algorithm,
                  config.clip_norm_type});
    core->set_global_loss(config.aerie.loss_reduction == config::LossReduction::kGlobal);
    core->passes_.set_rehearsal(
        [self = core.get()](const kernels::ExchangeSums& note) { return self->rehearse(note); });
    core->seed_ = config.aerie.seed;
    core->recompute_ = config.aerie.activation_checkpointing;
    core->capture_ = device.is_cuda() && config.compile.enabled != Compile::kNo;
    core->part_names_ = map_loss_names(sizes);
    return core;
  } catch (const std::exception& error) {
    return with_advice(train::torch_status(error)).with_context("setting up the engine");
  }
}

Status with_advice(Status status) {
  if (status.code() != StatusCode::kOutOfMemory) return status;
  return std::move(status).with_hint(
      "lower the batch (model.train_ds.batch_size, model.validation_ds.batch_size) and raise "
      "accumulation for it, use fp16, fewer workers, smaller pictures or a smaller model");
}

void BevCore::drop_window() {
  AutogradCore::drop_window();
  window_.clear();
}

void BevCore::release_memory() {
  if (recorded_.num_graphs() > 0) {
    at::accelerator::synchronizeDevice(device().index());
    recorded_.clear();
  }
  AutogradCore::release_memory();
}

Status BevCore::add(const train::StepRequest& request) {
  AERIE_CHECK(request.accumulate >= 1 && request.split >= 1, "accumulate ", request.accumulate,
              ", split ", request.split);
  const size_t micros = window_.size();
  const auto passes = static_cast<int64_t>(request.micro_batches.size()) * request.split;
  Status status =
      in_window([&] { return run_all(request); }, passes, request.finish, request.agree);
  if (!status.ok()) window_.resize(micros);
  return with_advice(std::move(status));
}

Status BevCore::run_all(const train::StepRequest& request) {
  AERIE_ASSIGN_OR_RETURN(const std::vector<double> weights, weigh(request));
  const size_t count = request.micro_batches.size();
  for (size_t i = 0; i < count; ++i) {
    const data::Batch& batch = *request.micro_batches[i];
    // Other ranks may have samples in a step in which this one has none.
    if (batch.num_samples() == 0) {
      for (int64_t p = 0; p < request.split; ++p) AERIE_RETURN_IF_ERROR(passes_.without_samples());
      continue;
    }
    passes_.enter(dist::Phase::kForward);
    const nn::RandomKey random = train::random_key(seed_, request.first_micro_step + i, batch);
    AERIE_ASSIGN_OR_RETURN(const BevBatch tensors, to_bev_batch(batch, random, device()));
    auto micro = run_micro(tensors, weights[i], request.split, request.finish && i + 1 == count);
    if (!micro.ok())
      return train::refine_torch_status(micro.status()).with_context(str_cat("micro-batch ", i));
    window_.push_back(std::move(micro).value());
  }
  return ok_status();
}

Result<std::vector<double>> BevCore::weigh(const train::StepRequest& request) {
  const size_t count = request.micro_batches.size();
  if (!global_loss_)
    return std::vector<double>(count, 1.0 / static_cast<double>(request.accumulate));
  int64_t own = 0;
  for (const data::Batch* batch : request.micro_batches) own += batch->num_samples();
  AERIE_ASSIGN_OR_RETURN(const int64_t divisor, divisor_for(own));
  std::vector<double> out;
  for (const data::Batch* batch : request.micro_batches)
    // A mean over the ranks follows.
    out.push_back(static_cast<double>(batch->num_samples() * world()) /
                  static_cast<double>(divisor));
  return out;
}

Result<BevCore::Micro> BevCore::run_micro(const BevBatch& batch, double weight, int64_t split,
                                          bool last) {
  at::Tensor factor = at::full({}, weight, at::TensorOptions(device()).dtype(at::kFloat));
  if (scaler_) factor = factor * scaler_->scale();
  const int64_t samples = batch.images.size(0);
  const int64_t parts = num_passes(split, samples);
  Micro out;
  if (parts == 1) {
    AERIE_ASSIGN_OR_RETURN(std::optional<Micro> replayed, replay(batch, factor));
    if (replayed) return *std::move(replayed);
    AERIE_ASSIGN_OR_RETURN(out, run_part(batch, 1.0, factor, recompute_, last));
    out.samples = samples;
    return out;
  }
  // Losses are means over equally many cells a sample: those of parts, weighted by their samples,
  // add up to the whole's in everything but BatchNorm statistics. torch's reducer takes recomputed
  // blocks for a mistake.
  const bool recompute = recompute_ || reducer() == nullptr || !reducer()->watches_backward();
  for (int64_t p = 0; p < parts; ++p) {
    const int64_t begin = samples * p / parts, end = samples * (p + 1) / parts;
    if (begin == end) {
      AERIE_RETURN_IF_ERROR(passes_.without_samples());
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

// Ranks add up gradients while the backward pass goes on, which is not captured; taps look at
// values from the host.
Result<std::optional<BevCore::Micro>> BevCore::replay(const BevBatch& given,
                                                      const at::Tensor& factor) {
  if (!capture_ || recompute_ || detect_anomaly_ || reducer() != nullptr || exchange())
    return std::optional<Micro>();
  BevBatch batch = given;
  AERIE_ASSIGN_OR_RETURN(const bool derived, model_->derive(batch));
  if (!derived) return std::optional<Micro>();
  const std::vector<at::Tensor> inputs = {batch.images, batch.truth, batch.rays, batch.path_factors,
                                          factor};
  const auto work = [this](const std::vector<at::Tensor>& in) {
    const train::DeviceSpans::Pause pause(spans_);
    const at::AutoGradMode enable(true);
    BevBatch own;
    own.images = in[0];
    own.truth = in[1];
    own.rays = in[2];
    own.path_factors = in[3];
    const Result<Micro> micro = run_part(own, 1.0, in[4], /*recompute=*/false, /*last=*/true);
    TORCH_CHECK(micro.ok(), micro.status().to_string());
    return std::vector<at::Tensor>{micro->loss, micro->parts};
  };
  train::RecordedWork::Graph* graph =
      recorded_.find(inputs, static_cast<int64_t>(precision_), work, *has_grad_);
  if (graph == nullptr) return std::optional<Micro>();
  const train::DeviceSpans::Scope span(spans_, train::kPhaseForwardBackward);
  const std::vector<at::Tensor> outputs = graph->replay(inputs, *has_grad_);
  Micro out;
  out.loss = outputs[0];
  out.parts = outputs[1];
  out.samples = batch.images.size(0);
  return std::optional<Micro>(std::move(out));
}

Result<BevCore::Micro> BevCore::run_part(const BevBatch& batch, double share,
                                         const at::Tensor& factor, bool recompute, bool last) {
  AERIE_ASSIGN_OR_RETURN(const at::Tensor logits,
                         forward(batch, /*training=*/true, recompute, exchange()));
  const MapLosses losses = map_losses(model_->config(), logits, batch.truth);
  AERIE_RETURN_IF_ERROR(backward(losses.total * (factor * share), last, /*whole=*/!recompute));
  Micro out;
  std::vector<at::Tensor> values;
  for (const auto& [name, value] : losses.parts)
    if (name != "loss") values.push_back(value.to(at::kFloat));  // the total
  out.loss = losses.total.detach().to(at::kFloat) * share;
  out.parts = values.empty() ? at::zeros({0}, out.loss.options()) : at::stack(values) * share;
  return out;
}

// Black pictures of one camera: what is exchanged does not depend on them.
Status BevCore::rehearse(const kernels::ExchangeSums& exchange) {
  const BevConfig& c = model_->config();
  std::vector<at::Tensor> kept;
  for (const int64_t i : statistics_) kept.push_back(model_->parameters().tensor(i).clone());
  const at::NoGradGuard no_grad;
  BevBatch batch;
  batch.images = at::zeros({1, 1, 3, c.image_height, c.image_width},
                           at::TensorOptions(device()).dtype(at::kByte));
  const at::Tensor identity = at::eye(4, at::TensorOptions().dtype(at::kFloat)).view({1, 1, 4, 4});
  batch.matrices = {identity, identity, identity, identity[0]};
  const Status status = forward(batch, /*training=*/true, /*recompute=*/false, exchange).status();
  for (size_t k = 0; k < statistics_.size(); ++k)
    model_->parameters().tensor(statistics_[k]).copy_(kept[k]);
  return status.with_context("looking at a pass without samples");
}

Result<at::Tensor> BevCore::forward(const BevBatch& batch, bool training, bool recompute,
                                    const kernels::ExchangeSums& exchange) {
  const train::DeviceSpans::Scope span(spans_, training ? "forward" : "evaluate");
  ForwardOptions options;
  options.training = training;
  options.recompute = recompute;
  if (exchange) options.exchange = &exchange;
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

Result<train::StepOutcome> BevCore::finish(const train::StepRequest& request) {
  AERIE_RETURN_IF_ERROR(check_rates(request.learning_rates));
  try {
    at::NoGradGuard no_grad;
    std::optional<train::DeviceSpans::Scope> span(std::in_place, spans_, "optimizer");
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

    AERIE_RETURN_IF_ERROR(reduce());
    AERIE_RETURN_IF_ERROR(add_up(totals));
    const optim::GradientReport report = prepare_gradients();
    // All ranks skip, or none does.
    const at::Tensor found = at::maximum(report.found_inf, (totals[0] != 0.0).to(at::kFloat));

    update(request.learning_rates, found);

    span.reset();
    // One transfer for all numbers of the step.
    const at::Tensor numbers =
        at::cat({at::stack({report.norm, found.to(at::kDouble), scale.to(at::kDouble)}), totals,
                 loss.to(at::kDouble)})
            .to(at::kCPU);
    spans_.flush();
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
    return half_done(with_advice(train::torch_status(error)));
  }
}

Result<train::EvalOutcome> BevCore::evaluate(const BevBatch& batch, int64_t parts,
                                             std::vector<float>* probability) {
  try {
    at::NoGradGuard no_grad;
    const int64_t samples = batch.images.size(0);
    at::Tensor counts, signs, loss;
    if (probability != nullptr) probability->clear();
    for (int64_t p = 0; p < parts; ++p) {
      const int64_t begin = samples * p / parts, end = samples * (p + 1) / parts;
      const BevBatch part = parts == 1 ? batch : batch_samples(batch, begin, end);
      auto logits = forward(part, /*training=*/false, /*recompute=*/false, {});
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
    if (global_loss_) outcome.weight = static_cast<double>(samples);
    const at::Tensor numbers =
        at::cat({counts.flatten(), signs.flatten()}).to(at::kCPU, at::kDouble).contiguous();
    const double* first = numbers.const_data_ptr<double>();
    outcome.sums.assign(first, first + numbers.numel());
    return outcome;
  } catch (const std::exception& error) {
    return train::torch_status(error).with_context("evaluation");
  }
}

}  // namespace aerie::bev
