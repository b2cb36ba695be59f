// The convolutions of dw_striding subsampling, (B,time,mel,C) throughout, fused so that the largest
// intermediate never touches memory:
//   subsample_first   features (B,T,F) -> conv 3x3/2 + ReLU -> depthwise 3x3/2 -> (B,T/4,F/4,C);
//                     backward computes the middle again
//   subsample_next    x + bias -> ReLU -> depthwise 3x3/2, for what follows a pointwise GEMM
//   relu              x + bias -> ReLU, behind the last pointwise GEMM
// Convolutions pad by one. Every stage is masked as the model does: what lies at or beyond an
// item's length counts as zero, lengths halve (rounding up) with every stride. C: a multiple of 8.
#pragma once

#include "aerie/kernels/types.h"

namespace aerie::kernels {

AERIE_HD int strided(int length) {
  return (length + 1) / 2;
}

// (B,T,F,C), as arguments begin with them.
struct FrontActivations {
  Dtype dtype = Dtype::kF32;
  int batch = 0, frames = 0, bins = 0, channels = 0;
};

struct SubsampleFirst : FrontActivations {
  const float* x = nullptr;          // (B,T,F)
  const int32_t* lengths = nullptr;  // (B), frames of x
  const float* weight0 = nullptr;    // (C,3,3), time then mel
  const float* bias0 = nullptr;      // (C)
  const float* weight1 = nullptr;    // (C,3,3), depthwise
  const float* bias1 = nullptr;      // (C)
  void* out = nullptr;               // (B,strided^2(T),strided^2(F),C)
};

struct SubsampleFirstBackward {
  SubsampleFirst forward;  // out is not used
  const void* grad_out = nullptr;
  float* grad_weight0 = nullptr;
  float* grad_bias0 = nullptr;
  float* grad_weight1 = nullptr;
  float* grad_bias1 = nullptr;
  bool accumulate = false;
  float* partial = nullptr;  // scratch: subsample_scratch(channels) floats
};

struct SubsampleNext : FrontActivations {
  const void* x = nullptr;           // (B,T,F,C)
  const float* bias0 = nullptr;      // (C), added to x
  const int32_t* lengths = nullptr;  // (B), frames of x
  const float* weight1 = nullptr;    // (C,3,3), depthwise
  const float* bias1 = nullptr;      // (C)
  void* out = nullptr;               // (B,strided(T),strided(F),C)
};

struct SubsampleNextBackward {
  SubsampleNext forward;  // out is not used
  const void* grad_out = nullptr;
  void* grad_x = nullptr;
  float* grad_bias0 = nullptr;
  float* grad_weight1 = nullptr;
  float* grad_bias1 = nullptr;
  bool accumulate = false;
  float* partial = nullptr;  // scratch: subsample_scratch(channels) floats
};

struct Relu : FrontActivations {
  const void* x = nullptr;           // (B,T,F,C)
  const float* bias = nullptr;       // (C); null: none
  const int32_t* lengths = nullptr;  // (B)
  void* out = nullptr;               // forward only; may be x, backward then takes it for x
  const void* grad_out = nullptr;    // given: backward
  void* grad_x = nullptr;            // may be grad_out
  float* grad_bias = nullptr;
  bool accumulate = false;
  float* partial = nullptr;  // scratch: subsample_scratch(channels) floats
};

constexpr int kSubsampleParts = 528;
constexpr size_t subsample_scratch(int channels) {
  return static_cast<size_t>(kSubsampleParts) * 20 * static_cast<size_t>(channels);
}

AERIE_DECLARE_KERNEL(subsample_first, SubsampleFirst)
AERIE_DECLARE_KERNEL(subsample_first_backward, SubsampleFirstBackward)
AERIE_DECLARE_KERNEL(subsample_next, SubsampleNext)
AERIE_DECLARE_KERNEL(subsample_next_backward, SubsampleNextBackward)
AERIE_DECLARE_KERNEL(relu, Relu)

}  // namespace aerie::kernels
