#include "aerie/models/nest/engine/fast_optimizer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "aerie/config/schema/run_config.h"
#include "aerie/kernels/adamw/adamw_stretches.h"
#include "aerie/models/nest/step_setup.h"

namespace aerie::train {
namespace {

// Of the multiprocessors, one in four: fewer are not done before they are waited for; with more,
// the pass through the model slows down by what is gained.
constexpr int kUpdateShare = 4;

}  // namespace

bool update_beside(int64_t parameters, int64_t layers, int64_t rows) {
  // Larger batches keep the device busy alone: an update beside them takes what it saves.
  constexpr int64_t kMostRows = 4096;
  // A pass that is over before the update waits for it. Layers of this size are not, however few
  // the rows: their kernels take as long to start. Larger ones need work to do.
  constexpr int64_t kSmallLayer = 7'000'000, kFewestRows = 2560;
  return rows <= kMostRows && (parameters <= layers * kSmallLayer || rows >= kFewestRows);
}

FastOptimizer::FastOptimizer(NestCore& core, const config::RunConfig& config, device::Stream& queue,
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

// Chunks of the flat buffers in the order of need: one that several parts share is the first's.
void FastOptimizer::make_parts() {
  nn::ParameterRegistry& registry = core_.model().parameters();
  const int parts =
      kernels::nest_num_parts(static_cast<int>(core_.model().settings().model.encoder.n_layers));
  const int64_t count = registry.flat_params().numel();
  std::vector<int> part_of(
      static_cast<size_t>((count + kernels::kAdamwChunk - 1) / kernels::kAdamwChunk), parts - 1);
  for (const int64_t index : registry.trainable()) {
    const nn::ParamInfo& info = registry.entries()[static_cast<size_t>(index)];
    if (info.numel == 0) continue;
    const int part = nest::step_part(core_.model(), info.name);
    const int64_t last = (info.flat_offset + info.numel - 1) / kernels::kAdamwChunk;
    for (int64_t c = info.flat_offset / kernels::kAdamwChunk; c <= last; ++c)
      part_of[static_cast<size_t>(c)] = std::min(part_of[static_cast<size_t>(c)], part);
  }
  std::vector<int32_t> chunks;
  begins_.clear();
  for (int part = 0; part < parts; ++part) {
    begins_.push_back(static_cast<int32_t>(chunks.size()));
    for (size_t c = 0; c < part_of.size(); ++c)
      if (part_of[c] == part) chunks.push_back(static_cast<int32_t>(c));
  }
  begins_.push_back(static_cast<int32_t>(chunks.size()));
  chunks_ = at::tensor(chunks, at::kInt).to(core_.device());
}

Result<bool> FastOptimizer::refresh(const at::Tensor& shadow, kernels::Dtype dtype,
                                    kernels::AdamwControl* control, const float* bad_loss) {
  make_segments();
  if (!chunks_.defined()) make_parts();
  nn::ParameterRegistry& registry = core_.model().parameters();
  const std::vector<at::Tensor> moments = core_.optimizer().buffers();
  kernels::AdamwStep a;
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
  AERIE_RETURN_IF_ERROR(upload_segments());
  return std::exchange(adamw_, a) == a;
}

Status FastOptimizer::upload_segments() {
  return upload_(segments_device_.mutable_data_ptr(), segments_.data(),
                 segments_.size() * sizeof(kernels::AdamwSegment));
}

void FastOptimizer::make_stretches(const Squared& squared) {
  squared_ = squared;
  const std::vector<kernels::AdamwStretch> stretches =
      kernels::adamw_stretches(adamw_.grads, adamw_.count, squared);
  const auto bytes = static_cast<int64_t>(stretches.size() * sizeof(kernels::AdamwStretch));
  stretches_ = at::empty({bytes}, at::TensorOptions().dtype(at::kByte));
  std::memcpy(stretches_.mutable_data_ptr(), stretches.data(), static_cast<size_t>(bytes));
  stretches_ = stretches_.to(core_.device());
}

Status FastOptimizer::decide(std::span<const double> learning_rates, std::optional<double> momentum,
                             std::span<const double> squares, const Squared& squared) {
  if (momentum) {
    core_.optimizer().set_momentum(*momentum);
    for (kernels::AdamwSegment& segment : segments_) segment.beta1 = *momentum;
    AERIE_RETURN_IF_ERROR(upload_segments());
  }
  AERIE_RETURN_IF_ERROR(
      upload_(rates_.mutable_data_ptr(), learning_rates.data(), learning_rates.size_bytes()));
  if (core_.ema() != nullptr) core_.ema()->begin();
  kernels::AdamwStep step = adamw_;
  if (!squares.empty()) {
    if (squared != squared_) make_stretches(squared);
    step.squares = squares.data();
    step.num_squares = static_cast<int64_t>(squares.size());
    step.stretches = static_cast<const kernels::AdamwStretch*>(stretches_.const_data_ptr());
    step.num_stretches = static_cast<int32_t>(static_cast<size_t>(stretches_.numel()) /
                                              sizeof(kernels::AdamwStretch));
  }
  return queue_.status_of(queue_.kernels().adamw_decide(step, queue_.handle()), "optimizer");
}

Status FastOptimizer::update() {
  kernels::AdamwUpdate all;
  all.step = adamw_;
  return queue_.status_of(queue_.kernels().adamw_update(all, queue_.handle()), "optimizer");
}

int FastOptimizer::update_part(int part, const uint32_t* wanted, void* stream) const {
  const auto p = static_cast<size_t>(part);
  kernels::AdamwUpdate some;
  some.step = adamw_;
  some.chunks = chunks_.const_data_ptr<int32_t>() + begins_[p];
  some.num_chunks = begins_[p + 1] - begins_[p];
  some.share = kUpdateShare;
  some.wanted = wanted;
  return queue_.kernels().adamw_update(some, stream);
}

void FastOptimizer::write_counts() {
  at::Tensor counts = core_.optimizer().step_counts();
  counts.copy_(steps_.index_select(0, segment_of_));
}

}  // namespace aerie::train
