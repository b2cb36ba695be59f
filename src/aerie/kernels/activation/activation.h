// Pointwise parts between matrix products, on (B,T,C):
//   SiLU   out = dropout(silu(x + bias))
//   GLU    out = a * sigmoid(b) with (a, b) = halves of x + bias; zero at and beyond a row's length
// Backward reads the same x again; sums over rows for the bias go through partial results.
#pragma once

#include "aerie/kernels/sums/partial_sums.h"
#include "aerie/kernels/types.h"

namespace aerie::kernels {

struct SiluForward {
  Dtype dtype = Dtype::kFloat;
  int batch = 0, frames = 0, channels = 0;
  const void* x = nullptr;
  const float* bias = nullptr;  // null: none
  Dropout dropout;
  uint8_t* keep = nullptr;  // dropout's decisions, a bit per value; null: not wanted
  void* out = nullptr;
};

struct SiluBackward {
  Dtype dtype = Dtype::kFloat;
  int batch = 0, frames = 0, channels = 0;
  const void* x = nullptr;
  const float* bias = nullptr;
  const void* grad_out = nullptr;
  Dropout dropout;
  const uint8_t* keep = nullptr;  // null: drawn again
  void* grad_x = nullptr;         // may be grad_out
  float* grad_bias = nullptr;     // null: not wanted
  bool accumulate = false;
  float* partial = nullptr;      // scratch: activation_scratch(channels) floats
  PartialSums* later = nullptr;  // null: the second stage follows at once
};

struct GluForward {
  Dtype dtype = Dtype::kFloat;
  int batch = 0, frames = 0, channels = 0;  // of the output
  const void* x = nullptr;                  // (B,T,2C)
  const float* bias = nullptr;              // (2C); null: none
  const int32_t* lengths = nullptr;         // (B)
  void* out = nullptr;
};

struct GluBackward {
  Dtype dtype = Dtype::kFloat;
  int batch = 0, frames = 0, channels = 0;
  const void* x = nullptr;
  const float* bias = nullptr;
  const int32_t* lengths = nullptr;
  const void* grad_out = nullptr;
  void* grad_x = nullptr;      // (B,T,2C)
  float* grad_bias = nullptr;  // (2C); null: not wanted
  bool accumulate = false;
  float* partial = nullptr;      // scratch: activation_scratch(2 * channels) floats
  PartialSums* later = nullptr;  // null: the second stage follows at once
};

constexpr int kActivationParts = 64;
constexpr size_t activation_scratch(int columns) {
  return size_t{kActivationParts} * static_cast<size_t>(columns);
}

AERIE_DECLARE_KERNEL(silu_forward, SiluForward)
AERIE_DECLARE_KERNEL(silu_backward, SiluBackward)
AERIE_DECLARE_KERNEL(glu_forward, GluForward)
AERIE_DECLARE_KERNEL(glu_backward, GluBackward)

}  // namespace aerie::kernels
