#include "aerie/train/nest/fast_optimizer.h"

#include <algorithm>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "aerie/config/schema/run_config.h"

namespace aerie::train {

FastOptimizer::FastOptimizer(NestCore& core, const config::RunConfig& config, device::Queue& queue,
                             Upload upload)
    : core_(core), config_(config), queue_(queue), upload_(std::move(upload)) {
  partial_ = at::zeros({kernels::kAdamwParts}, at::TensorOptions(core.device()).dtype(at::kDouble));
}

std::string FastOptimizer::not_covered(const config::RunConfig& config) {
  const config::OptimConfig& optim = config.model.optim;
  if (optim.kind != config::OptimizerKind::kAdamW && optim.kind != config::OptimizerKind::kAdam)
    return "an optimizer other than adamw and adam";
  if (config.exp_manager.ema.enable && config.exp_manager.ema.cpu_offload)
    return "exp_manager.ema.cpu_offload";
  return "";
}

void FastOptimizer::make_segments() {
  const optim::Optimizer& optimizer = core_.optimizer();
  nn::ParameterRegistry& registry = core_.model().parameters();
  const std::vector<int64_t>& trainable = registry.trainable();
  const at::Tensor counts = optimizer.step_counts().to(at::kCPU).contiguous();
  const float* count = counts.const_data_ptr<float>();
  const auto offset = [&](size_t t) {
    return registry.entries()[static_cast<size_t>(trainable[t])].flat_offset;
  };
  std::vector<size_t> order(trainable.size());
  for (size_t t = 0; t < order.size(); ++t) order[t] = t;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return offset(a) < offset(b); });

  segments_.clear();
  std::vector<float> steps;
  std::vector<int64_t> segment_of(trainable.size());
  const optim::Optimizer::RangeSettings* open = nullptr;
  for (const size_t t : order) {
    const optim::Optimizer::RangeSettings& settings = optimizer.settings_of(t);
    const int64_t numel = registry.entries()[static_cast<size_t>(trainable[t])].numel;
    const int64_t end = offset(t) + (numel + 7) / 8 * 8;
    if (open == &settings && steps.back() == count[t]) {
      segments_.back().end = end;
    } else {
      kernels::AdamwSegment segment;
      segment.begin = offset(t);
      segment.end = end;
      segment.rate = static_cast<int32_t>(settings.group);
      segment.decoupled = optimizer.kind() == config::OptimizerKind::kAdamW;
      segment.beta1 = settings.values.betas[0];
      segment.beta2 = settings.values.betas[1];
      segment.eps = settings.values.eps;
      segment.weight_decay = settings.values.weight_decay;
      segments_.push_back(segment);
      steps.push_back(count[t]);
      open = &settings;
    }
    segment_of[t] = static_cast<int64_t>(segments_.size()) - 1;
  }

  const at::Device device = core_.device();
  const auto bytes = at::TensorOptions(device).dtype(at::kByte);
  const auto rows = static_cast<int64_t>(segments_.size());
  segments_device_ = at::zeros({rows * static_cast<int64_t>(sizeof(kernels::AdamwSegment))}, bytes);
  factors_ = at::zeros({rows * static_cast<int64_t>(sizeof(kernels::AdamwFactors))}, bytes);
  steps_ = at::tensor(steps, at::kFloat).to(device);
  segment_of_ = at::tensor(segment_of, at::kLong).to(device);
  if (!rates_.defined())
    rates_ = at::zeros({static_cast<int64_t>(std::max<size_t>(1, optimizer.groups().size()))},
                       bytes.dtype(at::kDouble));
}

Status FastOptimizer::refresh(const at::Tensor& shadow, kernels::Dtype dtype,
                              kernels::AdamwControl* control, const float* bad_loss) {
  make_segments();
  nn::ParameterRegistry& registry = core_.model().parameters();
  const std::vector<at::Tensor> moments = core_.optimizer().buffers();
  kernels::AdamwStep& a = adamw_;
  a = {};
  a.params = registry.flat_params().mutable_data_ptr<float>();
  a.grads = registry.flat_grads().const_data_ptr<float>();
  a.exp_avg = moments[0].mutable_data_ptr<float>();
  a.exp_avg_sq = moments[1].mutable_data_ptr<float>();
  if (shadow.defined()) {
    a.shadow = shadow.mutable_data_ptr();
    a.shadow_dtype = dtype;
  }
  a.count = registry.flat_params().numel();
  a.segments = static_cast<const kernels::AdamwSegment*>(segments_device_.const_data_ptr());
  a.num_segments = static_cast<int32_t>(segments_.size());
  a.steps = steps_.mutable_data_ptr<float>();
  a.learning_rates = rates_.const_data_ptr<double>();
  a.factors = static_cast<kernels::AdamwFactors*>(factors_.mutable_data_ptr());
  a.partial = partial_.mutable_data_ptr<double>();
  a.control = control;
  a.loss = bad_loss;
  a.clip = config_.trainer.gradient_clip_val;
  a.clip_by_value = config_.trainer.gradient_clip_algorithm == config::GradientClip::kValue;
  if (optim::GradScaler* scaler = core_.scaler()) {
    a.loss_scale = scaler->scale().mutable_data_ptr<float>();
    a.growth_tracker = scaler->growth_tracker().mutable_data_ptr<int32_t>();
    a.dynamic_scale = scaler->settings().dynamic;
    a.growth = static_cast<float>(scaler->settings().growth_factor);
    a.backoff = static_cast<float>(scaler->settings().backoff_factor);
    a.growth_interval = static_cast<int32_t>(scaler->settings().growth_interval);
  }
  if (optim::Ema* ema = core_.ema()) {
    a.ema = ema->flat().mutable_data_ptr<float>();
    a.ema_decay = config_.exp_manager.ema.decay;
    a.ema_every = config_.exp_manager.ema.every_n_steps;
    a.ema_count = ema->count().mutable_data_ptr<int64_t>();
  }
  return upload_segments();
}

Status FastOptimizer::upload_segments() {
  return upload_(segments_device_.mutable_data_ptr(), segments_.data(),
                 segments_.size() * sizeof(kernels::AdamwSegment));
}

Status FastOptimizer::step(std::span<const double> learning_rates, std::optional<double> momentum) {
  if (momentum) {
    core_.optimizer().set_momentum(*momentum);
    for (kernels::AdamwSegment& segment : segments_) segment.beta1 = *momentum;
    AERIE_RETURN_IF_ERROR(upload_segments());
  }
  AERIE_RETURN_IF_ERROR(
      upload_(rates_.mutable_data_ptr(), learning_rates.data(), learning_rates.size_bytes()));
  if (core_.ema() != nullptr) core_.ema()->begin();
  return queue_.status_of(queue_.kernels().adamw_step(adamw_, queue_.stream()), "optimizer");
}

void FastOptimizer::write_counts() {
  at::Tensor counts = core_.optimizer().step_counts();
  counts.copy_(steps_.index_select(0, segment_of_));
}

}  // namespace aerie::train
