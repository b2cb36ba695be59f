// dgrad with a fused dSiLU epilogue: backward of a feed-forward module's SiLU together with the
// GEMM before it (activation.h), grad_x = (grad W) * d out/d x and the bias's gradient. The GEMM's
// output never goes to memory. (Its entry in the kernel table keeps the name that benchmarks
// print.)
//
// Callers make two calls where this is not supported. CUDA: compute capability 9.0 (code for 90a),
// bf16 and fp16. Results equal those of the two calls with the same sums over K.
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

// M of a tile of 128 of N (persistent_gemm.h), ping-pong schedule. A tile leaves partials for the
// bias.
#define AERIE_DSILU_TILE_M(X) X(96) X(112) X(128)
#define AERIE_DSILU_NUMBER(n) n,
constexpr int kDsiluTileM[] = {AERIE_DSILU_TILE_M(AERIE_DSILU_NUMBER)};
#undef AERIE_DSILU_NUMBER
constexpr int kMinDsiluTileM = 96;
constexpr size_t silu_product_scratch(int rows, int columns) {
  const int parts = (rows + kMinDsiluTileM - 1) / kMinDsiluTileM;
  return static_cast<size_t>(parts > kActivationParts ? parts : kActivationParts) *
         static_cast<size_t>(columns);
}

// What this takes with such tiles, microseconds on an H200: a tile's main loop or another's
// epilogue, whichever takes longer; at the end the last epilogue.
inline double dgrad_dsilu_cost(int rows, int outputs, int k, int tile_rows, int processors) {
  const double n = tile_rows, steps = (k + 63) / 64;
  const int tiles = (outputs + 127) / 128 * ((rows + tile_rows - 1) / tile_rows);
  const int waves = (tiles + processors - 1) / processors;
  return 2.4 + 0.045 * n + waves * std::max(0.7 + 0.029 * n, steps * (0.12 + 0.0026 * n));
}

// The tile's M to take; 0: two calls are expected to be as fast. H200, K 512, N 2,048: M 11,264
// 78.5 to 56.9 us, M 23,040 153 to 113. Smaller M stays in L2 between two calls; 2,816 with N 4,096
// gains 3 %.
inline int dgrad_dsilu_tile(int rows, int outputs, int k, int processors) {
  constexpr int kFew = 4096, kLongest = 2048;
  if (rows <= kFew || k > kLongest) return 0;
  int best = 0;
  double least = 0.0;
  for (const int n : kDsiluTileM) {
    const double cost = dgrad_dsilu_cost(rows, outputs, k, n, processors);
    if (int64_t{(outputs + 127) / 128} * ((rows + n - 1) / n) <= 2 * processors) continue;
    if (best > 0 && cost >= least) continue;
    best = n;
    least = cost;
  }
  return best;
}

AERIE_DECLARE_KERNEL(silu_product_backward, SiluProductBackward)

}  // namespace aerie::kernels
