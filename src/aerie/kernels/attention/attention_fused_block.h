// A block of the fused backward (attention_fused_backward.h): its shared memory, the items it
// takes, and what all its warpgroups copy, store and add up.
#pragma once

#include "aerie/kernels/attention/attention_fused_dr.h"
#include "aerie/kernels/attention/attention_fused_mma.h"
#include "aerie/kernels/attention/attention_mma.h"

namespace aerie::kernels::AERIE_BACKEND {

constexpr int kQueryThreads = kFusedWarpgroups * kMmaThreads;
constexpr int kFusedThreads = kQueryThreads + kMmaThreads;
constexpr int kFusedFrames = kAttentionFusedFrames;
static_assert(kFusedFrames == kFusedWarpgroups * kTile);
constexpr int kFusedBand = kFusedWarpgroups + 1;  // tiles of R that stay
// Values from row to row of what is kept by position: 16 more than keys, and against bank
// conflicts.
constexpr int kShiftedRow = kFusedFrames + 16 + 8;

// Named barriers: of the warpgroups of queries among themselves, and with that of keys.
constexpr int kAmongQueries = 1;   // waited for by all groups of queries
constexpr int kTilesFull = 2;      // P and dS are there
constexpr int kTilesEmpty = 3;     // and have been read; waited for by all groups of queries
constexpr int kPositionsDone = 4;  // queries are not read any more
constexpr int kDeltaReady = 5;     // delta of an item's queries is there

// Where an item lies: its number, its first row, how many rows it has, how many count.
struct FusedItem {
  int item, first, rows, length;
  int skipped;                 // whether any item before had no frames
  int seen[kFusedWarpgroups];  // tiles of keys that a group of queries sees: first + 256 * end
};
// Of the current item, the next, and those that somebody may still look at.
constexpr int kFusedItems = 4;

template <typename T, int kDim>
struct FusedMemory {
  T *queries, *grads;  // tiles of the groups: q; gradients of out
  T *p, *ds;           // tiles of the warpgroups
  T *keys, *values;    // the current tile
  T* band;             // p from relative position -192 on; behind these 64, more of it come
                       // where values and keys were
  T* ds_shifted;       // rel-shifted dS, of every warp's 16 queries
  T* ones;             // 128
  T* zeros;            // a row of a matrix
  float* delta;        // of every query, without dropout's scale
  FusedItem* items;    // of some items, in turn

  __device__ explicit FusedMemory(unsigned char* bytes)
      : queries(reinterpret_cast<T*>(bytes)),
        grads(queries + kFusedWarpgroups * kTileSize<kDim>),
        p(grads + kFusedWarpgroups * kTileSize<kDim>),
        ds(p + kFusedWarpgroups * kTileSize<kDim>),
        keys(ds + kFusedWarpgroups * kTileSize<kDim>),
        values(keys + kTileSize<kDim>),
        band(values + kTileSize<kDim>),
        ds_shifted(band + kFusedBand * kTileSize<kDim>),
        ones(ds_shifted + kFusedFrames * kShiftedRow),
        zeros(ones + 128),
        delta(reinterpret_cast<float*>(zeros + 8)),
        items(reinterpret_cast<FusedItem*>(delta + kFusedFrames)) {}
};
template <int kDim>
constexpr size_t fused_shared() {
  return sizeof(uint16_t) * ((4 * kFusedWarpgroups + 2 + kFusedBand) * kTileSize<kDim> +
                             kFusedFrames * kShiftedRow + 128 + 8) +
         sizeof(float) * kFusedFrames + kFusedItems * sizeof(FusedItem);
}
static_assert(kTile == kAttentionFusedDim, "tiles of weights are as large as those of queries");

template <typename T, int kDim, bool kPadded>
struct FusedBlock {
  const AttentionBackward& b;
  const Attention& a;
  FusedMemory<T, kDim> m;
  int lane, warp, group, thread;  // the last three within their group of warps
  int head, slot;
  int dim;        // values of a head
  int turn = 0;   // which of `items` is the current one
  uint32_t base;  // where wgmma finds the first tile

