// A persistent GEMM of our own, C = A W^T or A W (+ bias), with tiles chosen against wave
// quantisation, and when to take it instead of cuBLASLt. gemm() asks; nobody else need.
//
// CUDA: compute capability 9.0 (code for 90a), bf16 and fp16, C of the same type. Each element's
// sum is over K in order, whatever the tile.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "aerie/kernels/gemm/gemm.h"

namespace aerie::kernels {

// M of a tile of 128 of N.
#define AERIE_GEMM_TILE_M(X) \
  X(64) X(72) X(80) X(88) X(96) X(104) X(112) X(120) X(128) X(136) X(144) X(160) X(176) X(192)

#define AERIE_GEMM_NUMBER(n) n,
constexpr int kGemmTileM[] = {AERIE_GEMM_TILE_M(AERIE_GEMM_NUMBER)};
#undef AERIE_GEMM_NUMBER
// Above this, no ping-pong schedule: accumulators would spill.
constexpr int kMaxPingPongM = 144;
constexpr int kGemmTileN = 128, kGemmTileK = 64;
constexpr int kRasterTilesM = 16;  // rasterisation: tiles along M before other N

// What a GEMM takes with such tiles, microseconds on an H200: fitted to 1000 measurements (376
// to 23040 rows, models of width 512 and 1024). Its least lies 1 % above the least measured.
inline double persistent_gemm_cost(int rows, int outputs, int k, const GemmTile& tile,
                                   int processors) {
  const double n = tile.rows, steps = (k + kGemmTileK - 1) / kGemmTileK;
  const int across = (outputs + kGemmTileN - 1) / kGemmTileN;
  const int down = (rows + tile.rows - 1) / tile.rows;
  const double filled = static_cast<double>(across) * down / processors, waves = std::ceil(filled);
  // A GPC (16 or 18 SMs) reads what its blocks read once; all of them together get 5.8 MB per
  // microsecond.
  const double parts = processors / 16.5;
  const double in = std::max(1.0, std::min(down, kRasterTilesM) / parts);
  const double weights = std::min(16.5 * std::min(filled, 1.0) / in, static_cast<double>(across));
  const double read = (in * n + weights * kGemmTileN) * kGemmTileK * 2 * parts / 5.78e6;
  // A partial last wave leaves more bandwidth to those in it. Where there is only one wave, all
  // epilogues of large tiles come at the same time, at the end.
  const double in_turn = steps * (0.31 * filled + 0.69 * waves);
  const double at_end = waves > 1 ? 0.0 : 0.005 * std::max(0.0, n - 96);
  return tile.ping_pong
             ? 1.01 + 0.00327 * n + 0.266 * waves + in_turn * std::max(0.0887 + 0.00255 * n, read)
             : 1.81 - 0.00068 * n + 0.491 * waves + in_turn * std::max(0.00315 * n, read) + at_end;
}

// Ping-pong pays from this K on: with less, warpgroups wait for epilogue stores.
constexpr int kMinPingPongKTiles = 4;

// The cheapest tile. Ping-pong is for more than one tile per SM.
inline GemmTile persistent_gemm_tile(int rows, int outputs, int k, int processors) {
  GemmTile best = {kGemmTileM[0], false};
  for (const int n : kGemmTileM)
    for (int ping_pong = 0; ping_pong < 2; ++ping_pong) {
      const GemmTile tile = {n, ping_pong == 1};
      const int64_t tiles = int64_t{(outputs + kGemmTileN - 1) / kGemmTileN} * ((rows + n - 1) / n);
      if (tile.ping_pong &&
          (n > kMaxPingPongM || tiles <= processors || k <= kGemmTileK * (kMinPingPongKTiles - 1)))
        continue;
      if (persistent_gemm_cost(rows, outputs, k, tile, processors) <
          persistent_gemm_cost(rows, outputs, k, best, processors))
        best = tile;
    }
  return best;
}

// Whether that is expected to be faster than cuBLASLt's first suggestion. It was, by 4 to 16 % of
// all GEMMs of a layer (M of 2048 to 23040), but for few tiles, which leave SMs idle, and some of
// K-major weights (by_outputs): large K, for which cuBLASLt's tiles are larger, and large N with
// small M where those happen to make one or two full waves.
inline bool persistent_gemm_pays(int rows, int outputs, int k, bool by_outputs,
                                 const GemmTile& tile, int processors) {
  const int64_t across = (outputs + kGemmTileN - 1) / kGemmTileN;
  const auto up = [](int64_t n, int64_t to) { return (n + to - 1) / to * to; };
  const int64_t tiles = across * ((rows + tile.rows - 1) / tile.rows);
  if (tiles * 10 < up(tiles, processors) * (k > 512 ? 8 : 7)) return false;
  if (!by_outputs) return true;
  if (k >= 4096 || (k >= 4 * outputs && tiles > processors)) return false;
  // 256 x 128, of which an SM has four thirds at a time.
  const int64_t theirs = across * ((rows + 255) / 256), at_once = processors * 4 / 3;
  return outputs < 4 * k || theirs > 2 * at_once || theirs * 20 < up(theirs, at_once) * 19;
}

// kUnsupported where this is not for these kernels, or where cuBLASLt is expected to be faster.
namespace cuda {
int persistent_gemm(const Gemm& g, void* stream);
}
namespace emulated {
int persistent_gemm(const Gemm& g, void* stream);
}

}  // namespace aerie::kernels
