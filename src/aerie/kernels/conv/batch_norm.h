// BatchNorm over (B,T,C) in training, followed by SiLU, as in the convolution module.
//   batch_norm_finish     partial statistics (depthwise.h) to mean and 1/std, running statistics
//   batch_norm_forward    out = silu((x - mean) * rstd * weight + bias)
//   batch_norm_backward   gradients of x, weight and bias
// Which frames count is decided on the device (StatisticsFrames), so that padding to a larger T
// changes nothing. Gradients arriving at frames that do not count must be zero; theirs are zero.
#pragma once

#include "aerie/kernels/conv/depthwise.h"
#include "aerie/kernels/types.h"

namespace aerie::kernels {

struct BatchNormFinish {
  int batch = 0, frames = 0, channels = 0;
  bool training = true;               // false: mean and rstd from the running statistics
  const float* statistics = nullptr;  // as DepthwiseForward writes it
  StatisticsFrames counted;
  float momentum = 0.1f, eps = 1e-5f;
  float* running_mean = nullptr;
  float* running_var = nullptr;
  int64_t* batches = nullptr;  // counts training batches
  float* mean = nullptr;       // (C)
  float* rstd = nullptr;       // (C)
};

struct BatchNormForward {
  Dtype dtype = Dtype::kFloat;
  int batch = 0, frames = 0, channels = 0;
  const void* x = nullptr;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;
  void* out = nullptr;
};

struct BatchNormBackward {
  Dtype dtype = Dtype::kFloat;
  int batch = 0, frames = 0, channels = 0;
  const void* x = nullptr;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;
  StatisticsFrames counted;
  const void* grad_out = nullptr;
  void* grad_x = nullptr;  // may be grad_out
  float* grad_weight = nullptr;
  float* grad_bias = nullptr;
  bool accumulate = false;
  float* partial = nullptr;  // scratch: batch_norm_scratch(channels) floats
};

constexpr int kBatchNormParts = 128;
constexpr size_t batch_norm_scratch(int channels) {
  return static_cast<size_t>(kBatchNormParts + 1) * 2 * static_cast<size_t>(channels);
}

AERIE_DECLARE_KERNEL(batch_norm_finish, BatchNormFinish)
AERIE_DECLARE_KERNEL(batch_norm_forward, BatchNormForward)
AERIE_DECLARE_KERNEL(batch_norm_backward, BatchNormBackward)

}  // namespace aerie::kernels
