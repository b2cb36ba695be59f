// LayerNorm over channels with what surrounds it in a residual stream:
//   sum = residual + scale * dropout(y + y_bias)
//   normalized = (sum - mean) * rstd
//   out = normalized * weight + bias
// Two norms in a row, the last of a layer and the first of the next, are one call: `next` norms
// what the first puts out.
//
// The stream is float32; y, normalized and out are of the compute dtype. Backward reads what was
// normalized, not the stream: that may be updated in place. Channels: a multiple of 8, at most
// 2048.
#pragma once

#include "aerie/kernels/sums/partial_sums.h"
#include "aerie/kernels/types.h"

namespace aerie::kernels {

// The parameters and results of a norm behind the norm.
struct NextNorm {
  const float* weight = nullptr;  // null: there is none
  const float* bias = nullptr;
  void* out = nullptr;    // compute dtype
  float* mean = nullptr;  // (rows)
  float* rstd = nullptr;  // (rows)
};

struct LayerNormForward : Activations {
  const float* residual = nullptr;  // null: zero
  const void* y = nullptr;          // null: zero
  const float* y_bias = nullptr;    // null: none
  Dropout dropout;
  float scale = 1.0f;
  const float* weight = nullptr;
  const float* bias = nullptr;
  float eps = 1e-5f;

  float* sum = nullptr;        // may be the residual; null: not wanted
  uint8_t* keep = nullptr;     // dropout's decisions, a bit per value; null: not wanted
  void* normalized = nullptr;  // compute dtype; null: not wanted
  void* out = nullptr;         // compute dtype; null: not wanted
  float* out_float = nullptr;  // the same in float32; may be the residual; null: not wanted
  float* rstd = nullptr;       // (rows)
  NextNorm next;
};

struct LayerNormBackward : Activations {
  const void* normalized = nullptr;  // compute dtype
  const float* rstd = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;            // needed for out, and where a norm follows
  const void* grad_out = nullptr;         // compute dtype; null: zero
  const float* grad_out_float = nullptr;  // added to it, with `next` alone; null: zero
  const float* grad_sum =
      nullptr;  // what arrives at the sum from elsewhere; null: zero. Not with `next`
  Dropout dropout;
  const uint8_t* keep = nullptr;  // 16-byte aligned; needed with dropout
  float scale = 1.0f;

  void* out = nullptr;             // the norm's output once more; null: not wanted
  float* grad_residual = nullptr;  // may be grad_sum or grad_out_float
  void* grad_y = nullptr;          // compute dtype; null: not wanted
  float* grad_weight = nullptr;
  float* grad_bias = nullptr;
  float* grad_y_bias = nullptr;  // null: not wanted
  // A norm behind this one: its results, and the gradient of its output. What it sends back is
  // added to the gradient of this one's output. next.out: written once more; null: not wanted.
  NextNorm next;
  const void* grad_next_out = nullptr;  // compute dtype
  float* grad_next_weight = nullptr;
  float* grad_next_bias = nullptr;
  bool accumulate = false;          // adds to the sums over rows
  float* partial = nullptr;         // scratch: layer_norm_scratch(channels) floats
  PartialSums* deferred = nullptr;  // null: the second stage follows at once
};

constexpr int kLayerNormParts = 132;
constexpr size_t layer_norm_scratch(int channels) {
  return size_t{5} * kLayerNormParts * static_cast<size_t>(channels);
}

AERIE_DECLARE_KERNEL(layer_norm_forward, LayerNormForward)
AERIE_DECLARE_KERNEL(layer_norm_backward, LayerNormBackward)

}  // namespace aerie::kernels
