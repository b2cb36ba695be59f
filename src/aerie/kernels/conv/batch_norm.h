// BatchNorm over (B,T,C) in training, followed by SiLU, as in the convolution module.
//   batch_norm_forward    partial statistics (gated_conv.h) to mean and 1/std, running statistics;
//                         out = silu((x - mean) * rstd * weight + bias)
//   batch_norm_reduce     gradients of weight and bias, and the sums for that of x
// Which frames count is decided on the device (StatisticsFrames), so that padding to a larger T
// changes nothing. Gradients arriving at frames that do not count are not looked at.
#pragma once

#include "aerie/kernels/conv/gated_conv.h"
#include "aerie/kernels/types.h"

namespace aerie::kernels {

struct BatchNormForward : Activations {
  const void* x = nullptr;
  bool training = true;               // false: mean and rstd from the running statistics
  const float* statistics = nullptr;  // as GatedConv has it
  StatisticsFrames counted;
  float momentum = 0.1f, eps = 1e-5f;
  float* running_mean = nullptr;
  float* running_var = nullptr;
  int64_t* batches = nullptr;  // counts training batches
  const float* weight = nullptr;
  const float* bias = nullptr;
  float* mean = nullptr;  // (C), for backward
  float* rstd = nullptr;  // (C)
  void* out = nullptr;
};

// The sums over frames that the gradient of x needs (gated_conv_backward applies them), which are
// the gradients of weight and bias as well.
struct BatchNormReduce : Activations {
  const void* x = nullptr;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;
  StatisticsFrames counted;
  const void* grad_out = nullptr;
  void* out = nullptr;  // batch_norm_forward's result once more; null: not wanted
  // (batch_norm_parts(rows),2,C): of gradients before SiLU, and of these times normalised x, to be
  // added over the parts. batch_norm_scratch(channels) floats are enough.
  float* partial = nullptr;
  float* grad_weight = nullptr;
  float* grad_bias = nullptr;
  bool accumulate = false;
  PartialSums* deferred = nullptr;  // null: grad_weight and grad_bias follow at once
};

AERIE_DECLARE_KERNEL(batch_norm_forward, BatchNormForward)
AERIE_DECLARE_KERNEL(batch_norm_reduce, BatchNormReduce)

}  // namespace aerie::kernels
