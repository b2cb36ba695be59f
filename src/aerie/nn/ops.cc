#include "aerie/nn/ops.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>

#include "aerie/base/check.h"
#include "aerie/nn/device_draws.h"
#include "aerie/nn/init.h"

namespace aerie::nn {
namespace {

at::Tensor cast(const std::optional<at::ScalarType>& dtype, const at::Tensor& x) {
  return dtype && x.defined() ? x.to(*dtype) : x;
}

}  // namespace

at::Tensor linear(const DtypePolicy& policy, const at::Tensor& x, const at::Tensor& weight,
                  const at::Tensor& bias) {
  const auto dtype = policy.input_dtype(OpClass::kGemm);
  return at::linear(cast(dtype, x), cast(dtype, weight), cast(dtype, bias));
}

at::Tensor matmul(const DtypePolicy& policy, const at::Tensor& a, const at::Tensor& b) {
  const auto dtype = policy.input_dtype(OpClass::kGemm);
  return at::matmul(cast(dtype, a), cast(dtype, b));
}

at::Tensor softmax(const DtypePolicy& policy, const at::Tensor& x, int64_t dim) {
  return at::softmax(cast(policy.input_dtype(OpClass::kNormalize), x), dim);
}

at::Tensor log_softmax(const DtypePolicy& policy, const at::Tensor& x, int64_t dim) {
  return at::log_softmax(cast(policy.input_dtype(OpClass::kNormalize), x), dim);
}

at::Tensor apply_dropout(const at::Tensor& x, const at::Tensor& factors) {
  const at::Tensor on_device = factors.to(x.device());
  if (x.scalar_type() == at::kFloat) return x * on_device;
  if (x.scalar_type() == at::kDouble) return x * on_device.to(at::kDouble);
  return (x.to(at::kFloat) * on_device).to(x.scalar_type());
}

at::Tensor dropout_with(const ForwardContext& ctx, const at::Tensor& x, double p,
                        const std::function<kernels::DropoutDraws()>& describe) {
  if (!ctx.training || p <= 0.0) return x;
  if (ctx.injected == nullptr) return drawn_dropout(x, describe());
  const auto& keep = ctx.injected->dropout_keep;
  AERIE_CHECK(ctx.injected->next_dropout < keep.size(), "more dropouts than injected masks");
  const at::Tensor mask = keep[ctx.injected->next_dropout++].to(at::kFloat);
  return apply_dropout(x, mask.view(x.sizes()) * (p < 1.0 ? 1.0 / (1.0 - p) : 0.0));
}

at::Tensor dropout(const ForwardContext& ctx, const at::Tensor& x, double p, uint32_t site) {
  return dropout_with(ctx, x, p, [&] {
    return dropout_of_btc(ctx.random, site, p, x.size(0), x.size(1), x.size(2));
  });
}

at::Tensor padding_mask(const at::Tensor& lengths, int64_t frames) {
  const at::Tensor time = at::arange(frames, lengths.options());
  return time.unsqueeze(0) >= lengths.unsqueeze(1);
}

Linear::Linear(const Scope& scope, int64_t in, int64_t out, bool use_bias)
    : weight(scope.param("weight", {out, in}, default_uniform(in))) {
  if (use_bias) bias = scope.param("bias", {out}, default_uniform(in));
}

at::Tensor Linear::forward(const DtypePolicy& policy, const at::Tensor& x) const {
  return linear(policy, x, weight.tensor(), bias.tensor_or_none());
}

LayerNorm::LayerNorm(const Scope& scope, int64_t width)
    : weight(scope.param("weight", {width}, Init::constant(1.0))),
      bias(scope.param("bias", {width}, Init::constant(0.0))) {}

at::Tensor LayerNorm::forward(const DtypePolicy& policy, const at::Tensor& x) const {
  return at::layer_norm(cast(policy.input_dtype(OpClass::kNormalize), x), {x.size(-1)},
                        weight.tensor(), bias.tensor(), 1e-5);
}

Conv1d::Conv1d(const Scope& scope, int64_t in, int64_t out, int64_t kernel, int64_t conv_groups,
               bool use_bias, std::array<int64_t, 2> conv_padding)
    : groups(conv_groups), padding(conv_padding) {
  const int64_t fan_in = in / conv_groups * kernel;
  weight = scope.param("weight", {out, in / conv_groups, kernel}, default_uniform(fan_in));
  if (use_bias) bias = scope.param("bias", {out}, default_uniform(fan_in));
}

at::Tensor Conv1d::forward(const DtypePolicy& policy, const at::Tensor& x) const {
  const auto dtype = policy.input_dtype(OpClass::kGemm);
  at::Tensor input = cast(dtype, x);
  if (padding[0] > 0 || padding[1] > 0) {
    input = at::constant_pad_nd(input, {padding[0], padding[1]});
  }
  const std::array<int64_t, 1> one = {1};
  const std::array<int64_t, 1> none = {0};
  return at::conv1d(input, cast(dtype, weight.tensor()), cast(dtype, bias.tensor_or_none()),
                    at::IntArrayRef(one), at::IntArrayRef(none), at::IntArrayRef(one), groups);
}

Conv2d::Conv2d(const Scope& scope, int64_t in, int64_t out, int64_t kernel, int64_t conv_stride,
               int64_t conv_padding, int64_t conv_groups)
    : stride(conv_stride), padding(conv_padding), groups(conv_groups) {
  const int64_t fan_in = in / conv_groups * kernel * kernel;
  weight = scope.param("weight", {out, in / conv_groups, kernel, kernel}, default_uniform(fan_in));
  bias = scope.param("bias", {out}, default_uniform(fan_in));
}

at::Tensor Conv2d::forward(const DtypePolicy& policy, const at::Tensor& x) const {
  const auto dtype = policy.input_dtype(OpClass::kGemm);
  const std::array<int64_t, 2> strides = {stride, stride};
  const std::array<int64_t, 2> pads = {padding, padding};
  const std::array<int64_t, 2> ones = {1, 1};
  return at::conv2d(cast(dtype, x), cast(dtype, weight.tensor()), cast(dtype, bias.tensor()),
                    at::IntArrayRef(strides), at::IntArrayRef(pads), at::IntArrayRef(ones), groups);
}

}  // namespace aerie::nn
