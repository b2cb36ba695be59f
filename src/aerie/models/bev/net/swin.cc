#include "aerie/models/bev/net/swin.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/roll.h>
#include <ATen/ops/zeros.h>

#include "aerie/base/check.h"
#include "aerie/base/strings.h"
#include "aerie/nn/device_draws.h"
#include "aerie/nn/init.h"
#include "aerie/nn/recompute.h"

namespace aerie::bev {
namespace {

constexpr double kInitialDeviation = 0.02;
constexpr double kOtherRegion = -100.0;

nn::Linear linear(const nn::Scope& scope, int64_t in, int64_t out, bool use_bias) {
  nn::Linear made(scope, in, out, use_bias);
  scope.registry().set_init(made.weight, nn::Init::normal(kInitialDeviation));
  if (use_bias) scope.registry().set_init(made.bias, nn::Init::constant(0.0));
  return made;
}

int64_t up_to(int64_t size, int64_t multiple) {
  return (size + multiple - 1) / multiple * multiple;
}

// (N,H,W,C) to (N*windows, window*window, C), windows and tokens row by row.
at::Tensor to_windows(const at::Tensor& x, int64_t w) {
  const int64_t n = x.size(0), height = x.size(1), width = x.size(2), c = x.size(3);
  return x.reshape({n, height / w, w, width / w, w, c})
      .permute({0, 1, 3, 2, 4, 5})
      .reshape({-1, w * w, c});
}

at::Tensor from_windows(const at::Tensor& x, int64_t w, int64_t n, int64_t height, int64_t width) {
  return x.view({n, height / w, width / w, w, w, -1})
      .permute({0, 1, 3, 2, 4, 5})
      .reshape({n, height, width, -1});
}

// Along one axis of a shifted map: what wrapped around, what shares its window, the rest.
int64_t region(int64_t at, int64_t size, int64_t window, int64_t shift) {
  if (shift == 0 || at < size - window) return 0;
  return at < size - shift ? 1 : 2;
}

}  // namespace

at::Tensor path_factors(const nn::RandomKey& random, std::span<const double> rates,
                        int64_t images) {
  at::Tensor out = at::empty({static_cast<int64_t>(rates.size()), images}, at::kDouble);
  double* next = out.data_ptr<double>();
  for (size_t site = 0; site < rates.size(); ++site)
    for (int64_t i = 0; i < images; ++i) {
      const double draw = nn::uniform_of_item(
          random, Purpose::kStochasticDepth, static_cast<uint32_t>(site), static_cast<uint64_t>(i));
      *next++ = draw >= rates[site] ? 1.0 / (1.0 - rates[site]) : 0.0;
    }
  return out;
}

at::Tensor drop_path(const nn::ForwardContext& ctx, const at::Tensor& x, double rate,
                     uint32_t site) {
  if (!ctx.training || rate <= 0.0) return x;
  const int64_t images = x.size(0);
  const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor factors;
  if (ctx.injected != nullptr) {
    AERIE_CHECK(ctx.injected->next_dropout < ctx.injected->dropout_keep.size(),
                "more dropped paths than injected masks");
    const at::Tensor keep = ctx.injected->dropout_keep[ctx.injected->next_dropout++];
    AERIE_CHECK(keep.numel() == images, "an injected mask has ", keep.numel(), " values for ",
                images, " images");
    factors = (keep.to(at::kCPU, at::kDouble) != 0.0).to(at::kDouble) * (1.0 / (1.0 - rate));
    factors = nn::sent_to(x.device(), factors.to(wide));
  } else {
    factors = ctx.path_factors.select(0, site);
  }
  return (x.to(wide) * factors.view({images, 1, 1, 1})).to(x.scalar_type());
}

WindowAttention::WindowAttention(const nn::Scope& scope, const SwinBlockShape& shape)
    : heads_(shape.heads), window_(shape.window) {
  const int64_t side = 2 * shape.window - 1;
  table_ = scope.param("relative_position_bias_table", {side * side, shape.heads},
                       nn::Init::normal(kInitialDeviation));
  qkv_ = linear(scope.child("qkv"), shape.width, 3 * shape.width, true);
  proj_ = linear(scope.child("proj"), shape.width, shape.width, true);
}

at::Tensor WindowAttention::forward(const nn::ForwardContext& ctx, const at::Tensor& x,
                                    const at::Tensor& mask) const {
  const int64_t n = x.size(0), tokens = x.size(1), width = x.size(2);
  const at::Tensor table = table_.tensor();
  if (!lookup_.defined() || lookup_.device() != table.device() ||
      lookup_.scalar_type() != table.scalar_type()) {
    const int64_t side = 2 * window_ - 1;
    at::Tensor lookup = at::zeros({tokens * tokens, side * side}, at::kFloat);
    float* values = lookup.data_ptr<float>();
    for (int64_t i = 0; i < tokens; ++i)  // query
      for (int64_t j = 0; j < tokens; ++j) {
        const int64_t row = (i / window_ - j / window_ + window_ - 1) * side +
                            (i % window_ - j % window_ + window_ - 1);
        values[(i * tokens + j) * side * side + row] = 1.0f;
      }
    lookup_ = lookup.to(table.options().requires_grad(false));
  }
  // (3,n,heads,T,d)
  const at::Tensor qkv = qkv_.forward(ctx.policy, x)
                             .view({n, tokens, 3, heads_, width / heads_})
                             .permute({2, 0, 3, 1, 4});
  const double scale = 1.0 / std::sqrt(static_cast<double>(width / heads_));
  const at::Tensor bias =
      at::matmul(lookup_, table).view({tokens, tokens, heads_}).permute({2, 0, 1}).unsqueeze(0);
  at::Tensor scores = nn::matmul(ctx.policy, qkv[0] * scale, qkv[1].transpose(-2, -1)) + bias;
  if (mask.defined())
    scores =
        (scores.view({-1, mask.size(0), heads_, tokens, tokens}) + mask.unsqueeze(1).unsqueeze(0))
            .view({n, heads_, tokens, tokens});
  const at::Tensor weights = nn::softmax(ctx.policy, scores, -1).to(qkv.scalar_type());
  const at::Tensor mixed = nn::matmul(ctx.policy, weights, qkv[2]);
  return proj_.forward(ctx.policy, mixed.transpose(1, 2).reshape({n, tokens, width}));
}

SwinBlock::SwinBlock(const nn::Scope& scope, const SwinBlockShape& shape)
    : shape_(shape),
      norm1_(scope.child("norm1"), shape.width),
      attention_(scope.child("attn.w_msa"), shape),
      norm2_(scope.child("norm2"), shape.width),
      ffn1_(
          linear(scope.child("ffn.layers.0.0"), shape.width, shape.mlp_ratio * shape.width, true)),
      ffn2_(linear(scope.child("ffn.layers.1"), shape.mlp_ratio * shape.width, shape.width, true)) {
}

at::Tensor SwinBlock::forward(const nn::ForwardContext& ctx, const at::Tensor& x) const {
  const at::Tensor attended = attend(ctx, norm1_.forward(ctx.policy, x));
  const at::Tensor y = x + drop_path(ctx, attended, shape_.drop_path, 2 * shape_.index);
  const at::Tensor inner = at::gelu(ffn1_.forward(ctx.policy, norm2_.forward(ctx.policy, y)));
  return y +
         drop_path(ctx, ffn2_.forward(ctx.policy, inner), shape_.drop_path, 2 * shape_.index + 1);
}

at::Tensor SwinBlock::attend(const nn::ForwardContext& ctx, const at::Tensor& normed) const {
  const int64_t n = normed.size(0), height = normed.size(1), width = normed.size(2);
  const int64_t window = shape_.window;
  const int64_t padded_h = up_to(height, window), padded_w = up_to(width, window);
  at::Tensor x = normed;
  if (padded_h != height || padded_w != width)
    x = at::constant_pad_nd(x, {0, 0, 0, padded_w - width, 0, padded_h - height});
  const bool single = shape_.zero_shift_single_window;
  const int64_t shift_y = single && padded_h <= window ? 0 : shape_.shift;
  const int64_t shift_x = single && padded_w <= window ? 0 : shape_.shift;
  const bool shifted = shift_y != 0 || shift_x != 0;
  at::Tensor between;
  if (shifted) {
    x = at::roll(x, {-shift_y, -shift_x}, {1, 2});
    between = mask(padded_h, padded_w, shift_y, shift_x, normed);
  }
  x = attention_.forward(ctx, to_windows(x, window), between);
  x = from_windows(x, window, n, padded_h, padded_w);
  if (shifted) x = at::roll(x, {shift_y, shift_x}, {1, 2});
  return x.narrow(1, 0, height).narrow(2, 0, width);
}

const at::Tensor& SwinBlock::mask(int64_t height, int64_t width, int64_t shift_y, int64_t shift_x,
                                  const at::Tensor& like) const {
  const at::ScalarType dtype = like.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor& kept = masks_[{height, width, shift_y, shift_x}];
  if (kept.defined() && kept.device() == like.device() && kept.scalar_type() == dtype) return kept;
  const int64_t window = shape_.window, tokens = window * window;
  at::Tensor made = at::empty({height / window * (width / window), tokens, tokens}, at::kFloat);
  float* next = made.data_ptr<float>();
  for (int64_t y0 = 0; y0 < height; y0 += window)
    for (int64_t x0 = 0; x0 < width; x0 += window) {
      const auto label = [&](int64_t token) {
        return region(y0 + token / window, height, window, shift_y) * 3 +
               region(x0 + token % window, width, window, shift_x);
      };
      for (int64_t i = 0; i < tokens; ++i)
        for (int64_t j = 0; j < tokens; ++j)
          *next++ = label(i) == label(j) ? 0.0f : static_cast<float>(kOtherRegion);
    }
  kept = made.to(like.device(), dtype);
  return kept;
}

PatchMerging::PatchMerging(const nn::Scope& scope, int64_t width)
    : norm_(scope.child("norm"), 4 * width),
      reduction_(linear(scope.child("reduction"), 4 * width, 2 * width, false)) {}

at::Tensor PatchMerging::forward(const nn::ForwardContext& ctx, const at::Tensor& x) const {
  const int64_t n = x.size(0), height = x.size(1), width = x.size(2), c = x.size(3);
  at::Tensor padded = x;
  if (height % 2 != 0 || width % 2 != 0)
    padded = at::constant_pad_nd(x, {0, 0, 0, width % 2, 0, height % 2});
  const int64_t h = (height + 1) / 2, w = (width + 1) / 2;
  const at::Tensor merged =
      padded.reshape({n, h, 2, w, 2, c}).permute({0, 1, 3, 5, 2, 4}).reshape({n, h, w, 4 * c});
  return reduction_.forward(ctx.policy, norm_.forward(ctx.policy, merged));
}

Swin::Swin(const nn::Scope& scope, const SwinConfig& config, int64_t first_output)
    : first_output_(first_output) {
  const nn::Scope patch = scope.child("patch_embed");
  const int64_t fan_in = 3 * 4 * 4;
  patch_weight_ = patch.child("projection")
                      .param("weight", {config.embed_dims, 3, 4, 4}, nn::default_uniform(fan_in));
  patch_bias_ =
      patch.child("projection").param("bias", {config.embed_dims}, nn::default_uniform(fan_in));
  patch_norm_ = nn::LayerNorm(patch.child("norm"), config.embed_dims);

  int64_t blocks = 0;
  for (const int64_t depth : config.depths) blocks += depth;
  uint32_t index = 0;
  for (int64_t s = 0; s < config.num_stages(); ++s) {
    const nn::Scope stage_scope = scope.child(str_cat("stages.", s));
    Stage& stage = stages_.emplace_back();
    for (int64_t b = 0; b < config.depths[static_cast<size_t>(s)]; ++b, ++index) {
      SwinBlockShape shape;
      shape.width = config.width(s);
      shape.heads = config.num_heads[static_cast<size_t>(s)];
      shape.window = config.window_size;
      shape.shift = b % 2 == 1 ? config.window_size / 2 : 0;
      shape.mlp_ratio = config.mlp_ratio;
      shape.drop_path = blocks > 1 ? config.drop_path_rate * static_cast<double>(index) /
                                         static_cast<double>(blocks - 1)
                                   : 0.0;
      shape.zero_shift_single_window = config.zero_shift_single_window;
      shape.index = index;
      drop_rates_.insert(drop_rates_.end(), 2, shape.drop_path);
      stage.blocks.emplace_back(stage_scope.child(str_cat("blocks.", b)), shape);
    }
    if (s + 1 < config.num_stages())
      stage.downsample.emplace(stage_scope.child("downsample"), config.width(s));
  }
  for (int64_t s = first_output; s < config.num_stages(); ++s)
    norms_.emplace_back(scope.child(str_cat("norm", s)), config.width(s));
}

at::Tensor Swin::run_block(const nn::ForwardContext& ctx, const SwinBlock& block,
                           const at::Tensor& x) {
  // Masks given from outside are used up as they are read: such a pass runs once.
  if (!ctx.training || !ctx.recompute_layers || ctx.injected != nullptr ||
      !at::GradMode::is_enabled())
    return block.forward(ctx, x);
  const auto run = [ctx, &block](const at::Tensor& in, bool) { return block.forward(ctx, in); };
  return nn::recomputed(run, x);
}

at::Tensor Swin::path_factors(const nn::RandomKey& random, int64_t images, at::Device device,
                              at::ScalarType dtype) const {
  if (std::all_of(drop_rates_.begin(), drop_rates_.end(), [](double r) { return r <= 0.0; }))
    return {};
  return nn::sent_to(device, bev::path_factors(random, drop_rates_, images).to(dtype));
}

std::vector<at::Tensor> Swin::forward(const nn::ForwardContext& given,
                                      const at::Tensor& images) const {
  nn::ForwardContext ctx = given;
  if (ctx.training && ctx.injected == nullptr && !ctx.path_factors.defined())
    ctx.path_factors = path_factors(
        ctx.random, images.size(0), images.device(),
        patch_weight_.tensor().scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  at::Tensor x = images;
  const int64_t height = x.size(2), width = x.size(3);
  if (height % 4 != 0 || width % 4 != 0)
    x = at::constant_pad_nd(x, {0, up_to(width, 4) - width, 0, up_to(height, 4) - height});
  const auto dtype = ctx.policy.input_dtype(nn::OpClass::kGemm);
  const auto cast = [&](const at::Tensor& t) { return dtype ? t.to(*dtype) : t; };
  const std::array<int64_t, 2> stride = {4, 4}, none = {0, 0}, ones = {1, 1};
  x = at::conv2d(cast(x), cast(patch_weight_.tensor()), cast(patch_bias_.tensor()),
                 at::IntArrayRef(stride), at::IntArrayRef(none), at::IntArrayRef(ones), 1);
  x = patch_norm_.forward(ctx.policy, x.permute({0, 2, 3, 1}));
  ctx.report("patch_embed", x);

  std::vector<at::Tensor> outputs;
  for (size_t s = 0; s < stages_.size(); ++s) {
    for (size_t b = 0; b < stages_[s].blocks.size(); ++b) {
      x = run_block(ctx, stages_[s].blocks[b], x);
      ctx.report(str_cat("swin.", s, ".", b), x);
    }
    if (static_cast<int64_t>(s) >= first_output_) {
      outputs.push_back(
          norms_[outputs.size()].forward(ctx.policy, x).permute({0, 3, 1, 2}).contiguous());
      ctx.report(str_cat("l", outputs.size() - 1), outputs.back());
    }
    if (stages_[s].downsample) x = stages_[s].downsample->forward(ctx, x);
  }
  return outputs;
}

}  // namespace aerie::bev
