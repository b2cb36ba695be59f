// One Conformer layer and its parts (docs/numerics.md 4.3).
//
//   r <- x + 1/2 drop(FF1(LN(x)));  r <- r + drop(MHSA(LN(r)));  r <- r + drop(Conv(LN(r)));
//   r <- r + 1/2 drop(FF2(LN(r)));  x <- LN(r)
#pragma once

#include "aerie/nn/attention.h"
#include "aerie/nn/conformer_config.h"
#include "aerie/nn/ops.h"

namespace aerie::nn {

class FeedForward {
 public:
  FeedForward(const Scope& scope, const config::EncoderConfig& config, uint32_t dropout_site);
  at::Tensor forward(const ForwardContext& ctx, const at::Tensor& x) const;

 private:
  Linear linear1_, linear2_;
  double dropout_;
  uint32_t site_;
};

// The norm inside the convolution module; NeMo calls it batch_norm whatever it is. Input (B,C,T).
class ConvNorm {
 public:
  ConvNorm(const Scope& scope, const config::EncoderConfig& config, int64_t layer_idx);
  // padding (B,T): only read when statistics are to be taken over valid frames.
  at::Tensor forward(const ForwardContext& ctx, const at::Tensor& x,
                     const at::Tensor& padding) const;

 private:
  at::Tensor batch_norm(const ForwardContext& ctx, const at::Tensor& x,
                        const at::Tensor& padding) const;

  config::ConvNorm kind_;
  int64_t groups_;
  int64_t layer_idx_;
  ParamRef weight_, bias_, running_mean_, running_var_, batches_;
};

class ConvModule {
 public:
  ConvModule(const Scope& scope, const config::EncoderConfig& config, int64_t layer_idx);
  at::Tensor forward(const ForwardContext& ctx, const at::Tensor& x,
                     const at::Tensor& padding) const;

 private:
  Conv1d pointwise1_, depthwise_;
  ConvNorm norm_;
  Conv1d pointwise2_;
};

class ConformerLayer {
 public:
  ConformerLayer(const Scope& scope, const config::EncoderConfig& config, int64_t layer_idx,
                 ParamRef shared_bias_u, ParamRef shared_bias_v);
  at::Tensor forward(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor& positions,
                     const AttentionMasks& masks) const;
  const SelfAttention& attention() const { return attention_; }

 private:
  // Declaration order is registration order, and that is the public order of the parameters.
  LayerNorm norm_feed_forward1_;
  FeedForward feed_forward1_;
  LayerNorm norm_conv_;
  ConvModule conv_;
  LayerNorm norm_self_att_;
  SelfAttention attention_;
  LayerNorm norm_feed_forward2_;
  FeedForward feed_forward2_;
  LayerNorm norm_out_;
  double dropout_;
  int64_t layer_idx_;
};

}  // namespace aerie::nn
