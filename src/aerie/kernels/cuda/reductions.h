// Reductions: over a warp, and the second stage of sums over rows.
#pragma once

#include "aerie/kernels/cuda/launch.h"
#include "aerie/kernels/cuda/packing.h"
#include "aerie/kernels/sums/partial_sums.h"

namespace aerie::kernels::AERIE_BACKEND {

// Sum and maximum over a warp, the same value in every lane.
template <typename T>
__device__ inline T warp_sum(T value) {
  AERIE_UNROLL
  for (int mask = 16; mask > 0; mask >>= 1) value += __shfl_xor_sync(kFullWarp, value, mask);
  return value;
}
__device__ inline float warp_max(float value) {
  AERIE_UNROLL
  for (int mask = 16; mask > 0; mask >>= 1)
    value = fmaxf(value, __shfl_xor_sync(kFullWarp, value, mask));
  return value;
}

// Column sums of partial results, the second stage of every reduction over rows: for columns c of
// section s (all sections are `width` wide), out[s][c] (+)= sum over p of partial[p][s][c]. The
// order of the sum is fixed. Sections without a destination are left out.
struct ColumnSums {
  float* out[5] = {};
  int sections = 0;
  int width = 0;
  const float* partial = nullptr;
  int parts = 0;
  size_t stride = 0;  // from part to part; 0: sections * width
  bool accumulate = false;
};
inline ColumnSums column_sums(float* out, int width, const float* partial, int parts,
                              bool accumulate) {
  ColumnSums sums;
  sums.out[0] = out;
  sums.sections = 1;
  sums.width = width;
  sums.partial = partial;
  sums.parts = parts;
  sums.accumulate = accumulate;
  return sums;
}
constexpr int kColumnThreads = 256;
template <int kThreads>
__global__ void __launch_bounds__(kThreads) sum_columns(ColumnSums a) {
  // 8 groups of threads share the parts of 32 columns.
  AERIE_SHARED(float, sums, kThreads);
  const int lane = threadIdx.x % 32, group = threadIdx.x / 32;
  const int column = blockIdx.x * 32 + lane, columns = a.sections * a.width;
  float sum = 0.0f;
  if (column < columns)
    for (int p = group; p < a.parts; p += kThreads / 32)
      sum += a.partial[size_t(p) * (a.stride > 0 ? a.stride : size_t(columns)) + column];
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (group != 0 || column >= columns) return;
  for (int g = 1; g < kThreads / 32; ++g) sum += sums[g * 32 + lane];
  float* out = a.out[column / a.width];
  if (out == nullptr) return;
  out += column % a.width;
  *out = a.accumulate ? *out + sum : sum;
}
// Adds the columns that the eight warps of a block have summed (8 per lane, from `column` on) and
// writes them as partial result number blockIdx.y. `sums` has room for kColumnThreads * 8 values.
__device__ inline void write_partial(float* partial, int columns, int column, const Vec8& sum,
                                     float* sums) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  AERIE_UNROLL
  for (int k = 0; k < 8; ++k) sums[(warp * 8 + k) * 32 + lane] = sum.v[k];
  __syncthreads();
  // Thread t adds column t of the block's 256: its eight warps in order.
  const int k = threadIdx.x / 32;
  float total = 0.0f;
  for (int w = 0; w < kColumnThreads / 32; ++w) total += sums[(w * 8 + k) * 32 + lane];
  if (column < columns) partial[size_t(blockIdx.y) * columns + column + k] = total;
}

inline int launch_column_sums(void* stream, const ColumnSums& a) {
  return launch(stream, {dim3(unsigned(ceil_div(a.sections * a.width, 32))), dim3(kColumnThreads)},
                sum_columns<kColumnThreads>, a);
}

// The same later, in one launch with others (partial_sums.h), where there is a list with room.
inline int finish_column_sums(void* stream, const ColumnSums& a, PartialSums* deferred) {
  if (deferred == nullptr || deferred->count + a.sections > PartialSums::kMost)
    return launch_column_sums(stream, a);
  for (int s = 0; s < a.sections; ++s) {
    if (a.out[s] == nullptr) continue;
    PartialSum& sum = deferred->sums[deferred->count++];
    sum.partial = a.partial + size_t(s) * a.width;
    sum.out = a.out[s];
    sum.stride = int64_t(a.stride > 0 ? a.stride : size_t(a.sections) * a.width);
    sum.parts = a.parts;
    sum.columns = a.width;
    sum.accumulate = a.accumulate;
  }
  return kOk;
}

}  // namespace aerie::kernels::AERIE_BACKEND
