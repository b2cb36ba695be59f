#include "aerie/nn/conformer_layer.h"

#include <string>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/glu.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/instance_norm.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/silu.h>

#include "aerie/nn/exchanged_norm.h"

namespace aerie::nn {
namespace {

constexpr double kEps = 1e-5;
constexpr double kMomentum = 0.1;

// Batch and instance norm keep the input's dtype and compute in float32.
at::Tensor widen(const at::Tensor& x) {
  const bool narrow = x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
  return narrow ? x.to(at::kFloat) : x;
}

}  // namespace

FeedForward::FeedForward(const Scope& scope, const config::EncoderConfig& config,
                         uint32_t dropout_site)
    : linear1_(scope.child("linear1"), config.d_model, config.d_model * config.ff_expansion_factor,
               config.use_bias),
      linear2_(scope.child("linear2"), config.d_model * config.ff_expansion_factor, config.d_model,
               config.use_bias),
      dropout_(config.dropout),
      site_(dropout_site) {}

at::Tensor FeedForward::forward(const ForwardContext& ctx, const at::Tensor& x) const {
  const at::Tensor hidden = at::silu(linear1_.forward(ctx.policy, x));
  return linear2_.forward(ctx.policy, dropout(ctx, hidden, dropout_, site_));
}

ConvNorm::ConvNorm(const Scope& scope, const config::EncoderConfig& config, int64_t layer_idx)
    : kind_(config.conv_norm_type), groups_(config.conv_norm_groups), layer_idx_(layer_idx) {
  if (kind_ == config::ConvNorm::kInstanceNorm) return;  // no affine part in NeMo
  weight_ = scope.param("weight", {config.d_model}, Init::constant(1.0));
  bias_ = scope.param("bias", {config.d_model}, Init::constant(0.0));
  if (kind_ != config::ConvNorm::kBatchNorm) return;
  running_mean_ = scope.buffer("running_mean", {config.d_model}, Init::constant(0.0));
  running_var_ = scope.buffer("running_var", {config.d_model}, Init::constant(1.0));
  batches_ = scope.buffer("num_batches_tracked", {}, Init::constant(0.0), at::kLong);
}

at::Tensor ConvNorm::forward(const ForwardContext& ctx, const at::Tensor& x,
                             const at::Tensor& padding) const {
  const auto normalize = ctx.policy.input_dtype(OpClass::kNormalize);
  switch (kind_) {
    case config::ConvNorm::kBatchNorm:
      // On a GPU torch's own kernels widen as they read.
      if (x.is_cuda() && !ctx.batch_norm_valid_frames && ctx.exchange == nullptr)
        return batch_norm(ctx, x, padding);
      return batch_norm(ctx, widen(x), padding).to(x.scalar_type());
    case config::ConvNorm::kInstanceNorm:
      return at::instance_norm(widen(x), {}, {}, {}, {}, /*use_input_stats=*/true, kMomentum, kEps,
                               false)
          .to(x.scalar_type());
    case config::ConvNorm::kLayerNorm: {
      const at::Tensor input = normalize ? x.to(*normalize) : x;
      return at::layer_norm(input.transpose(1, 2), {x.size(1)}, weight_.tensor(), bias_.tensor(),
                            kEps)
          .transpose(1, 2);
    }
    case config::ConvNorm::kGroupNorm: {
      const at::Tensor input = normalize ? x.to(*normalize) : x;
      return at::group_norm(input, groups_, weight_.tensor(), bias_.tensor(), kEps);
    }
    case config::ConvNorm::kFusedBatchNorm:
      return x * weight_.tensor().unsqueeze(-1) + bias_.tensor().unsqueeze(-1);
  }
  return x;
}

at::Tensor ConvNorm::batch_norm(const ForwardContext& ctx, const at::Tensor& x,
                                const at::Tensor& padding) const {
  const bool update = ctx.training && !ctx.again;
  if (update) {
    at::NoGradGuard no_grad;
    batches_.tensor().add_(1);
  }
  if (ctx.training && ctx.exchange != nullptr) {
    ExchangedNorm norm;
    norm.exchange = ctx.exchange;
    norm.layer = static_cast<int>(layer_idx_);
    norm.eps = kEps;
    norm.momentum = kMomentum;
    norm.kept_sums = ctx.exchanged_sums;
    if (update) {
      norm.running_mean = running_mean_.tensor();
      norm.running_var = running_var_.tensor();
    }
    at::Tensor counted;
    if (ctx.batch_norm_valid_frames)
      counted = padding.logical_not().unsqueeze(1).to(x.scalar_type());
    return exchanged_batch_norm(norm, x, counted, weight_.tensor(), bias_.tensor());
  }
  if (!ctx.training || !ctx.batch_norm_valid_frames) {
    const bool running = !ctx.training || update;
    return at::batch_norm(
        x, weight_.tensor(), bias_.tensor(), running ? running_mean_.tensor() : at::Tensor(),
        running ? running_var_.tensor() : at::Tensor(), ctx.training, kMomentum, kEps, false);
  }
  // Statistics over valid frames alone.
  const at::Tensor valid = padding.logical_not().unsqueeze(1).to(x.scalar_type());  // (B,1,T)
  const at::Tensor count = valid.sum().clamp_min(1);
  const at::Tensor mean = (x * valid).sum(at::IntArrayRef{0, 2}) / count;
  const at::Tensor centred = x - mean.unsqueeze(-1);
  const at::Tensor var = (centred.square() * valid).sum(at::IntArrayRef{0, 2}) / count;
  if (update) {
    at::NoGradGuard no_grad;
    const at::Tensor unbiased = var * (count / (count - 1).clamp_min(1));
    running_mean_.tensor().lerp_(mean, kMomentum);
    running_var_.tensor().lerp_(unbiased, kMomentum);
  }
  return centred * ((var + kEps).rsqrt() * weight_.tensor()).unsqueeze(-1) +
         bias_.tensor().unsqueeze(-1);
}

ConvModule::ConvModule(const Scope& scope, const config::EncoderConfig& config, int64_t layer_idx)
    : pointwise1_(scope.child("pointwise_conv1"), config.d_model, 2 * config.d_model, 1, 1,
                  config.use_bias),
      depthwise_(scope.child("depthwise_conv"), config.d_model, config.d_model,
                 config.conv_kernel_size, config.d_model, config.use_bias, config.conv_context()),
      norm_(scope.child("batch_norm"), config, layer_idx),
      pointwise2_(scope.child("pointwise_conv2"), config.d_model, config.d_model, 1, 1,
                  config.use_bias) {}

at::Tensor ConvModule::forward(const ForwardContext& ctx, const at::Tensor& x,
                               const at::Tensor& padding) const {
  at::Tensor h = at::glu(pointwise1_.forward(ctx.policy, x.transpose(1, 2)), 1);
  h = depthwise_.forward(ctx.policy, h.masked_fill(padding.unsqueeze(1), 0.0));
  h = at::silu(norm_.forward(ctx, h, padding));
  return pointwise2_.forward(ctx.policy, h).transpose(1, 2);
}

ConformerLayer::ConformerLayer(const Scope& scope, const config::EncoderConfig& config,
                               int64_t layer_idx, ParamRef shared_bias_u, ParamRef shared_bias_v)
    : norm_feed_forward1_(scope.child("norm_feed_forward1"), config.d_model),
      feed_forward1_(scope.child("feed_forward1"), config,
                     DropoutSite::layer(layer_idx, DropoutSite::kFeedForward1Inner)),
      norm_conv_(scope.child("norm_conv"), config.d_model),
      conv_(scope.child("conv"), config, layer_idx),
      norm_self_att_(scope.child("norm_self_att"), config.d_model),
      attention_(scope.child("self_attn"), config, layer_idx, shared_bias_u, shared_bias_v),
      norm_feed_forward2_(scope.child("norm_feed_forward2"), config.d_model),
      feed_forward2_(scope.child("feed_forward2"), config,
                     DropoutSite::layer(layer_idx, DropoutSite::kFeedForward2Inner)),
      norm_out_(scope.child("norm_out"), config.d_model),
      dropout_(config.dropout),
      layer_idx_(layer_idx) {}

at::Tensor ConformerLayer::forward(const ForwardContext& ctx, const at::Tensor& x,
                                   const at::Tensor& positions, const AttentionMasks& masks) const {
  const DtypePolicy& policy = ctx.policy;
  const std::string name = "layers." + std::to_string(layer_idx_) + ".";
  auto drop = [&](const at::Tensor& value, DropoutSite::Place place) {
    return dropout(ctx, value, dropout_, DropoutSite::layer(layer_idx_, place));
  };
  at::Tensor y = feed_forward1_.forward(ctx, norm_feed_forward1_.forward(policy, x));
  at::Tensor r = x + drop(y, DropoutSite::kFeedForward1Residual) * 0.5;
  ctx.report(name + "after_ff1", r);

  y = attention_.forward(ctx, norm_self_att_.forward(policy, r), positions, masks);
  ctx.report(name + "attention", y);
  r = r + drop(y, DropoutSite::kAttentionResidual);

  y = conv_.forward(ctx, norm_conv_.forward(policy, r), masks.padding);
  ctx.report(name + "conv", y);
  r = r + drop(y, DropoutSite::kConvResidual);

  y = feed_forward2_.forward(ctx, norm_feed_forward2_.forward(policy, r));
  r = r + drop(y, DropoutSite::kFeedForward2Residual) * 0.5;
  y = norm_out_.forward(policy, r);
  ctx.report(name + "out", y);
  return y;
}

}  // namespace aerie::nn
