// The fast engine among other ranks: what they exchange, add up and hand on.
#include <algorithm>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/where.h>

#include "aerie/base/strings.h"
#include "aerie/models/nest/engine/fast_engine.h"
#include "aerie/nn/exchanged_norm.h"
#include "aerie/train/graph/batch_key.h"

namespace aerie::train {

// Plans and graphs hold on to what is called.
Status FastEngine::set_reducer(GradientReducer* reducer) {
  if (window_open_) return internal_error("another reducer inside a window");
  AERIE_RETURN_IF_ERROR(write_state());
  AERIE_RETURN_IF_ERROR(CoreEngine::set_reducer(reducer));
  stale_ = true;  // a sharded optimizer keeps its moments elsewhere
  AERIE_RETURN_IF_ERROR(compute_->synchronize());
  plans_->clear();
  return ok_status();
}

Status FastEngine::set_exchange(kernels::ExchangeSums exchange, bool recordable) {
  if (window_open_) return internal_error("another exchange inside a window");
  AERIE_RETURN_IF_ERROR(CoreEngine::set_exchange(std::move(exchange), recordable));
  AERIE_RETURN_IF_ERROR(compute_->synchronize());
  plans_->clear();
  return ok_status();
}

int64_t FastEngine::passes(int64_t split, int64_t rows) const {
  return core_->exchange() ? split : std::min(split, rows);
}

// Passes for which only other ranks have rows: what a pass begins with, then what they exchange.
Status FastEngine::exchange_nothing(int64_t passes) {
  AERIE_RETURN_IF_ERROR(finish_update());
  if (!core_->exchange()) return ok_status();
  const auto layers = static_cast<int64_t>(statistics_.size(0));
  for (int64_t i = 0; i < passes * 2 * layers; ++i) {
    const int64_t at = i % (2 * layers);
    const bool backward = at >= layers;
    const int64_t layer = backward ? 2 * layers - 1 - at : at;
    nn::ExchangedNorm norm;
    norm.exchange = &core_->exchange();
    norm.layer = static_cast<int>(layer);
    norm.running_mean = statistics_[layer][0];
    norm.running_var = statistics_[layer][1];
    const bool any = nn::exchange_no_frames(norm, statistics_.size(2), device_, backward);
    if (any && !backward) counters_[layer].add_(1);
  }
  return ok_status();
}

// The frames that a global loss is divided by, before anything of the request is launched.
Status FastEngine::weigh(const StepRequest& request) {
  if (!core_->global_loss()) return ok_status();
  int64_t frames = 0;
  for (size_t i = 0; i < request.micro_batches.size(); ++i) {
    const data::SpeechBatch* batch = data::speech_batch(request.micro_batches[i]);
    if (batch->num_samples() == 0) continue;
    AERIE_ASSIGN_OR_RETURN(
        const int64_t masked,
        masked_frames(*batch, random_key(config_.aerie.seed, request.first_micro_step + i, *batch),
                      std::min(request.split, batch->num_samples())));
    frames += masked;
  }
  AERIE_ASSIGN_OR_RETURN(frames, core_->over_ranks(frames));
  window_frames_ += frames;
  // Where a window comes in several requests, the first has set the divisor; the end of the step
  // makes up for it.
  if (window_divisor_ == 0) window_divisor_ = frames;
  return ok_status();
}

Status FastEngine::gather(const at::Tensor& flat) {
  const int code = core_->reducer()->gather(flat, compute_->handle());
  return code == 0 ? ok_status() : core_->reducer()->error(code);
}

// The weights that a pass reads, as the ranks that own them have updated them: in 16 bits those of
// the layers' matrices are read in 16 bits alone.
Status FastEngine::gather_weights() {
  at::NoGradGuard no_grad;
  const nn::ParameterRegistry& registry = core_->model().parameters();
  const at::Tensor weights = registry.flat_params().detach();
  if (!compute_weights_.defined()) return gather(weights);
  AERIE_RETURN_IF_ERROR(gather(compute_weights_));
  if (!float_weights_.defined()) {
    std::vector<at::Tensor> ranges;
    for (const int64_t index : registry.trainable()) {
      const nn::ParamInfo& info = registry.entries()[static_cast<size_t>(index)];
      const bool matrix = starts_with(info.name, "encoder.layers.") && info.shape.size() >= 2 &&
                          info.name.find("depthwise") == std::string::npos &&
                          info.name.find("pos_bias") == std::string::npos;
      if (!matrix)
        ranges.push_back(at::arange(info.flat_offset, info.flat_offset + info.numel, at::kLong));
    }
    float_weights_ = std::get<0>(at::cat(ranges).sort()).to(device_);
  }
  // As a flat buffer of zeros but for these, each rank's part of it would be mostly zeros: they
  // travel packed, added up.
  const FlatRange own = core_->reducer()->owned();
  const at::Tensor mine =
      (float_weights_ >= own.begin).logical_and(float_weights_ < own.begin + own.count);
  const at::Tensor packed =
      at::where(mine, weights.index_select(0, float_weights_), 0.0).contiguous();
  const int code = core_->reducer()->add_up(packed.mutable_data_ptr<float>(), packed.numel(),
                                            compute_->handle());
  if (code != 0) return core_->reducer()->error(code);
  at::Tensor whole = weights;
  whole.index_copy_(0, float_weights_, packed);
  return ok_status();
}

// Float32 weights without the other ranks, whose own have come in the precision that passes read.
void FastEngine::show_weights() {
  if (!float_weights_.defined()) return;
  const at::NoGradGuard no_grad;
  const at::Tensor weights = core_->model().parameters().flat_params().detach();
  const at::Tensor exact = weights.index_select(0, float_weights_);
  const FlatRange own = core_->reducer()->owned();
  const int64_t end = own.begin + own.count;
  weights.narrow(0, 0, own.begin).copy_(compute_weights_.narrow(0, 0, own.begin));
  weights.narrow(0, end, weights.numel() - end)
      .copy_(compute_weights_.narrow(0, end, weights.numel() - end));
  weights.index_copy_(0, float_weights_, exact);
}

// Behind the pass: what it has not begun itself, and whether all ranks go on.
Status FastEngine::reduce_gradients() {
  GradientReducer& reducer = *core_->reducer();
  auto* bad_loss = reinterpret_cast<float*>(results_.mutable_data_ptr<uint8_t>() + kBadLoss);
  if (!window_has_gradients_) {
    // Other ranks had samples in this step, this one had none.
    core_->model().parameters().zero_grad();
    results_.narrow(0, static_cast<int64_t>(kBadLoss), sizeof(float)).zero_();
    window_has_gradients_ = true;
  }
  if (core_->global_loss()) {
    // This rank's part of the loss lies behind the flag and is added up with it.
    at::Tensor sum = results_.narrow(0, static_cast<int64_t>(kLossSum), sizeof(float));
    sum.zero_();
    for (size_t i = 0; i < window_.size(); ++i) {
      if (window_[i].empty) continue;
      const auto at = static_cast<int64_t>(kMicroResults + i * sizeof(kernels::MicroResult));
      sum.view(at::kFloat).add_(results_.narrow(0, at, sizeof(float)).view(at::kFloat));
    }
  }
  int code = 0;
  if (!std::exchange(window_reduced_, true)) {
    for (int part = optimizer_->parts().size() - 1; part >= 0 && code == 0; --part)
      code = reducer.begin(part, compute_->handle());
    if (code == 0) code = reducer.finish(compute_->handle());
  }
  if (code == 0) code = reducer.add_up(bad_loss, core_->global_loss() ? 2 : 1, compute_->handle());
  return code == 0 ? ok_status() : reducer.error(code);
}

}  // namespace aerie::train
