// Which frames may see which (docs/numerics.md 4.2, 4.5).
#pragma once

#include <array>

#include <ATen/core/Tensor.h>

#include "aerie/nn/conformer_config.h"
#include "aerie/nn/forward_context.h"

namespace aerie::nn {

// True where query i may look at key j, padding aside: (T,T).
at::Tensor context_mask(config::AttContextStyle style, std::array<int64_t, 2> context,
                        int64_t frames, const at::Device& device);

// True where attention is blocked: padding on either side, or outside the context. (B,T,T).
at::Tensor blocked_mask(const at::Tensor& padding_mask, const at::Tensor& context);

// The context of this forward pass: the first one, or in training a draw by att_context_probs
// (uniform when empty) that is the same on every rank.
std::array<int64_t, 2> choose_context(const ForwardContext& ctx,
                                      const config::EncoderConfig& config);

}  // namespace aerie::nn
