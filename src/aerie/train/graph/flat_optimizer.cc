#include "aerie/train/graph/flat_optimizer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "aerie/kernels/adamw/adamw_ranges.h"

namespace aerie::train {

FlatOptimizer::FlatOptimizer(const Of& of, FlatParts parts, device::Stream& stream,
                             UploadRing& uploads)
    : of_(of), parts_(std::move(parts)), stream_(stream), uploads_(uploads) {
  partial_ =
      at::zeros({kernels::kAdamwParts}, at::TensorOptions(of.registry.device()).dtype(at::kDouble));
}

std::string FlatOptimizer::not_covered(const config::OptimConfig& optim,
                                       const config::EmaConfig& ema) {
  if (optim.kind != config::OptimizerKind::kAdamW && optim.kind != config::OptimizerKind::kAdam)
    return "an optimizer other than adamw and adam";
  if (ema.enable && ema.cpu_offload) return "exp_manager.ema.cpu_offload";
  return "";
}

void FlatOptimizer::make_segments() {
  const optim::Optimizer& optimizer = of_.optimizer;
  const nn::ParameterRegistry& registry = of_.registry;
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

  const at::Device device = registry.device();
  const auto bytes = at::TensorOptions(device).dtype(at::kByte);
  const auto rows = static_cast<int64_t>(segments_.size());
  // Graphs hold the addresses.
  if (!steps_.defined() || steps_.numel() != rows) {
    segments_device_ =
        at::zeros({rows * static_cast<int64_t>(sizeof(kernels::AdamwSegment))}, bytes);
    factors_ = at::zeros({rows * static_cast<int64_t>(sizeof(kernels::AdamwFactors))}, bytes);
    steps_ = at::zeros({rows}, bytes.dtype(at::kFloat));
  }
  steps_.copy_(at::tensor(steps, at::kFloat));
  segment_of_ = at::tensor(segment_of, at::kLong).to(device);
  if (!rates_.defined())
    rates_ = at::zeros({static_cast<int64_t>(std::max<size_t>(1, optimizer.groups().size()))},
                       bytes.dtype(at::kDouble));
}

void FlatOptimizer::own(FlatRange range) {
  own_ = range;
  std::vector<int32_t> chunks;
  for (int64_t at = range.begin; at < range.begin + range.count; at += kernels::kAdamwChunk)
    chunks.push_back(static_cast<int32_t>(at / kernels::kAdamwChunk));
  own_chunks_ = at::tensor(chunks, at::kInt).to(of_.registry.device());
}

// Kernels count from the begin of the flat buffers and touch only what is owned.
float* FlatOptimizer::seen_whole(const at::Tensor& moments) const {
  const auto first = reinterpret_cast<uintptr_t>(moments.mutable_data_ptr<float>());
  return reinterpret_cast<float*>(first -
                                  (own_ ? static_cast<uintptr_t>(own_->begin) * sizeof(float) : 0));
}

Result<bool> FlatOptimizer::refresh(optim::GradScaler* scaler, const at::Tensor& compute_weights,
                                    kernels::Dtype dtype, kernels::AdamwControl* control,
                                    const float* bad_loss) {
  make_segments();
  const nn::ParameterRegistry& registry = of_.registry;
  if (!chunks_.defined()) chunks_ = at::tensor(parts_.chunks, at::kInt).to(registry.device());
  const std::vector<at::Tensor> moments = of_.optimizer.buffers();
  kernels::AdamwStep a;
  a.params = registry.flat_params().mutable_data_ptr<float>();
  a.grads = registry.flat_grads().const_data_ptr<float>();
  a.exp_avg = seen_whole(moments[0]);
  a.exp_avg_sq = seen_whole(moments[1]);
  if (compute_weights.defined()) {
    a.compute_weights = compute_weights.mutable_data_ptr();
    a.compute_dtype = dtype;
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
  a.clip = of_.clip.value;
  a.clip_by_value = of_.clip.algorithm == config::GradientClip::kValue;
  if (scaler != nullptr) {
    a.loss_scale = scaler->scale().mutable_data_ptr<float>();
    a.growth_tracker = scaler->growth_tracker().mutable_data_ptr<int32_t>();
    a.dynamic_scale = scaler->settings().dynamic;
    a.growth = static_cast<float>(scaler->settings().growth_factor);
    a.backoff = static_cast<float>(scaler->settings().backoff_factor);
    a.growth_interval = static_cast<int32_t>(scaler->settings().growth_interval);
  }
  if (of_.ema != nullptr) {
    a.ema = of_.ema->flat().mutable_data_ptr<float>();
    a.ema_decay = of_.ema_settings.decay;
    a.ema_every = of_.ema_settings.every_n_steps;
    a.ema_count = of_.ema->count().mutable_data_ptr<int64_t>();
  }
  AERIE_RETURN_IF_ERROR(upload_segments());
  return std::exchange(adamw_, a) == a;
}

Status FlatOptimizer::upload_segments() {
  return uploads_.upload(segments_device_.mutable_data_ptr(), segments_.data(),
                         segments_.size() * sizeof(kernels::AdamwSegment));
}

void FlatOptimizer::make_ranges(const Squared& squared) {
  squared_ = squared;
  const std::vector<kernels::AdamwRange> ranges =
      kernels::adamw_ranges(adamw_.grads, adamw_.count, squared);
  const auto bytes = static_cast<int64_t>(ranges.size() * sizeof(kernels::AdamwRange));
  ranges_ = at::empty({bytes}, at::TensorOptions().dtype(at::kByte));
  std::memcpy(ranges_.mutable_data_ptr(), ranges.data(), static_cast<size_t>(bytes));
  ranges_ = ranges_.to(of_.registry.device());
}

Status FlatOptimizer::decide(std::span<const double> learning_rates, std::optional<double> momentum,
                             std::span<const double> squares, const Squared& squared) {
  if (momentum) {
    of_.optimizer.set_momentum(*momentum);
    for (kernels::AdamwSegment& segment : segments_) segment.beta1 = *momentum;
    AERIE_RETURN_IF_ERROR(upload_segments());
  }
  AERIE_RETURN_IF_ERROR(uploads_.upload(rates_.mutable_data_ptr(), learning_rates.data(),
                                        learning_rates.size_bytes()));
  if (of_.ema != nullptr) of_.ema->begin();
  kernels::AdamwStep step = adamw_;
  if (!squares.empty()) {
    if (squared != squared_) make_ranges(squared);
    step.square_partials = squares.data();
    step.num_square_partials = static_cast<int64_t>(squares.size());
    step.ranges = static_cast<const kernels::AdamwRange*>(ranges_.const_data_ptr());
    step.num_ranges =
        static_cast<int32_t>(static_cast<size_t>(ranges_.numel()) / sizeof(kernels::AdamwRange));
  }
  return stream_.status_of(stream_.kernels().adamw_decide(step, stream_.handle()), "optimizer");
}

Status FlatOptimizer::update() {
  kernels::AdamwUpdate all;
  all.step = adamw_;
  if (own_) {
    if (own_chunks_.numel() == 0) return ok_status();
    all.chunks = own_chunks_.const_data_ptr<int32_t>();
    all.num_chunks = static_cast<int32_t>(own_chunks_.numel());
  }
  return stream_.status_of(stream_.kernels().adamw_update(all, stream_.handle()), "optimizer");
}

int FlatOptimizer::update_part(int part, const uint32_t* wanted, int sm_share, void* stream) const {
  const auto p = static_cast<size_t>(part);
  kernels::AdamwUpdate some;
  some.step = adamw_;
  some.chunks = chunks_.const_data_ptr<int32_t>() + parts_.begins[p];
  some.num_chunks = parts_.begins[p + 1] - parts_.begins[p];
  some.share = sm_share;
  some.wanted = wanted;
  return stream_.kernels().adamw_update(some, stream);
}

void FlatOptimizer::write_counts() {
  at::Tensor counts = of_.optimizer.step_counts();
  counts.copy_(steps_.index_select(0, segment_of_));
}

}  // namespace aerie::train
