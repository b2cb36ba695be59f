// Depthwise convolution over time on (B,T,C), stride 1, zero padding:
//   out[t][c] = bias[c] + sum over k of weight[c][k] * x[t - left + k][c]
// Forward can leave the statistics that BatchNorm needs of its output (batch_norm.h); backward
// gives the gradients of input, weight and bias in one pass. Kernels of 5 and 9 taps; C a multiple
// of 8.
#pragma once

#include "aerie/kernels/sums/partial_sums.h"
#include "aerie/kernels/types.h"

namespace aerie::kernels {

constexpr int kDepthwiseStrip = 16;   // frames per part of the statistics
constexpr int kDepthwiseParts = 264;  // of the weight gradients

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

struct DepthwiseForward {
  Dtype dtype = Dtype::kFloat;
  int batch = 0, frames = 0, channels = 0;
  int kernel = 9, left = 4;
  const void* x = nullptr;
  const float* weight = nullptr;  // (C,K)
  const float* bias = nullptr;    // null: none
  void* out = nullptr;
  // Per strip of kDepthwiseStrip frames: mean and sum of squared deviations, (parts,2,C) floats
  // with parts = depthwise_strips(batch, frames); null: not wanted.
  float* statistics = nullptr;
  StatisticsFrames counted;
};

struct DepthwiseBackward {
  Dtype dtype = Dtype::kFloat;
  int batch = 0, frames = 0, channels = 0;
  int kernel = 9, left = 4;
  const void* x = nullptr;
  const float* weight = nullptr;
  const void* grad_out = nullptr;
  void* grad_x = nullptr;
  float* grad_weight = nullptr;  // (C,K)
  float* grad_bias = nullptr;    // null: not wanted
  bool accumulate = false;
  float* partial = nullptr;      // scratch: depthwise_scratch(channels, kernel) floats
  PartialSums* later = nullptr;  // null: the second stage follows at once
};

constexpr int depthwise_strips(int batch, int frames) {
  return batch * ((frames + kDepthwiseStrip - 1) / kDepthwiseStrip);
}
constexpr size_t depthwise_scratch(int channels, int kernel) {
  return static_cast<size_t>(kDepthwiseParts) * static_cast<size_t>(channels) *
         static_cast<size_t>(kernel + 1);
}

AERIE_DECLARE_KERNEL(depthwise_forward, DepthwiseForward)
AERIE_DECLARE_KERNEL(depthwise_backward, DepthwiseBackward)

}  // namespace aerie::kernels
