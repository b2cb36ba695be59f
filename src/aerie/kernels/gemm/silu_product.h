// Backward of a feed-forward module's SiLU together with the product before it (activation.h):
// grad_x = (grad W) * d out/d x and the bias's gradient. What is between never goes to memory.
//
// Callers make two calls where this is not supported. CUDA: compute capability 9.0 (code for 90a),
// bf16 and fp16. Results equal those of the two calls with the same sums over k.
#pragma once

#include <algorithm>
#include <cstdint>

#include "aerie/kernels/activation/activation.h"
#include "aerie/kernels/gemm/gemm.h"

namespace aerie::kernels {

// product.c, silu.grad_out and silu.grad_x are the same, silu.out is null. silu.partial:
// silu_product_scratch().
struct SiluProductBackward {
  Gemm product;
  SiluBackward silu;
};

// Rows that a tile of 128 outputs may have (even_product.h); groups of warps take them in turns. A
// tile leaves partial sums for the bias.
#define AERIE_SILU_ROWS(X) X(96) X(112) X(128)
#define AERIE_SILU_NUMBER(n) n,
constexpr int kSiluRows[] = {AERIE_SILU_ROWS(AERIE_SILU_NUMBER)};
#undef AERIE_SILU_NUMBER
constexpr int kSiluLeastRows = 96;
constexpr size_t silu_product_scratch(int rows, int columns) {
  const int parts = (rows + kSiluLeastRows - 1) / kSiluLeastRows;
  return static_cast<size_t>(parts > kActivationParts ? parts : kActivationParts) *
         static_cast<size_t>(columns);
}

// What this takes with such tiles, microseconds on an H200: a tile's product, or what the warps
// that made another one do with it, whichever takes longer; at the end that of the last.
inline double silu_product_cost(int rows, int outputs, int k, int tile_rows, int processors) {
  const double n = tile_rows, steps = (k + 63) / 64;
  const int tiles = (outputs + 127) / 128 * ((rows + tile_rows - 1) / tile_rows);
  const int waves = (tiles + processors - 1) / processors;
  return 2.4 + 0.045 * n + waves * std::max(0.7 + 0.029 * n, steps * (0.12 + 0.0026 * n));
}

// The tile's rows to take; 0: two calls are expected to be as fast. H200, products of 512 inputs
// with 2,048 outputs: 11,264 rows 78.5 to 56.9 us, 23,040 rows 153 to 113. Fewer rows stay in the
// cache between two calls, and 2,816 with 4,096 outputs gain 3 %.
inline int silu_product_rows(int rows, int outputs, int k, int processors) {
  constexpr int kFew = 4096, kLongest = 2048;
  if (rows <= kFew || k > kLongest) return 0;
  int best = 0;
  double least = 0.0;
  for (const int n : kSiluRows) {
    const double cost = silu_product_cost(rows, outputs, k, n, processors);
    if (int64_t{(outputs + 127) / 128} * ((rows + n - 1) / n) <= 2 * processors) continue;
    if (best > 0 && cost >= least) continue;
    best = n;
    least = cost;
  }
  return best;
}

AERIE_DECLARE_KERNEL(silu_product_backward, SiluProductBackward)

}  // namespace aerie::kernels
