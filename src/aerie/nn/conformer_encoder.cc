#include "aerie/nn/conformer_encoder.h"

#include <algorithm>
#include <cmath>
#include <string>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/alias.h>

#include "aerie/base/strings.h"
#include "aerie/nn/attention_mask.h"
#include "aerie/nn/recompute.h"

namespace aerie::nn {

using config::AttContextStyle;
using config::SelfAttentionModel;

Status check_encoder_config(const config::EncoderConfig& c) {
  auto bad = [](std::string text) {
    return invalid_argument(std::move(text)).with_context("model.encoder");
  };
  if (c.n_layers < 1 || c.d_model < 1 || c.feat_in < 1 || c.ff_expansion_factor < 1)
    return bad("n_layers, d_model, feat_in and ff_expansion_factor must be at least 1");
  // Far beyond any model; they keep products of sizes inside 64 bits and lists of names in memory.
  if (c.n_layers > 1000 || c.d_model > (1 << 20) || c.feat_in > (1 << 20) ||
      c.feat_out > (1 << 20) || c.ff_expansion_factor > 1024 || c.conv_kernel_size > (1 << 20) ||
      c.subsampling_factor > 4096 || c.conv_channels() > (1 << 16))
    return bad("a size is far beyond what can be built")
        .with_hint(
            "check n_layers, d_model, feat_in, feat_out, ff_expansion_factor, "
            "conv_kernel_size, subsampling_factor and subsampling_conv_channels");
  if (c.n_heads < 1 || c.d_model % c.n_heads != 0)
    return bad(str_cat("d_model ", c.d_model, " is not a multiple of n_heads ", c.n_heads));
  const bool conv = c.subsampling == config::Subsampling::kDwStriding ||
                    c.subsampling == config::Subsampling::kStriding;
  if (c.subsampling_factor < 1)
    return bad(str_cat("subsampling_factor ", c.subsampling_factor, " must be at least 1"));
  if (conv && (c.subsampling_factor & (c.subsampling_factor - 1)) != 0)
    return bad(str_cat("subsampling_factor ", c.subsampling_factor,
                       " is not a power of two, which striding subsampling needs"))
        .with_hint("use 2, 4, 8 or 16, or stacking");
  if (conv && c.conv_channels() < 1) return bad("subsampling_conv_channels must be positive");
  if (c.conv_kernel_size < 1 || c.conv_kernel_size % 2 == 0)
    return bad(str_cat("conv_kernel_size ", c.conv_kernel_size, " must be odd"));
  const auto conv_context = c.conv_context();
  if (conv_context[0] < 0 || conv_context[1] < 0 ||
      conv_context[0] + conv_context[1] + 1 != c.conv_kernel_size)
    return bad(str_cat("conv_context_size [", conv_context[0], ", ", conv_context[1],
                       "] plus one must be conv_kernel_size ", c.conv_kernel_size));
  if (c.conv_norm_type == config::ConvNorm::kGroupNorm &&
      (c.conv_norm_groups < 1 || c.d_model % c.conv_norm_groups != 0))
    return bad(str_cat("conv_norm_type group_norm", c.conv_norm_groups, " does not divide d_model ",
                       c.d_model));
  if (c.stochastic_depth_drop_prob < 0.0 || c.stochastic_depth_drop_prob >= 1.0)
    return bad("stochastic_depth_drop_prob must be in [0, 1)");
  if (c.stochastic_depth_start_layer < 1 || c.stochastic_depth_start_layer > c.n_layers)
    return bad("stochastic_depth_start_layer must be in [1, n_layers]");
  for (double p : {c.dropout, c.dropout_pre_encoder, c.dropout_emb, c.dropout_att})
    if (!(p >= 0.0 && p <= 1.0)) return bad("dropout probabilities must be in [0, 1]");

  if (c.att_context_size.empty()) return bad("att_context_size is an empty list");
  if (!c.att_context_probs.empty()) {
    if (c.att_context_probs.size() != c.att_context_size.size())
      return bad(str_cat("att_context_probs has ", c.att_context_probs.size(), " values for ",
                         c.att_context_size.size(), " contexts"));
    double sum = 0.0;
    for (double p : c.att_context_probs) sum += p;
    if (std::abs(sum - 1.0) > 1e-6) return bad("att_context_probs do not sum to 1");
  }
  if (c.att_context_style == AttContextStyle::kChunkedLimited) {
    for (const auto& [left, right] : c.att_context_size) {
      if (right < 0 && c.att_context_size.size() == 1)
        return bad("chunked_limited needs a bounded right context");
      if (left > 0 && right >= 0 && left % (right + 1) != 0)
        return bad(str_cat("chunked_limited: left context ", left,
                           " is not a multiple of right + 1 = ", right + 1));
    }
  }
  if (c.self_attention_model == SelfAttentionModel::kRelPosLocalAttn) {
    const auto [left, right] = c.att_context_size[0];
    if (c.att_context_size.size() > 1)
      return bad("rel_pos_local_attn takes one att_context_size, not a list of them");
    if (left < 0 || right < 0 || std::max(left, right) < 1)
      return bad(str_cat("rel_pos_local_attn needs a bounded att_context_size, got [", left, ", ",
                         right, "]"))
          .with_hint("e.g. att_context_size=[128,128]");
    if (c.use_pytorch_sdpa) return bad("use_pytorch_sdpa is not available with rel_pos_local_attn");
    if (std::max(left, right) > (1 << 14))
      return bad(str_cat("rel_pos_local_attn: a context of ", std::max(left, right),
                         " frames is no longer local"))
          .with_hint("use rel_pos");
    if (c.global_tokens < 0 || c.global_tokens_spacing < 1)
      return bad("global_tokens must be >= 0 and global_tokens_spacing >= 1");
  }
  return ok_status();
}

double layer_drop_prob(const config::EncoderConfig& config, int64_t layer_idx) {
  const int64_t start = config.stochastic_depth_start_layer;
  if (layer_idx < start) return 0.0;  // the first `start` layers are never dropped
  if (config.stochastic_depth_mode == config::StochasticDepthMode::kUniform)
    return config.stochastic_depth_drop_prob;
  return static_cast<double>(layer_idx + 1 - start) / static_cast<double>(config.n_layers - start) *
         config.stochastic_depth_drop_prob;
}

ConformerEncoder::ConformerEncoder(const Scope& scope, const config::EncoderConfig& config,
                                   const Options& options)
    : config_(config), positional_(config), registry_(&scope.registry()) {
  const Scope pre = scope.child(options.pre_encode_name);
  pre_encode_ =
      std::make_unique<SubsamplingModule>(options.freeze_pre_encode ? pre.frozen() : pre, config);
  if (options.after_pre_encode) options.after_pre_encode();
  layers_.reserve(static_cast<size_t>(config.n_layers));
  ParamRef shared_u;
  ParamRef shared_v;
  for (int64_t i = 0; i < config.n_layers; ++i) {
    layers_.emplace_back(scope.child("layers." + std::to_string(i)), config, i, shared_u, shared_v);
    // NeMo shares the biases for rel_pos only; local attention keeps its own.
    if (!config.untie_biases && config.self_attention_model == SelfAttentionModel::kRelPos &&
        i == 0) {
      shared_u = layers_[0].attention().bias_u();
      shared_v = layers_[0].attention().bias_v();
    }
  }
  has_out_proj_ = config.feat_out > 0 && config.feat_out != config.d_model;
  if (has_out_proj_)
    out_proj_ = Linear(scope.child("out_proj"), config.d_model, config.feat_out, true);
}

int64_t ConformerEncoder::feat_out() const {
  return has_out_proj_ ? config_.feat_out : config_.d_model;
}

SubsamplingModule::Output ConformerEncoder::subsample(const ForwardContext& ctx,
                                                      const at::Tensor& features,
                                                      const at::Tensor& lengths) const {
  SubsamplingModule::Output out = pre_encode_->forward(ctx, features.transpose(1, 2), lengths);
  ctx.report("pre_encode", out.x);
  return out;
}

EncoderOutput ConformerEncoder::forward(const ForwardContext& ctx, const at::Tensor& features,
                                        const at::Tensor& lengths, bool keep_layers) const {
  const SubsamplingModule::Output sub = subsample(ctx, features, lengths);
  return forward_subsampled(ctx, sub.x, sub.lengths, keep_layers);
}

at::Tensor ConformerEncoder::project_out(const ForwardContext& ctx, const at::Tensor& x) const {
  return (has_out_proj_ ? out_proj_.forward(ctx.policy, x) : x).transpose(1, 2);
}

at::Tensor ConformerEncoder::run_layer(const ForwardContext& ctx, int64_t i, const at::Tensor& x,
                                       const at::Tensor& positions,
                                       const AttentionMasks& masks) const {
  const ConformerLayer& layer = layers_[static_cast<size_t>(i)];
  if (!ctx.training || !ctx.recompute_layers || !at::GradMode::is_enabled())
    return layer.forward(ctx, x, positions, masks);
  const size_t first_draw = ctx.injected != nullptr ? ctx.injected->next_dropout : 0;
  ForwardContext first = ctx;
  if (ctx.exchange != nullptr) first.exchanged_sums = std::make_shared<at::Tensor>();
  const auto run = [ctx = first, &layer, positions, masks, first_draw](const at::Tensor& in,
                                                                       bool again) {
    if (!again) return layer.forward(ctx, in, positions, masks);
    ForwardContext second = ctx;
    second.again = true;
    second.tap = nullptr;
    InjectedDraws draws;
    if (ctx.injected != nullptr) {
      draws = *ctx.injected;
      draws.next_dropout = first_draw;
      second.injected = &draws;
    }
    return layer.forward(second, in, positions, masks);
  };
  return recomputed(run, x);
}

EncoderOutput ConformerEncoder::forward_subsampled(const ForwardContext& ctx, const at::Tensor& in,
                                                   const at::Tensor& lengths,
                                                   bool keep_layers) const {
  const int64_t frames = in.size(1);
  PositionalOutput positioned = positional_.forward(ctx, in, registry_->dtype());
  at::Tensor x = positioned.x;

  AttentionMasks masks;
  masks.padding = padding_mask(lengths, frames);
  if (config_.self_attention_model != SelfAttentionModel::kRelPosLocalAttn) {
    masks.blocked = blocked_mask(
        masks.padding,
        context_mask(config_.att_context_style, choose_context(ctx, config_), frames, x.device()));
    ctx.report("blocked", masks.blocked);
  }

  EncoderOutput out;
  for (int64_t i = 0; i < config_.n_layers; ++i) {
    const at::Tensor before = x;
    const double p = layer_drop_prob(config_, i);
    const bool may_drop = ctx.training && p > 0.0;
    // What a layer adds to the gradient of its input is summed before anything else is, so that
    // recomputed layers round the same.
    x = run_layer(ctx, i, may_drop ? at::alias(x) : x, positioned.positions, masks);
    if (may_drop) {
      const bool drop = ctx.injected != nullptr && !ctx.injected->drop_layers.empty()
                            ? ctx.injected->drop_layers[static_cast<size_t>(i)]
                            : uniform_of_step(ctx.random, Purpose::kStochasticDepth,
                                              static_cast<uint32_t>(i)) < p;
      // A dropped layer still takes part with factor 0, so that its parameters have gradients.
      x = drop ? x * 0.0 + before : (x - before) / (1.0 - p) + before;
    }
    if (keep_layers) out.layers.push_back(project_out(ctx, x));
  }
  out.encoded = project_out(ctx, x);
  out.lengths = lengths;
  return out;
}

}  // namespace aerie::nn
