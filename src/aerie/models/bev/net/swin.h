// The Swin transformer as mmdet has it: windows of padded maps, every other block shifted.
//
// Two rules are worth knowing. Maps are padded after the first norm, and padding tokens take part
// as keys and values (equal to the bias of qkv). The shift stays on where a map is a single window,
// unless zero_shift_single_window says otherwise. Parameter names and the order of merged channels
// (4*c + 2*row + column) are mmdet's. Maps between blocks are (N,H,W,C).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

#include "aerie/models/bev/config/bev_config.h"
#include "aerie/models/bev/net/layers.h"
#include "aerie/nn/forward_context.h"
#include "aerie/nn/ops.h"

namespace aerie::bev {

struct SwinBlockShape {
  int64_t width = 0;
  int64_t heads = 1;
  int64_t window = 7;
  int64_t shift = 0;
  int64_t mlp_ratio = 4;
  double drop_path = 0.0;
  bool zero_shift_single_window = false;
  uint32_t index = 0;  // of the block in the network: its draws
};

// Stochastic depth: a branch is dropped for whole images. One number per image, branch and block
// (purpose kStochasticDepth, epoch 2*block + branch); kept where it is >= rate, and scaled by
// 1/(1-rate): that is the image's factor, one row for every site 2*block + branch. In float64, on
// the CPU.
at::Tensor path_factors(const nn::RandomKey& random, std::span<const double> rates, int64_t images);
// x times the factors of ctx.path_factors; injected keep-masks replace them, one for each branch
// that may be dropped.
at::Tensor drop_path(const nn::ForwardContext& ctx, const at::Tensor& x, double rate,
                     uint32_t site);

// Attention inside windows: x (windows,T,C), mask (windows of an image,T,T) to add or undefined.
class WindowAttention {
 public:
  WindowAttention(const nn::Scope& scope, const SwinBlockShape& shape);
  at::Tensor forward(const nn::ForwardContext& ctx, const at::Tensor& x,
                     const at::Tensor& mask) const;

 private:
  int64_t heads_, window_;
  nn::ParamRef table_;
  nn::Linear qkv_, proj_;
  // [T*T, rows of the table], one 1 a row: looking up biases and adding up their gradients are
  // matrix products.
  mutable at::Tensor lookup_;
};

class SwinBlock {
 public:
  SwinBlock(const nn::Scope& scope, const SwinBlockShape& shape);
  at::Tensor forward(const nn::ForwardContext& ctx, const at::Tensor& x) const;

 private:
  at::Tensor attend(const nn::ForwardContext& ctx, const at::Tensor& normed) const;
  const at::Tensor& mask(int64_t height, int64_t width, int64_t shift_y, int64_t shift_x,
                         const at::Tensor& like) const;

  SwinBlockShape shape_;
  nn::LayerNorm norm1_;
  WindowAttention attention_;
  nn::LayerNorm norm2_;
  nn::Linear ffn1_, ffn2_;
  mutable std::map<std::tuple<int64_t, int64_t, int64_t, int64_t>, at::Tensor> masks_;
};

// 2x2 neighbours to one token of twice the width; odd sizes are padded.
class PatchMerging {
 public:
  PatchMerging(const nn::Scope& scope, int64_t width);
  at::Tensor forward(const nn::ForwardContext& ctx, const at::Tensor& x) const;

 private:
  nn::LayerNorm norm_;
  nn::Linear reduction_;
};

class Swin {
 public:
  // Gives the outputs of stages first_output .. last.
  Swin(const nn::Scope& scope, const SwinConfig& config, int64_t first_output);
  // Pictures (N,3,H,W); maps (N,C,h,w), finest first. Reports patch_embed, swin.<stage>.<block> and
  // l0, l1, ...
  std::vector<at::Tensor> forward(const nn::ForwardContext& ctx, const at::Tensor& images) const;
  // What a training pass takes as ctx.path_factors; undefined: no branch is ever dropped.
  at::Tensor path_factors(const nn::RandomKey& random, int64_t images, at::Device device,
                          at::ScalarType dtype) const;

 private:
  static at::Tensor run_block(const nn::ForwardContext& ctx, const SwinBlock& block,
                              const at::Tensor& x);

  struct Stage {
    std::vector<SwinBlock> blocks;
    std::optional<PatchMerging> downsample;
  };
  int64_t first_output_;
  std::vector<double> drop_rates_;  // of all sites
  nn::ParamRef patch_weight_, patch_bias_;
  nn::LayerNorm patch_norm_;
  std::vector<Stage> stages_;
  std::vector<nn::LayerNorm> norms_;
};

}  // namespace aerie::bev