  __device__ FusedBlock(const AttentionBackward& back, unsigned char* bytes)
      : b(back),
        a(back.forward),
        m(bytes),
        lane(int(threadIdx.x) % 32),
        // The same for all lanes, which the compiler sees this way.
        warp(__shfl_sync(kFullWarp, int(threadIdx.x) / 32 % kMmaWarps, 0)),
        group(__shfl_sync(kFullWarp, int(threadIdx.x) / kMmaThreads, 0)),
        thread(int(threadIdx.x) % kMmaThreads),
        head(int(blockIdx.x)),
        slot(int(blockIdx.y)),
        dim(head_dim<kDim, kPadded>(a)),
        base(uint32_t(smem_descriptor(m.queries))) {}

  __device__ const FusedItem& item() const { return m.items[turn]; }
  __device__ const FusedItem& next() const { return m.items[after_turn()]; }
  __device__ int after_turn() const { return (turn + 1) % kFusedItems; }
  __device__ bool exists(const FusedItem& of) const { return of.item < a.batch; }
  __device__ size_t first_row() const { return size_t(item().first); }
  __device__ int rows() const { return item().rows; }
  // By one warp, for all behind a barrier: the first item from `from` on that has any frame.
  __device__ void find_item(int which, int from, int skipped) const {
    int item = from;
    while (item < a.batch && attention_length(a, item) <= 0) item += int(gridDim.y);
    const int at = item < a.batch ? item : a.batch - 1;  // all lanes do the same
    FusedItem found = {item < a.batch ? item : a.batch, int(attention_first(a, at)),
                       rows_of(a.layout, at, a.frames), attention_length(a, at),
                       item != from ? 1 : skipped,      {}};
    AERIE_UNROLL
    for (int k = 0; k < kFusedWarpgroups; ++k) {
      const KeyTiles tiles = tiles_of(a, found.length, k);
      found.seen[k] = tiles.first + 256 * tiles.end;
    }
    if (lane == 0) m.items[which] = found;
  }
  __device__ T* tile_of(T* memory, int number) const { return memory + number * kTileSize<kDim>; }
  __device__ GroupTile<T> group_tile(T* memory, int number) const {
    T* const tile = tile_of(memory, number);
    return {tile, base + unsigned(tile - m.queries) * unsigned(sizeof(T)) / 16};
  }
  // Of 16 queries.
  __device__ T* shifted_rows(int number) const {
    return m.ds_shifted + number * (16 * kShiftedRow);
  }
  // The positions from 64 * number on, -3 to 2.
  __device__ T* position_tile(int number) const {
    return tile_of(m.keys, number <= 0 ? number + kFusedBand + 1 : 2 - number);
  }
  __device__ void copy_rows(T* tile, const void* from, const FusedItem& of, int number,
                            int stride) const {
    copy_tile<kDim, kPadded>(tile,
                             static_cast<const T*>(from) + size_t(of.first) * stride + head * dim,
                             number * kTile, of.length, stride, dim);
  }
  __device__ void copy_queries(const FusedItem& of) const {
    AERIE_UNROLL
    for (int i = 0; i < kFusedWarpgroups; ++i)
      copy_rows(tile_of(m.queries, i), a.q, of, i, a.stride);
  }
  __device__ void copy_grads(const FusedItem& of) const {
    copy_rows(tile_of(m.grads, group), b.grad_out, of, group, a.heads * dim);
  }
  __device__ void copy_keys(const FusedItem& of, int jt) const {
    copy_rows(m.keys, a.k, of, jt, a.stride);
  }
  __device__ void copy_values(const FusedItem& of, int jt) const {
    copy_rows(m.values, a.v, of, jt, a.stride);
  }
  __device__ void copy_r(int number) const {
    copy_tile<kDim, kPadded>(position_tile(number), static_cast<const T*>(a.r) + head * dim,
                             a.frames - 1 + number * kTile, 2 * a.frames - 1, a.r_stride, dim);
  }
  // What an item begins with, a share for every group of queries, in the order in which it is
  // wanted; the saved P of the first tile of keys waits where that for the warpgroup of keys will
  // be, every lane's own.
  __device__ void copy_first(const FusedItem& of) const {
    if (group == 1) copy_values(of, 0);
    copy_grads(of);
    cp_async_commit();
  }
  __device__ void copy_second(const FusedItem& of) const {
    const bool there = sees(of, 0);
    const T* const from = saved_blocks(of, 0);
    AERIE_UNROLL
    for (int k = 0; k < kTile / 16; ++k) cp_async16(first_saved(k), from + k * 256, there);
    cp_async_commit();
    if (group == 0) copy_keys(of, 0);
    cp_async_commit();
  }
  __device__ T* first_saved(int k) const {
    return tile_of(m.p, group) + warp * (16 * kTile) + k * 256 + lane * 8;
  }
  // Whether the warp's queries see any of a tile of keys.
  __device__ bool sees(const FusedItem& of, int jt) const {
    const int seen = of.seen[group];
    return group * kTile + warp * 16 < of.length && jt >= seen % 256 && jt < seen / 256;
  }
  // The lane's saved P for a tile of keys, blocks of 16 keys 256 values apart.
  __device__ const T* saved_blocks(const FusedItem& of, int jt) const {
    const unsigned blocks = unsigned(attention_blocks(a.frames));
    return static_cast<const T*>(a.saved_p) +
           (size_t(unsigned(of.item * a.heads + head)) * (blocks * blocks * 256) +
            (unsigned(group * kMmaWarps + warp) * (blocks * 256) +
             unsigned(jt * (kTile / 16) * 256 + lane * 8)));
  }
  // L2 prefetch of an item's saved P; by the warpgroup of keys.
  __device__ void prefetch_saved_p(const FusedItem& of) const {
    if (thread == 0)
      prefetch_l2_range(
          static_cast<const T*>(a.saved_p) +
              attention_block_at(a, of.item, head, 0, attention_blocks(a.frames)),
          size_t(ceil_div(of.length, 16) * attention_blocks(a.frames)) * 256 * sizeof(T));
  }
  // A group's 64 rows of a gradient. Neighbours exchange values, so that both store 8 bytes.
  __device__ void store_rows(void* to, const FragmentC* grad, int number, float factor) const {
    const bool odd = lane % 2 != 0;
    AERIE_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int row = number * kTile + warp * 16 + lane / 4 + r * 8;
      T* const out = static_cast<T*>(to) + (first_row() + row) * b.grad_stride + head * dim +
                     (odd ? 8 : 0) + lane % 4 / 2 * 4;
      AERIE_UNROLL
      for (int n = 0; n < kDim / 8; n += 2) {
        const uint32_t x = pack<T>(grad[n].v[2 * r] * factor, grad[n].v[2 * r + 1] * factor);
        const uint32_t y =
            pack<T>(grad[n + 1].v[2 * r] * factor, grad[n + 1].v[2 * r + 1] * factor);
        const uint32_t other = __shfl_xor_sync(kFullWarp, odd ? x : y, 1);
        if (row >= rows() || (kPadded && (odd ? 8 : 0) + lane % 4 / 2 * 4 + n * 8 >= dim)) continue;
        *reinterpret_cast<Bits8*>(out + n * 8) = {{odd ? other : x, odd ? y : other}};
      }
    }
  }
  // The same in pieces of 16 bytes, through a tile whose 16 rows of this warp nobody else uses; of
  // padded heads as above.
  __device__ void store_rows(void* to, const FragmentC* grad, int number, T* through) const {
    if constexpr (kPadded) {
      store_rows(to, grad, number, 1.0f);
    } else {
      constexpr int kRowPieces = kDim / 8, kRows = 32 / kRowPieces;  // at a time
      AERIE_UNROLL
      for (int n = 0; n < kDim / 8; n += 2) {
        FragmentA x;
        AERIE_UNROLL
        for (int e = 0; e < 2; ++e) AERIE_UNROLL
        for (int r = 0; r < 2; ++r)
          x.r[2 * e + r] = pack<T>(grad[n + e].v[2 * r], grad[n + e].v[2 * r + 1]);
        store_block(through, x, warp, n / 2, lane);
      }
      __syncwarp();
      const int piece = lane % kRowPieces, first = number * kTile + warp * 16 + lane / kRowPieces;
      T* const out =
          static_cast<T*>(to) + (first_row() + first) * b.grad_stride + head * dim + piece * 8;
      AERIE_UNROLL
      for (int e = 0; e < 16 / kRows; ++e) {
        const int row = warp * 16 + e * kRows + lane / kRowPieces;
        if (first + e * kRows < rows())
          store16(out + e * kRows * b.grad_stride,
                  *reinterpret_cast<const Bits16*>(through + row * kDim + (piece ^ row % 8) * 8));
      }
    }
  }
  // Rows [from, count) of an item, by some of the threads.
  __device__ void store_zeros(void* to, size_t first, int from, int count, int number,
                              int threads) const {
    if constexpr (kPadded) {
      const int pieces = dim / 4;
      for (int e = from * pieces + number; e < count * pieces; e += threads)
        *reinterpret_cast<Bits8*>(static_cast<T*>(to) + (first + e / pieces) * b.grad_stride +
                                  head * dim + e % pieces * 4) = {};
    } else {
      constexpr int kRowPieces = kDim / 8;
      for (int e = from * kRowPieces + number; e < count * kRowPieces; e += threads)
        store16(static_cast<T*>(to) + (first + e / kRowPieces) * b.grad_stride + head * kDim +
                    e % kRowPieces * 8,
                {});
    }
  }

