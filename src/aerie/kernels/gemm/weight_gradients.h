// Gradients of several weights in one launch: out_i (+)= grad_i^T in_i, all over the same rows,
// sums and results in float32. Alone, each of them would occupy a fraction of the device.
//
// CUDA: compute capability 9.0, bf16 and fp16, outputs and inputs multiples of 128; anything else
// is kUnsupported, and the caller makes a call of gemm for each. Its instructions (TMA, wgmma) are
// not emulated.
#pragma once

#include "aerie/kernels/types.h"

namespace aerie::kernels {

struct WeightGradient {
  int outputs = 0, inputs = 0;
  const void* grad = nullptr;  // (rows,outputs), rows grad_stride elements apart
  int grad_stride = 0;
  const void* in = nullptr;  // (rows,inputs)
  float* out = nullptr;      // (outputs,inputs)
};

struct WeightGradients {
  static constexpr int kMost = 8;
  Dtype dtype = Dtype::kFloat;
  int rows = 0;
  bool accumulate = false;
  int count = 0;
  WeightGradient products[kMost];
};

AERIE_DECLARE_KERNEL(weight_gradients, WeightGradients)

}  // namespace aerie::kernels
