// Multi-head self-attention (docs/numerics.md 4.4): relative positions (Transformer-XL), absolute
// positions, and relative positions in a local window with optional global tokens.
//
// use_pytorch_sdpa selects the same mathematics in NeMo and has no effect here.
#pragma once

#include "aerie/nn/conformer_config.h"
#include "aerie/nn/ops.h"

namespace aerie::nn {

struct AttentionMasks {
  at::Tensor padding;  // (B,T) true = padded
  at::Tensor blocked;  // (B,T,T) true = blocked; undefined for local attention
};

class SelfAttention {
 public:
  // Shared position biases (untie_biases false): given, they are registered here as aliases.
  SelfAttention(const Scope& scope, const config::EncoderConfig& config, int64_t layer_idx,
                ParamRef shared_bias_u, ParamRef shared_bias_v);

  // x (B,T,d) already normalised; positions as PositionalEncoding makes them.
  at::Tensor forward(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor& positions,
                     const AttentionMasks& masks) const;

  ParamRef bias_u() const { return bias_u_; }
  ParamRef bias_v() const { return bias_v_; }

 private:
  struct Heads {
    at::Tensor q, k, v;  // (B,H,T,dk)
  };
  Heads project(const DtypePolicy& policy, const at::Tensor& x, const Linear& q, const Linear& k,
                const Linear& v) const;
  at::Tensor split_heads(const at::Tensor& x) const;  // (B,T,d) -> (B,H,T,dk)
  at::Tensor weights_dropout(const ForwardContext& ctx, const at::Tensor& weights,
                             DropoutSite::Place place) const;
  at::Tensor forward_full(const ForwardContext& ctx, const at::Tensor& x,
                          const at::Tensor& positions, const at::Tensor& blocked) const;
  at::Tensor forward_local(const ForwardContext& ctx, const at::Tensor& x,
                           const at::Tensor& positions, const at::Tensor& padding) const;
  at::Tensor attend_global(const ForwardContext& ctx, const DtypePolicy& policy,
                           const Heads& global, const at::Tensor& tokens,
                           const at::Tensor& padding) const;

  config::SelfAttentionModel model_;
  int64_t heads_;
  int64_t head_dim_;
  int64_t layer_idx_;
  double dropout_;
  std::array<int64_t, 2> window_ = {0, 0};
  int64_t global_tokens_ = 0;
  int64_t global_spacing_ = 1;
  bool global_separate_ = false;
  ParamRef bias_u_;
  ParamRef bias_v_;
  Linear linear_q_, linear_k_, linear_v_, linear_out_, linear_pos_;
  Linear global_q_, global_k_, global_v_;
};

// BD[i,j] = raw[i, T-1-i+j] for raw (B,H,T,2T-1): column m of raw is relative position T-1-m.
at::Tensor relative_shift(const at::Tensor& raw);

}  // namespace aerie::nn