  // dR of the 64 positions from 64 * (number - 3) on. totals: of the dS of the lane's two
  // positions.
  __device__ void sum_dr(int number, float* totals) const {
    const int end = ceil_div(item().length, kTile);
    const int row = lane / 16 * 8 + lane % 8;  // a query whose positions this lane names
    const SharedAddress zero = shared_address(m.zeros);
    const SharedAddress rows = shared_address(m.ds_shifted + row * kShiftedRow + lane / 8 % 2 * 8);
    FragmentC grad[kDim / 8] = {}, sum = {};
    // Tiles of queries that meet these positions.
    const int low = number < 2 ? 2 - number : 0;
    const int high = number > 3 ? end + 3 - number : end;
    AERIE_UNROLL_BY(1)
    for (int i = low; i < high; ++i) {
      FragmentA d[kTile / 16];
      // The tile of keys that these queries' positions begin with, in blocks of 16.
      const int from = (number - kFusedWarpgroups + i) * (kTile / 16) + 1 + warp;
      AERIE_UNROLL
      for (int k = 0; k < kTile / 16; ++k) {
        const bool inside = unsigned(from + k) <= unsigned(end * (kTile / 16));
        const Bits16 x = ldmatrix_x4<true>(
            inside ? rows + (i * kTile + k * 16) * (kShiftedRow * 2) + (from + k) * 32 : zero);
        d[k] = {{x.w[0], x.w[1], x.w[2], x.w[3]}};
      }
      wgmma_fence<kDim>();
      group_columns<kDim>(grad, d, tile_of(m.queries, i), lane);
      group_columns_sum(sum, d, m.ones);
      wgmma_commit<kDim>();
      wgmma_wait_all<kDim>();
      wgmma_fence_operand<kDim>(grad);
      wgmma_fence_operand<kDim>(sum);
    }
    AERIE_UNROLL
    for (int r = 0; r < 2; ++r) totals[r] += sum.v[2 * r];
    T* const part = fused_part<T>(b, item().item, head, number) + thread * 8;
    AERIE_UNROLL
    for (int n = 0; n < kDim / 8; n += 2)
      store16(part + n / 2 * (kMmaThreads * 8),
              {{pack<T>(grad[n].v[0], grad[n].v[1]), pack<T>(grad[n].v[2], grad[n].v[3]),
                pack<T>(grad[n + 1].v[0], grad[n + 1].v[1]),
                pack<T>(grad[n + 1].v[2], grad[n + 1].v[3])}});
  }
};

}  // namespace aerie::kernels::AERIE_BACKEND
