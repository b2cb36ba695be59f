// Dropout decisions from Philox words, eight values at a time.
#pragma once

#include "aerie/kernels/cuda/launch.h"

namespace aerie::kernels::AERIE_BACKEND {

// Half 0 or 1 of a word against a threshold that has moved to the upper half of `limit`: the lower
// bits of the word decide nothing. A threshold of 2^16 does not fit; there the scale is zero as
// well.
__device__ inline uint32_t dropout_limit(const Dropout& dropout) {
  return (dropout.threshold > 0xffffu ? 0xffffu : dropout.threshold) << 16;
}
__device__ inline bool half_above(uint32_t word, int half, uint32_t limit) {
  return (half == 0 ? word << 16 : word) >= limit;
}

// Dropout factors of the eight values from `index` on (a multiple of 8) of stream (site, row), and
// which of them are kept: one Philox block. Without dropout, everything is.
__device__ inline uint32_t dropout8(const Dropout& dropout, uint64_t row, uint64_t index,
                                    float* out) {
  if (dropout.threshold == 0) {
    AERIE_UNROLL
    for (int i = 0; i < 8; ++i) out[i] = 1.0f;
    return 0xffu;
  }
  const RandomState& state = *dropout.state;
  const PhiloxBlock block = philox_block(state.dropout_key, dropout.site, item_position(state, row),
                                         uint32_t(index >> 3));
  const uint32_t limit = dropout_limit(dropout);
  uint32_t bits = 0;
  AERIE_UNROLL
  for (int i = 0; i < 8; ++i) {
    const bool kept = half_above(block.v[i / 2], i % 2, limit);
    out[i] = kept ? dropout.scale : 0.0f;
    bits |= kept ? 1u << i : 0u;
  }
  return dropout.scale != 0.0f ? bits : 0u;
}

}  // namespace aerie::kernels::AERIE_BACKEND
