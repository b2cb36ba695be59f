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
#include "aerie/kernels/gemm/persistent_gemm.h"
#include "aerie/kernels/gemm_model.h"

namespace aerie::kernels {

// gemm.c, silu.grad_out and silu.grad_x are the same, silu.out is null. silu.partial:
// dgrad_dsilu_scratch().
struct DgradDsilu {
  Gemm gemm;
  SiluBackward silu;
};

// M of a tile of 128 of N (persistent_gemm.h), ping-pong schedule. A tile leaves partials for the
// bias.
#define AERIE_DSILU_TILE_M(X) X(96) X(112) X(128)
#define AERIE_DSILU_NUMBER(n) n,
constexpr int kDsiluTileM[] = {AERIE_DSILU_TILE_M(AERIE_DSILU_NUMBER)};
#undef AERIE_DSILU_NUMBER
constexpr int kMinDsiluTileM = 96;
constexpr size_t dgrad_dsilu_scratch(int m, int n) {
  const int parts = (m + kMinDsiluTileM - 1) / kMinDsiluTileM;
  return static_cast<size_t>(parts > kActivationParts ? parts : kActivationParts) *
         static_cast<size_t>(n);
}
// What this takes with such tiles, microseconds.
inline double dgrad_dsilu_cost(int m, int n, int k, int tile_m, const GemmModel& device) {
  const double k_tiles = (k + kGemmTileK - 1) / kGemmTileK;
  const int waves = static_cast<int>((gemm_tiles(m, n, tile_m) + device.sms - 1) / device.sms);
  return device.dsilu_start + device.dsilu_start_m * tile_m +
         waves * std::max(device.dsilu_epilogue + device.dsilu_epilogue_m * tile_m,
                          k_tiles * (device.dsilu_k_tile + device.dsilu_k_tile_m * tile_m));
}
// The tile's M to take; 0: two calls are expected to be as fast.
inline int dgrad_dsilu_tile(int m, int n, int k, const GemmModel& device) {
  if (m <= device.dsilu_min_rows || k > device.dsilu_max_k) return 0;
  int best = 0;
  double least = 0.0;
  for (const int tile_m : kDsiluTileM) {
    const double cost = dgrad_dsilu_cost(m, n, k, tile_m, device);
    if (gemm_tiles(m, n, tile_m) <= 2 * device.sms) continue;
    if (best > 0 && cost >= least) continue;
    best = tile_m;
    least = cost;
  }
  return best;
}

AERIE_DECLARE_KERNEL(silu_product_backward, DgradDsilu)

}  // namespace aerie::kernels
