// The middle of the convolution module on (B,T,C), between its two pointwise GEMMs:
//   gated[t][c] = (a + bias_a) * sigmoid(b + bias_b), (a, b) = halves of x; zero at and beyond a
//                 row's length
//   out[t][c]   = bias[c] + sum over k of weight[c][k] * gated[t - left + k][c]
// Frames that an item has no rows for count as what they would be: the bias.
// followed by BatchNorm and SiLU (batch_norm.h), whose gradient the backward kernel applies as it
// loads: neither gated nor the gradient of out are ever in memory. Kernels of 5 and 9 taps; C a
// multiple of 8.
#pragma once

#include "aerie/kernels/sums/partial_sums.h"
#include "aerie/kernels/types.h"

namespace aerie::kernels {

constexpr int kConvRows = 96;  // frames per part of the statistics and of the sums

// Which frames count in BatchNorm's statistics: those of every item below *frames (a device scalar:
// what the batch is padded to), or below its own length when `lengths` is given.
struct StatisticsFrames {
  const int32_t* frames = nullptr;
  const int32_t* lengths = nullptr;
};
AERIE_HD int statistics_limit(const StatisticsFrames& s, int item, int padded_frames) {
  const int limit = s.lengths != nullptr ? s.lengths[item] : *s.frames;
  return limit < padded_frames ? limit : padded_frames;
}

// Its layout has `left` rows behind an item's valid ones, or as many as count.
struct GatedConv : Activations {
  int kernel = 9, left = 4;
  const void* x = nullptr;           // (rows,2C)
  const float* gate_bias = nullptr;  // (2C); null: none
  const int32_t* lengths = nullptr;  // (B)
  const float* weight = nullptr;     // (C,K)
  const float* bias = nullptr;       // null: none
  void* out = nullptr;
  // Per part: mean and sum of squared deviations, (parts,2,C) floats with parts =
  // conv_parts(batch, frames); null: not wanted.
  float* statistics = nullptr;
  StatisticsFrames counted;
};

struct GatedConvBackward {
  GatedConv forward;  // with its result
  // Of the BatchNorm behind it; norm_partial as batch_norm_reduce leaves it.
  const float* mean = nullptr;
  const float* rstd = nullptr;
  const float* norm_weight = nullptr;
  const float* norm_bias = nullptr;
  const float* norm_partial = nullptr;
  const void* grad_out = nullptr;   // of silu(batch_norm(out))
  void* grad_x = nullptr;           // (rows,2C)
  float* grad_weight = nullptr;     // (C,K)
  float* grad_bias = nullptr;       // null: not wanted
  float* grad_gate_bias = nullptr;  // (2C); null: not wanted
  bool accumulate = false;
  float* partial = nullptr;         // scratch: gated_conv_scratch(...) floats
  PartialSums* deferred = nullptr;  // null: the second stage follows at once
};

constexpr int conv_parts(int batch, int frames) {
  return batch * ((frames + kConvRows - 1) / kConvRows);
}
// Parts of BatchNorm's sums for the gradient, and floats that are enough for them.
constexpr int kBatchNormParts = 32;
constexpr int batch_norm_parts(int rows) {
  const int blocks = (rows + 31) / 32;
  return blocks < kBatchNormParts ? blocks : kBatchNormParts;
}
constexpr size_t batch_norm_scratch(int channels) {
  return static_cast<size_t>(kBatchNormParts) * 2 * static_cast<size_t>(channels);
}
constexpr size_t gated_conv_scratch(int batch, int frames, int channels, int kernel) {
  return static_cast<size_t>(conv_parts(batch, frames)) * static_cast<size_t>(channels) *
         static_cast<size_t>(kernel + 3);
}

AERIE_DECLARE_KERNEL(gated_conv, GatedConv)
AERIE_DECLARE_KERNEL(gated_conv_backward, GatedConvBackward)

}  // namespace aerie::kernels
