#include "aerie/nn/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "aerie/nn/local_window.h"

namespace aerie::nn {
namespace {

constexpr double kBlockedScore = -10000.0;

// index[i][c] = i - w + c clamped to [0, T): the key seen by query i in column c of its window.
at::Tensor window_keys(int64_t frames, int64_t w, const at::Device& device) {
  const auto options = at::TensorOptions().dtype(at::kLong).device(device);
  return at::arange(frames, options).unsqueeze(1) + at::arange(-w, w + 1, options).unsqueeze(0);
}

// rows (B,H,T,D) gathered by (T,C) indices: (B,H,T,C,D).
at::Tensor gather_rows(const at::Tensor& rows, const at::Tensor& index) {
  return rows.index_select(2, index.flatten())
      .view({rows.size(0), rows.size(1), index.size(0), index.size(1), rows.size(3)});
}

}  // namespace

// raw[i, T-1-i+j] is T-1 + i*(2T-2) + j values behind raw[0, 0]: the same memory seen with rows
// that are one value shorter.
at::Tensor relative_shift(const at::Tensor& raw) {
  const int64_t frames = raw.size(2);
  const at::Tensor dense = raw.contiguous();
  return dense.as_strided({raw.size(0), raw.size(1), frames, frames},
                          {dense.stride(0), dense.stride(1), 2 * frames - 2, 1},
                          dense.storage_offset() + frames - 1);
}

SelfAttention::SelfAttention(const Scope& scope, const config::EncoderConfig& config,
                             int64_t layer_idx, ParamRef shared_bias_u, ParamRef shared_bias_v)
    : model_(config.self_attention_model),
      heads_(config.n_heads),
      head_dim_(config.d_model / config.n_heads),
      layer_idx_(layer_idx),
      dropout_(config.dropout_att) {
  const int64_t d = config.d_model;
  const bool relative = model_ != config::SelfAttentionModel::kAbsPos;
  if (relative) {
    const std::vector<int64_t> shape = {heads_, head_dim_};
    bias_u_ = shared_bias_u.defined() ? scope.alias("pos_bias_u", shared_bias_u)
                                      : scope.param("pos_bias_u", shape, Init::constant(0.0));
    bias_v_ = shared_bias_v.defined() ? scope.alias("pos_bias_v", shared_bias_v)
                                      : scope.param("pos_bias_v", shape, Init::constant(0.0));
  }
  linear_q_ = Linear(scope.child("linear_q"), d, d, config.use_bias);
  linear_k_ = Linear(scope.child("linear_k"), d, d, config.use_bias);
  linear_v_ = Linear(scope.child("linear_v"), d, d, config.use_bias);
  linear_out_ = Linear(scope.child("linear_out"), d, d, config.use_bias);
  if (relative) linear_pos_ = Linear(scope.child("linear_pos"), d, d, false);
  if (model_ == config::SelfAttentionModel::kRelPosLocalAttn) {
    window_ = config.att_context_size[0];
    global_tokens_ = config.global_tokens;
    global_spacing_ = config.global_tokens_spacing;
    global_separate_ = config.global_attn_separate;
    if (global_separate_) {
      global_q_ = Linear(scope.child("global_q"), d, d, config.use_bias);
      global_k_ = Linear(scope.child("global_k"), d, d, config.use_bias);
      global_v_ = Linear(scope.child("global_v"), d, d, config.use_bias);
    }
  }
}

at::Tensor SelfAttention::split_heads(const at::Tensor& x) const {
  return x.view({x.size(0), x.size(1), heads_, head_dim_}).transpose(1, 2);
}

SelfAttention::Heads SelfAttention::project(const DtypePolicy& policy, const at::Tensor& x,
                                            const Linear& q, const Linear& k,
                                            const Linear& v) const {
  return {split_heads(q.forward(policy, x)), split_heads(k.forward(policy, x)),
          split_heads(v.forward(policy, x))};
}

at::Tensor SelfAttention::weights_dropout(const ForwardContext& ctx, const at::Tensor& weights,
                                          DropoutSite::Place place) const {
  return dropout_with(ctx, weights, dropout_, [&] {
    return dropout_of_attention(ctx.random, DropoutSite::layer(layer_idx_, place), dropout_,
                                weights.size(0), weights.size(1), weights.size(2), weights.size(3));
  });
}

at::Tensor SelfAttention::forward(const ForwardContext& ctx, const at::Tensor& x,
                                  const at::Tensor& positions, const AttentionMasks& masks) const {
  if (model_ == config::SelfAttentionModel::kRelPosLocalAttn)
    return forward_local(ctx, x, positions, masks.padding);
  return forward_full(ctx, x, positions, masks.blocked);
}

at::Tensor SelfAttention::forward_full(const ForwardContext& ctx, const at::Tensor& x,
                                       const at::Tensor& positions,
                                       const at::Tensor& blocked) const {
  const DtypePolicy policy = ctx.policy.attention();
  const Heads h = project(policy, x, linear_q_, linear_k_, linear_v_);
  const double scale = std::sqrt(static_cast<double>(head_dim_));

  at::Tensor scores;
  if (model_ == config::SelfAttentionModel::kRelPos) {
    const at::Tensor p = split_heads(linear_pos_.forward(policy, positions));
    const at::Tensor q_u = h.q + bias_u_.tensor().unsqueeze(1);
    const at::Tensor q_v = h.q + bias_v_.tensor().unsqueeze(1);
    const at::Tensor ac = matmul(policy, q_u, h.k.transpose(-2, -1));
    const at::Tensor bd = relative_shift(matmul(policy, q_v, p.transpose(-2, -1)));
    scores = (ac + bd) / scale;
  } else {
    scores = matmul(policy, h.q, h.k.transpose(-2, -1)) / scale;
  }
  // A fully blocked query row is uniform after the softmax and all zero after the second fill.
  const at::Tensor mask = blocked.unsqueeze(1);
  at::Tensor weights =
      softmax(policy, scores.masked_fill(mask, kBlockedScore), -1).masked_fill(mask, 0.0);
  weights = weights_dropout(ctx, weights, DropoutSite::kAttentionWeights);
  const at::Tensor mixed = matmul(policy, weights, h.v);
  return linear_out_.forward(policy, mixed.transpose(1, 2).flatten(2));
}

// Every query i sees columns c = 0..2w, key i-w+c, w = max(left, right); columns outside
// [-left, +right] are blocked. The CPU gathers keys and values per query: O(T w) memory; a GPU
// multiplies chunks (local_window.h), which rounds otherwise.
at::Tensor SelfAttention::forward_local(const ForwardContext& ctx, const at::Tensor& x,
                                        const at::Tensor& positions,
                                        const at::Tensor& padding) const {
  const DtypePolicy policy = ctx.policy.attention();
  const auto [left, right] = window_;
  const int64_t w = std::max(left, right);
  const int64_t frames = x.size(1);
  const double scale = std::sqrt(static_cast<double>(head_dim_));
  const Heads h = project(policy, x, linear_q_, linear_k_, linear_v_);

  const at::Tensor key = window_keys(frames, w, x.device());  // (T,2w+1)
  const at::Tensor outside = key.lt(0).logical_or(key.ge(frames));
  const at::Tensor clamped = key.clamp(0, frames - 1);
  const bool by_chunks = x.is_cuda();
  const at::Tensor k_window = by_chunks ? at::Tensor() : gather_rows(h.k, clamped);
  const at::Tensor v_window = by_chunks ? at::Tensor() : gather_rows(h.v, clamped);
  const auto mix_window = [&](const at::Tensor& weights) {
    return by_chunks ? window_mix(policy, weights, h.v, w)
                     : matmul(policy, weights.unsqueeze(-2), v_window).squeeze(-2);
  };

  const at::Tensor q_u = h.q + bias_u_.tensor().unsqueeze(1);
  const at::Tensor q_v = h.q + bias_v_.tensor().unsqueeze(1);
  const at::Tensor ac =  // (B,H,T,2w+1)
      by_chunks ? window_scores(policy, q_u, h.k, w)
                : matmul(policy, k_window, q_u.unsqueeze(-1)).squeeze(-1);
  const at::Tensor p = split_heads(linear_pos_.forward(policy, positions));
  const at::Tensor bd = matmul(policy, q_v, p.transpose(-2, -1));  // (B,H,T,left+right+1)
  // NeMo adds the first `left` position columns at the left edge of the window and the other
  // right+1 at its right edge: with left != right some visible columns get none, others a shifted
  // one. Kept, because trained weights depend on it.
  const int64_t gap = 2 * w - left - right;
  const at::Tensor bd_window = at::cat(
      {bd.narrow(3, 0, left), at::zeros({bd.size(0), bd.size(1), frames, gap}, bd.options()),
       bd.narrow(3, left, right + 1)},
      3);
  at::Tensor scores = (ac + bd_window) / scale;

  const at::Tensor column = at::arange(2 * w + 1, key.options());
  const at::Tensor closed = column.lt(w - left).logical_or(column.gt(w + right));
  scores = scores.masked_fill(closed.view({1, 1, 1, -1}), kBlockedScore);
  const at::Tensor key_padded =
      padding.index_select(1, clamped.flatten()).view({padding.size(0), 1, frames, 2 * w + 1});
  scores = scores + key_padded.to(scores.scalar_type()) * kBlockedScore;
  scores = scores.masked_fill(outside, -std::numeric_limits<double>::infinity());

  const at::Tensor query_padded = padding.unsqueeze(1).unsqueeze(-1);  // (B,1,T,1)
  if (global_tokens_ <= 0) {
    at::Tensor weights = softmax(policy, scores, -1).masked_fill(query_padded, 0.0);
    weights = weights_dropout(ctx, weights, DropoutSite::kAttentionWeights);
    const at::Tensor mixed = mix_window(weights);
    // NeMo leaves its bf16 region before this product: fp16 under 16-mixed.
    return linear_out_.forward(ctx.policy, mixed.transpose(1, 2).flatten(2));
  }

  const at::Tensor tokens = at::arange(0, std::min(frames, global_tokens_ * global_spacing_),
                                       global_spacing_, key.options());
  Heads global = global_separate_ ? project(policy, x, global_q_, global_k_, global_v_) : h;
  global.q = global.q / scale;
  const at::Tensor to_global =
      matmul(policy, global.q, global.k.index_select(2, tokens).transpose(-2, -1));  // (B,H,T,G)
  const int64_t count = tokens.size(0);
  at::Tensor weights = softmax(policy, at::cat({to_global, scores}, -1), -1);
  weights =
      weights_dropout(ctx, weights.masked_fill(query_padded, 0.0), DropoutSite::kAttentionWeights);
  const at::Tensor from_global =
      matmul(policy, weights.narrow(3, 0, count), h.v.index_select(2, tokens));
  const at::Tensor from_window = mix_window(weights.narrow(3, count, 2 * w + 1));
  at::Tensor mixed = (from_global + from_window).transpose(1, 2).flatten(2);
  const at::Tensor rows = attend_global(ctx, policy, global, tokens, padding);
  mixed = mixed.index_copy(1, tokens, rows.to(mixed.scalar_type()));
  return linear_out_.forward(ctx.policy, mixed);
}

// What the global tokens themselves attend to: every frame. Returns (B,G,d).
at::Tensor SelfAttention::attend_global(const ForwardContext& ctx, const DtypePolicy& policy,
                                        const Heads& global, const at::Tensor& tokens,
                                        const at::Tensor& padding) const {
  const int64_t batch = global.q.size(0);
  const int64_t count = tokens.size(0);
  // NeMo reorders these queries by (token, item, head, dim) and reads them back as (item, head,
  // token, dim), which mixes heads and items as soon as there are two global tokens. Kept, because
  // trained weights depend on it.
  const at::Tensor q = global.q.transpose(1, 2).index_select(1, tokens).transpose(0, 1).reshape(
      {batch, heads_, count, head_dim_});
  at::Tensor scores = matmul(policy, q, global.k.transpose(-2, -1));  // (B,H,G,T)
  // Lowest finite bf16; far below any score in the wider types too.
  scores = scores.masked_fill(padding.unsqueeze(1).unsqueeze(1), -3.3895313892515355e38);
  at::Tensor weights = softmax(policy, scores, -1);
  // NeMo pads the time axis to a multiple of the window pair with zeros. That shows in items
  // without a single frame, where all weights are equal, and through the mixing above in other
  // items too.
  const int64_t span = 2 * std::max(window_[0], window_[1]);
  const int64_t frames = padding.size(1);
  const int64_t padded_frames = (frames + span - 1) / span * span;
  const at::Tensor empty = padding.all(1).view({batch, 1, 1, 1});
  weights = at::where(
      empty, weights * (static_cast<double>(frames) / static_cast<double>(padded_frames)), weights);
  weights = weights_dropout(ctx, weights, DropoutSite::kGlobalAttentionWeights);
  return matmul(policy, weights, global.v).transpose(1, 2).flatten(2);
}

}  // namespace aerie::nn
