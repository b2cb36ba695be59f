#include "aerie/nn/attention_mask.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/div.h>
#include <ATen/ops/ones_like.h>

namespace aerie::nn {

at::Tensor context_mask(config::AttContextStyle style, std::array<int64_t, 2> context,
                        int64_t frames, const at::Device& device) {
  const auto [left, right] = context;
  const at::Tensor index = at::arange(frames, at::TensorOptions().dtype(at::kLong).device(device));
  if (style == config::AttContextStyle::kChunkedLimited && right >= 0) {
    const int64_t chunk = right + 1;
    const int64_t left_chunks = left >= 0 ? left / chunk : 10000;
    const at::Tensor chunk_idx = at::div(index, chunk, "floor");
    const at::Tensor behind = chunk_idx.unsqueeze(1) - chunk_idx.unsqueeze(0);  // c_i - c_j
    return (behind >= 0).logical_and(behind <= left_chunks);
  }
  // regular, and chunked_limited with an unlimited right side.
  const at::Tensor behind = index.unsqueeze(1) - index.unsqueeze(0);  // i - j
  at::Tensor allowed = at::ones_like(behind, at::TensorOptions().dtype(at::kBool));
  if (left >= 0) allowed = allowed.logical_and(behind <= left);
  if (right >= 0) allowed = allowed.logical_and(behind >= -right);
  return allowed;
}

at::Tensor blocked_mask(const at::Tensor& padding_mask, const at::Tensor& context) {
  const at::Tensor padded = padding_mask.unsqueeze(1).logical_or(padding_mask.unsqueeze(2));
  return padded.logical_or(context.logical_not().unsqueeze(0));
}

std::array<int64_t, 2> choose_context(const ForwardContext& ctx,
                                      const config::EncoderConfig& config) {
  const auto& contexts = config.att_context_size;
  if (contexts.empty()) return {-1, -1};
  if (!ctx.training || contexts.size() == 1) return contexts.front();
  if (ctx.injected != nullptr && ctx.injected->context) return *ctx.injected->context;
  const double u = uniform_of_step(ctx.random, Purpose::kContext, 0);
  double cumulative = 0.0;
  for (size_t i = 0; i < contexts.size(); ++i) {
    cumulative += config.att_context_probs.empty() ? 1.0 / static_cast<double>(contexts.size())
                                                   : config.att_context_probs[i];
    if (u < cumulative) return contexts[i];
  }
  return contexts.back();
}

}  // namespace aerie::nn
