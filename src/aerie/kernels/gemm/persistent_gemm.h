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
#include "aerie/kernels/gemm_model.h"

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

// Tiles of `tile_m` of M.
inline int64_t gemm_tiles(int m, int n, int tile_m) {
  return int64_t{(n + kGemmTileN - 1) / kGemmTileN} * ((m + tile_m - 1) / tile_m);
}
// What a GEMM takes with such tiles, microseconds.
inline double persistent_gemm_cost(int m, int n, int k, const GemmTile& tile,
                                   const GemmModel& device) {
  const double tile_m = tile.m, k_tiles = (k + kGemmTileK - 1) / kGemmTileK;
  const int tiles_n = (n + kGemmTileN - 1) / kGemmTileN, tiles_m = (m + tile.m - 1) / tile.m;
  const double filled = static_cast<double>(tiles_n) * tiles_m / device.sms,
               waves = std::ceil(filled);
  const double gpcs = device.sms / device.sms_per_gpc;
  // Tiles of either operand that a GPC reads at a time.
  const double in = std::max(1.0, std::min(tiles_m, kRasterTilesM) / gpcs);
  const double weights =
      std::min(device.sms_per_gpc * std::min(filled, 1.0) / in, static_cast<double>(tiles_n));
  const double read =
      (in * tile_m + weights * kGemmTileN) * kGemmTileK * 2 * gpcs / device.operand_bytes_per_us;
  const double all_k_tiles =
      k_tiles * (device.filled_share * filled + device.whole_wave_share * waves);
  const GemmScheduleCost& cost = tile.ping_pong ? device.ping_pong : device.cooperative;
  const double at_end =
      tile.ping_pong || waves > 1
          ? 0.0
          : device.one_wave_epilogue * std::max(0.0, tile_m - device.one_wave_epilogue_m);
  return cost.start + cost.start_m * tile_m + cost.wave * waves +
         all_k_tiles * std::max(cost.k_tile + cost.k_tile_m * tile_m, read) + at_end;
}
// The cheapest tile. Ping-pong is for more than one tile per SM.
inline GemmTile persistent_gemm_tile(int m, int n, int k, const GemmModel& device) {
  GemmTile best = {kGemmTileM[0], false};
  for (const int tile_m : kGemmTileM)
    for (int ping_pong = 0; ping_pong < 2; ++ping_pong) {
      const GemmTile tile = {tile_m, ping_pong == 1};
      if (tile.ping_pong && (tile_m > kMaxPingPongM || gemm_tiles(m, n, tile_m) <= device.sms ||
                             k <= kGemmTileK * (device.min_ping_pong_k_tiles - 1)))
        continue;
      if (persistent_gemm_cost(m, n, k, tile, device) < persistent_gemm_cost(m, n, k, best, device))
        best = tile;
    }
  return best;
}
// Whether that is expected to be faster than cuBLASLt's first suggestion. It was, by 4 to 16 % of
// all GEMMs of a layer (M of 2048 to 23040), but for few tiles, which leave SMs idle, and some of
// K-major weights.
inline bool persistent_gemm_pays(int m, int n, int k, bool k_major, const GemmTile& tile,
                                 const GemmModel& device) {
  const auto up = [](int64_t count, int64_t to) { return (count + to - 1) / to * to; };
  const int64_t tiles = gemm_tiles(m, n, tile.m);
  const int tenths = k > device.long_k ? device.min_filled_tenths_long_k : device.min_filled_tenths;
  if (tiles * 10 < up(tiles, device.sms) * tenths) return false;
  if (!k_major) return true;
  if (k >= device.cublas_k || (k >= device.cublas_k_per_n * n && tiles > device.sms)) return false;
  const int64_t theirs = gemm_tiles(m, n, device.cublas_tile_m);
  const int64_t at_once = device.sms * device.cublas_tiles_per_3_sms / 3;
  return n < device.cublas_n_per_k * k || theirs > device.cublas_waves * at_once ||
         theirs * 20 < up(theirs, at_once) * device.cublas_filled_twentieths;
}

// kUnsupported where this is not for these kernels, or where cuBLASLt is expected to be faster.
namespace cuda {
int persistent_gemm(const Gemm& g, void* stream);
}
namespace emulated {
int persistent_gemm(const Gemm& g, void* stream);
}

}  // namespace aerie::kernels
