// Products of rows with a weight, C = A W^T or A W (+ bias), by kernels of our own whose tiles are
// cut so that they fill a device evenly, and when to take them. gemm() asks; nobody else need.
//
// CUDA: compute capability 9.0 (code for 90a), bf16 and fp16, C of the same type. Each element's
// sum is over k in order, whatever the tile.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "aerie/kernels/gemm/gemm.h"

namespace aerie::kernels {

// Rows that a tile of 128 outputs may have.
#define AERIE_EVEN_ROWS(X) \
  X(64) X(72) X(80) X(88) X(96) X(104) X(112) X(120) X(128) X(136) X(144) X(160) X(176) X(192)

#define AERIE_EVEN_NUMBER(n) n,
constexpr int kEvenRows[] = {AERIE_EVEN_ROWS(AERIE_EVEN_NUMBER)};
#undef AERIE_EVEN_NUMBER
// Above this, groups of warps do not take turns: their results would not fit their registers well.
constexpr int kEvenTurnRows = 144;
constexpr int kEvenOutputs = 128, kEvenStep = 64;  // outputs of a tile; k is taken in steps
constexpr int kEvenChunk = 16;  // tiles of rows that are begun before other outputs

// What a product takes with such tiles, microseconds on an H200: fitted to 1000 measurements (376
// to 23040 rows, models of width 512 and 1024). Its least lies 1 % above the least measured.
inline double even_cost(int rows, int outputs, int k, const GemmTile& tile, int processors) {
  const double n = tile.rows, steps = (k + kEvenStep - 1) / kEvenStep;
  const int across = (outputs + kEvenOutputs - 1) / kEvenOutputs;
  const int down = (rows + tile.rows - 1) / tile.rows;
  const double filled = static_cast<double>(across) * down / processors, waves = std::ceil(filled);
  // A part of the device (16 or 18 multiprocessors) reads what its blocks read once; all parts
  // together get 5.8 MB per microsecond.
  const double parts = processors / 16.5;
  const double in = std::max(1.0, std::min(down, kEvenChunk) / parts);
  const double weights = std::min(16.5 * std::min(filled, 1.0) / in, static_cast<double>(across));
  const double read = (in * n + weights * kEvenOutputs) * kEvenStep * 2 * parts / 5.78e6;
  // A last wave that is not full leaves more to those in it. Where there is only one, all large
  // tiles leave at the same time, at the end.
  const double in_turn = steps * (0.31 * filled + 0.69 * waves);
  const double at_end = waves > 1 ? 0.0 : 0.005 * std::max(0.0, n - 96);
  return tile.turns
             ? 1.01 + 0.00327 * n + 0.266 * waves + in_turn * std::max(0.0887 + 0.00255 * n, read)
             : 1.81 - 0.00068 * n + 0.491 * waves + in_turn * std::max(0.00315 * n, read) + at_end;
}

// Turns are for sums of this length at least: with shorter ones, groups wait for results to leave.
constexpr int kEvenTurnSteps = 4;

// The cheapest tile. Turns are for more than one tile per multiprocessor.
inline GemmTile even_tile(int rows, int outputs, int k, int processors) {
  GemmTile best = {kEvenRows[0], false};
  for (const int n : kEvenRows)
    for (int turns = 0; turns < 2; ++turns) {
      const GemmTile tile = {n, turns == 1};
      const int64_t tiles =
          int64_t{(outputs + kEvenOutputs - 1) / kEvenOutputs} * ((rows + n - 1) / n);
      if (tile.turns &&
          (n > kEvenTurnRows || tiles <= processors || k <= kEvenStep * (kEvenTurnSteps - 1)))
        continue;
      if (even_cost(rows, outputs, k, tile, processors) <
          even_cost(rows, outputs, k, best, processors))
        best = tile;
    }
  return best;
}

// Whether that is expected to be faster than cuBLASLt's first suggestion. It was, by 4 to 16 % of
// all products of a layer (2048 to 23040 rows), but for few tiles, which leave much of the device
// idle, and some weights of rows of k (by_outputs): long sums, for which cuBLASLt's tiles are
// larger, and many outputs of few rows where those happen to fill the device once or twice.
inline bool even_pays(int rows, int outputs, int k, bool by_outputs, const GemmTile& tile,
                      int processors) {
  const int64_t across = (outputs + kEvenOutputs - 1) / kEvenOutputs;
  const auto up = [](int64_t n, int64_t to) { return (n + to - 1) / to * to; };
  const int64_t tiles = across * ((rows + tile.rows - 1) / tile.rows);
  if (tiles * 10 < up(tiles, processors) * (k > 512 ? 8 : 7)) return false;
  if (!by_outputs) return true;
  if (k >= 4096 || (k >= 4 * outputs && tiles > processors)) return false;
  // 256 rows x 128 outputs, of which a multiprocessor has four thirds at a time.
  const int64_t theirs = across * ((rows + 255) / 256), at_once = processors * 4 / 3;
  return outputs < 4 * k || theirs > 2 * at_once || theirs * 20 < up(theirs, at_once) * 19;
}

// kUnsupported where this is not for these kernels, or where cuBLASLt is expected to be faster.
namespace cuda {
int even_product(const Gemm& g, void* stream);
}
namespace emulated {
int even_product(const Gemm& g, void* stream);
}

}  // namespace aerie::kernels
