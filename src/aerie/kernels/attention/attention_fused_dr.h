// dR that attention_fused_backward.h leaves, and the kernel that reduces it; included by
// attention's .cu files alone.
#pragma once

#include "aerie/kernels/attention/attention_mma.h"

namespace aerie::kernels::AERIE_BACKEND {

constexpr int kFusedWarpgroups = 3;  // of queries, a tile each; twice as many tiles of positions

// Where an item's dR of 64 positions waits, rounded, in the order of a warpgroup's threads, and the
// sums of their dS: the scratch memory of P and dS and of other paths' sums is free.
template <typename T>
__device__ inline T* fused_part(const AttentionBackward& b, int item, int head, int number) {
  const Attention& a = b.forward;
  const int tiles = attention_tiles(a.frames), k = number - (kFusedWarpgroups - tiles);
  return static_cast<T*>(k < tiles ? b.p : b.ds) +
         (head_of(a, item, head) * tiles + size_t(k % tiles)) * (kTile * kAttentionFusedDim);
}
__device__ inline float* fused_sums(const AttentionBackward& b, int slot, int head, int number) {
  const Attention& a = b.forward;
  const int tiles = attention_tiles(a.frames), k = number - (kFusedWarpgroups - tiles);
  return b.r_partial + (head_of(a, slot, head) * (2 * tiles) + size_t(k)) * kTile;
}

// Adds what the items of a head have for positions, in their order: dR, and of bias v a part for
// every tile of these. A thread has two rows of two columns, twice.
constexpr int kPositionThreads = kMmaThreads;
template <typename T, int kDim, bool kPadded>
__global__ void __launch_bounds__(kPositionThreads)
    attention_reduce_dr(AttentionBackward b, int slots) {
  const Attention& a = b.forward;
  AERIE_SHARED(float, totals, kTile);
  AERIE_SHARED(float, sums, kMmaWarps * 16);
  const int tiles = attention_tiles(a.frames), head = int(blockIdx.y);
  const int dim = head_dim<kDim, kPadded>(a), dense = a.heads * dim;
  const int number = int(blockIdx.x) / (kDim / 16), piece = int(blockIdx.x) % (kDim / 16);
  const int tile = number + kFusedWarpgroups - tiles;
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const T* const part =
      fused_part<T>(b, 0, head, tile) + (piece * kPositionThreads + int(threadIdx.x)) * 8;
  Vec8 sum = {};
  AERIE_UNROLL_BY(8)
  for (int item = 0; item < a.batch; ++item) {
    const Vec8 more = load8(part + size_t(item) * a.heads * tiles * (kTile * kDim));
    AERIE_UNROLL
    for (int e = 0; e < 8; ++e) sum.v[e] += more.v[e];
  }
  if (threadIdx.x < kTile) {
    const float* const from = fused_sums(b, 0, head, tile) + threadIdx.x;
    float total = 0.0f;
    AERIE_UNROLL_BY(8)
    for (int slot = 0; slot < slots; ++slot)
      total += from[size_t(slot) * a.heads * (2 * tiles) * kTile];
    totals[threadIdx.x] = total;
  }
  __syncthreads();
  AERIE_UNROLL
  for (int n = 0; n < 2; ++n) {
    const int column = head * dim + piece * 16 + n * 8 + lane % 4 * 2;
    const bool exists = !kPadded || column < (head + 1) * dim;
    const Pair v = load_pair<kPadded>(a.bias_v + column, column, (head + 1) * dim);
    Pair of_bias = {0.0f, 0.0f};
    AERIE_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int in_tile = warp * 16 + lane / 4 + r * 8;
      const int row = a.frames - 1 + (tile - kFusedWarpgroups) * kTile + in_tile;
      if (row < 0 || row >= 2 * a.frames - 1 || !exists) continue;
      const float total = totals[in_tile];
      const uint32_t p = *reinterpret_cast<const uint32_t*>(static_cast<const T*>(a.r) +
                                                            size_t(row) * a.r_stride + column);
      of_bias.low += total * low_of<T>(p);
      of_bias.high += total * high_of<T>(p);
      const float* const mine = sum.v + n * 4 + r * 2;
      *reinterpret_cast<uint32_t*>(static_cast<T*>(b.grad_r) + size_t(row) * b.grad_r_stride +
                                   column) =
          pack<T>(mine[0] + total * v.low, mine[1] + total * v.high);
    }
    AERIE_UNROLL
    for (int other = 4; other < 32; other *= 2) {
      of_bias.low += __shfl_xor_sync(kFullWarp, of_bias.low, other);
      of_bias.high += __shfl_xor_sync(kFullWarp, of_bias.high, other);
    }
    if (lane < 4) *reinterpret_cast<Pair*>(sums + warp * 16 + n * 8 + lane * 2) = of_bias;
  }
  __syncthreads();
  if (threadIdx.x >= 16 || (kPadded && piece * 16 + int(threadIdx.x) >= dim)) return;
  float total = 0.0f;
  AERIE_UNROLL
  for (int w = 0; w < kMmaWarps; ++w) total += sums[w * 16 + threadIdx.x];
  b.partial[size_t(slots + number) * dense + head * dim + piece * 16 + threadIdx.x] = total;
}

}  // namespace aerie::kernels::AERIE_BACKEND
