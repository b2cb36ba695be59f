// Small helpers around GEMMs, and the way from one layout of rows to another.
#pragma once

#include "aerie/kernels/sums/partial_sums.h"
#include "aerie/kernels/types.h"

namespace aerie::kernels {

// out[c] (+)= sum over rows of x[row][c]: the gradient of a bias. columns: a multiple of 8.
struct BiasGradient {
  Dtype dtype = Dtype::kF32;
  int rows = 0, columns = 0;
  const int32_t* num_rows = nullptr;  // device scalar: rows from here on are left out; null: none
  const void* x = nullptr;
  int stride = 0;  // from row to row; a multiple of 8
  float* out = nullptr;
  bool accumulate = false;
  float* partial = nullptr;         // scratch: bias_gradient_scratch(columns) floats
  PartialSums* deferred = nullptr;  // null: the second stage follows at once
};
constexpr int kBiasGradientParts = 64;
constexpr size_t bias_gradient_scratch(int columns) {
  return static_cast<size_t>(kBiasGradientParts) * static_cast<size_t>(columns);
}

// out[r][b][a] (+)= x[r][a][b], with a change of type: a weight whose columns are numbered
// (channel, mel) as one numbered (mel, channel), and its gradient back.
struct SwapInner {
  Dtype from = Dtype::kF32;
  Dtype to = Dtype::kF32;
  int rows = 0, a = 0, b = 0;
  const void* x = nullptr;
  void* out = nullptr;
  bool accumulate = false;
};

// The same frames in another layout; rows that the first has not are zero.
struct RepackRows {
  Dtype dtype = Dtype::kF32;
  int batch = 0, frames = 0, channels = 0;
  RowLayout from, to;
  const void* x = nullptr;
  void* out = nullptr;
};

AERIE_DECLARE_KERNEL(bias_gradient, BiasGradient)
AERIE_DECLARE_KERNEL(swap_inner, SwapInner)
AERIE_DECLARE_KERNEL(repack_rows, RepackRows)

}  // namespace aerie::kernels
