// BatchNorm over the frames of several batches, as ranks of a run have them: what a batch brings,
// as plain sums that are added up over all of them (ExchangeSums) and used instead of its own.
//   batch_norm_sums                 the convolution's statistics (gated_conv.h) as sums
//   batch_norm_from_sums            from these to mean and variance, and the running statistics
//   batch_norm_gradient_sums        what batch_norm_reduce leaves, added up
//   batch_norm_gradient_from_sums   and back, as gated_conv_backward reads it
// In float64, so that squares do not cancel. One value per channel and thread: these run only where
// batches exchange sums, and the exchange takes longer.
#pragma once

#include <functional>

#include "aerie/kernels/conv/gated_conv.h"
#include "aerie/kernels/types.h"

namespace aerie::kernels {

// The sums of one layer in one direction: `count` values in device memory.
struct ExchangedSums {
  int layer = 0;
  bool backward = false;
  double* values = nullptr;
  int64_t count = 0;
};
// Replaces the sums by those over all ranks, in order with `stream`, which may be capturing: it
// only launches. Every rank calls it for the same layers in the same order. Returns 0 or an error.
using ExchangeSums = std::function<int(const ExchangedSums& sums, void* stream)>;

// Sums of values (C), of their squares (C) and the number of frames are exchanged; the batch's own
// number of frames behind them is not.
constexpr int64_t batch_norm_exchanged(int channels) {
  return 2 * int64_t{channels} + 1;
}
constexpr size_t batch_norm_sums_size(int channels) {
  return static_cast<size_t>(batch_norm_exchanged(channels)) + 1;
}

struct BatchNormSums {
  int batch = 0, frames = 0, channels = 0;
  const float* statistics = nullptr;  // as GatedConv has it
  StatisticsFrames counted;
  double* sums = nullptr;  // batch_norm_sums_size(channels)
};

struct BatchNormFromSums {
  int channels = 0;
  const double* sums = nullptr;
  float momentum = 0.1f;
  float* running_mean = nullptr;
  float* running_var = nullptr;
  int64_t* batches = nullptr;  // counts training batches
  float* mean = nullptr;       // (C)
  float* variance = nullptr;   // (C), of all frames, not corrected for their number
  float* share = nullptr;      // scalar: the batch's own part of all frames
};

struct BatchNormGradientSums {
  int rows = 0, channels = 0;
  const float* partial = nullptr;  // as batch_norm_reduce leaves it
  double* sums = nullptr;          // (2,C); all of them are exchanged
};

// gated_conv_backward divides by the batch's own number of frames: `share` makes up for that.
struct BatchNormGradientFromSums {
  int rows = 0, channels = 0;
  const double* sums = nullptr;
  const float* share = nullptr;  // as batch_norm_from_sums left it
  float* partial = nullptr;      // batch_norm_scratch(channels) floats
};

AERIE_DECLARE_KERNEL(batch_norm_sums, BatchNormSums)
AERIE_DECLARE_KERNEL(batch_norm_from_sums, BatchNormFromSums)
AERIE_DECLARE_KERNEL(batch_norm_gradient_sums, BatchNormGradientSums)
AERIE_DECLARE_KERNEL(batch_norm_gradient_from_sums, BatchNormGradientFromSums)

}  // namespace aerie::kernels
