// Attention of heads whose width is a multiple of 4 below 64 or 128: the kernels of these widths,
// with zeros in the columns that a head has not. Included by attention_padded_*.cu alone.
#pragma once

#include "aerie/kernels/attention/attention_launch.h"

namespace aerie::kernels::AERIE_BACKEND {

template <typename T>
int padded_forward(const Attention& a, void* stream) {
  return a.dim < 64 ? forward_mma<T, 64, true>(a, stream) : forward_mma<T, 128, true>(a, stream);
}
template <typename T>
int padded_backward(const AttentionBackward& b, void* stream) {
  return b.forward.dim < 64 ? backward_mma<T, 64, true>(b, stream)
                            : backward_mma<T, 128, true>(b, stream);
}
template <typename T>
int padded_reduce_dr(const AttentionBackward& b, void* stream) {
  return reduce_dr<T, true>(b, stream);
}

}  // namespace aerie::kernels::AERIE_BACKEND
