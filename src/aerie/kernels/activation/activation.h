// Between the two GEMMs of a feed-forward module, on (B,T,C): out = dropout(silu(x + bias)).
// Backward reads the same x again; sums over rows for the bias go through partial results.
#pragma once

#include "aerie/kernels/sums/partial_sums.h"
#include "aerie/kernels/types.h"

namespace aerie::kernels {

struct SiluForward : Activations {
  const void* x = nullptr;
  const float* bias = nullptr;  // null: none
  Dropout dropout;
  uint8_t* keep = nullptr;  // dropout's decisions, a bit per value; null: not wanted
  void* out = nullptr;
};

struct SiluBackward : Activations {
  const void* x = nullptr;
  const float* bias = nullptr;
  const void* grad_out = nullptr;
  Dropout dropout;
  const uint8_t* keep = nullptr;  // needed with dropout
  void* grad_x = nullptr;         // may be grad_out
  void* out = nullptr;            // silu_forward's result once more; null: not wanted
  float* grad_bias = nullptr;     // null: not wanted
  bool accumulate = false;
  float* partial = nullptr;         // scratch: activation_scratch(channels) floats
  PartialSums* deferred = nullptr;  // null: the second stage follows at once
};

constexpr int kActivationParts = 64;
constexpr size_t activation_scratch(int columns) {
  return size_t{kActivationParts} * static_cast<size_t>(columns);
}

AERIE_DECLARE_KERNEL(silu_forward, SiluForward)
AERIE_DECLARE_KERNEL(silu_backward, SiluBackward)

}  // namespace aerie::kernels
