// Operations under a dtype policy, and the small layers made of them. The wrappers cast explicitly
// (dtype_policy.h); autograd sees ordinary ATen operations.
#pragma once

#include <array>

#include <ATen/core/Tensor.h>

#include "aerie/nn/forward_context.h"
#include "aerie/nn/param_registry.h"

namespace aerie::nn {

at::Tensor linear(const DtypePolicy& policy, const at::Tensor& x, const at::Tensor& weight,
                  const at::Tensor& bias);
at::Tensor matmul(const DtypePolicy& policy, const at::Tensor& a, const at::Tensor& b);
// Softmax and log-softmax give float32 in the mixed modes.
at::Tensor softmax(const DtypePolicy& policy, const at::Tensor& x, int64_t dim);
at::Tensor log_softmax(const DtypePolicy& policy, const at::Tensor& x, int64_t dim);
// x times factors (0 or 1/(1-p)); computed in float32 where x is narrower, result in x's dtype.
at::Tensor apply_dropout(const at::Tensor& x, const at::Tensor& factors);
// Dropout with the draws that `describe` names (random_fill.h), made where x is, or with the
// injected keep-masks; the identity in eval mode or when p is 0.
at::Tensor dropout_with(const ForwardContext& ctx, const at::Tensor& x, double p,
                        const std::function<kernels::DropoutDraws()>& describe);
// Dropout of a (B,T,C) tensor at a site.
at::Tensor dropout(const ForwardContext& ctx, const at::Tensor& x, double p, uint32_t site);
// True where frame >= length: (B,T), on the device of lengths.
at::Tensor padding_mask(const at::Tensor& lengths, int64_t frames);

struct Linear {
  Linear() = default;
  Linear(const Scope& scope, int64_t in, int64_t out, bool use_bias);
  at::Tensor forward(const DtypePolicy& policy, const at::Tensor& x) const;
  ParamRef weight;
  ParamRef bias;
};

struct LayerNorm {
  LayerNorm() = default;
  LayerNorm(const Scope& scope, int64_t width);
  at::Tensor forward(const DtypePolicy& policy, const at::Tensor& x) const;
  ParamRef weight;
  ParamRef bias;
};

// Stride 1, explicit zero padding left and right of the time axis. Input (B,C,T).
struct Conv1d {
  Conv1d() = default;
  Conv1d(const Scope& scope, int64_t in, int64_t out, int64_t kernel, int64_t groups, bool use_bias,
         std::array<int64_t, 2> padding = {0, 0});
  at::Tensor forward(const DtypePolicy& policy, const at::Tensor& x) const;
  ParamRef weight;
  ParamRef bias;
  int64_t groups = 1;
  std::array<int64_t, 2> padding = {0, 0};
};

struct Conv2d {
  Conv2d() = default;
  Conv2d(const Scope& scope, int64_t in, int64_t out, int64_t kernel, int64_t stride,
         int64_t padding, int64_t groups);
  at::Tensor forward(const DtypePolicy& policy, const at::Tensor& x) const;
  ParamRef weight;
  ParamRef bias;
  int64_t stride = 1;
  int64_t padding = 0;
  int64_t groups = 1;
};

}  // namespace aerie::nn
