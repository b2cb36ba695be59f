// Backward on tensor cores for 65 to 192 frames and 64 values per head, with the weights that
// forward has saved; included by attention's .cu files alone. Weights and gradients of scores never
// leave the SM. A block takes one head of one item after the other and walks over tiles
// of 64 keys. Three of its four warpgroups have 64 queries each: they make the gradients
// of their scores and queries, and leave weights and scores' gradients in shared memory as tiles.
// The fourth makes the sums over queries of them, which are the gradients of keys, values and bias
// u, while the others go on.
//
// What moves along the diagonal goes through shared memory: gradients of scores are written by
// position too, where they stay. Behind the last tile of keys every group of queries makes its
// queries' gradients of them, and those of two tiles of positions, which wait in device memory; a
// second kernel adds those of all items.
//
// Weights carry the scale of the scores' gradients: softmax's times dropout's.
#pragma once

#include <initializer_list>
#include <type_traits>

#include "aerie/kernels/attention/attention_mma.h"
#include "aerie/kernels/attention/attention_resident_positions.h"
#include "aerie/kernels/attention/attention_resident_products.h"

namespace aerie::kernels::AERIE_BACKEND {

constexpr int kQueryThreads = kResidentGroups * kMmaThreads;
constexpr int kResidentThreads = kQueryThreads + kMmaThreads;
constexpr int kResidentFrames = kAttentionResidentFrames;
static_assert(kResidentFrames == kResidentGroups * kTile);
constexpr int kResidentBand = kResidentGroups + 1;  // tiles of p that stay
// Values from row to row of what is kept by position: 16 more than keys, and against bank
// conflicts.
constexpr int kSkewedRow = kResidentFrames + 16 + 8;

// Barriers: of the groups of queries among themselves, and with the group of keys.
constexpr int kAmongQueries = 1;   // waited for by all groups of queries
constexpr int kTilesFull = 2;      // weights and scores' gradients are there
constexpr int kTilesEmpty = 3;     // and have been read; waited for by all groups of queries
constexpr int kPositionsDone = 4;  // queries are not read any more
constexpr int kInnerReady = 5;     // inner products of an item's queries are there

// Where an item lies: its number, its first row, how many rows it has, how many count.
struct ResidentPlace {
  int item, first, rows, length;
  int skipped;                // whether any item before had no frames
  int seen[kResidentGroups];  // tiles of keys that a group of queries sees: first + 256 * end
};
// Of the current item, the next, and those that somebody may still look at.
constexpr int kResidentPlaces = 4;

template <typename T, int kDim>
struct ResidentMemory {
  T *queries, *grads;     // tiles of the groups: q; gradients of out
  T *weights, *scores;    // tiles of the groups: weights, gradients of scores
  T *keys, *values;       // the current tile
  T* band;                // p from relative position -192 on; behind these 64, more of it come
                          // where values and keys were
  T* skewed;              // gradients of scores by position, of every warp's 16 queries
  T* ones;                // 128
  T* zeros;               // a row of a matrix
  float* inner;           // of every query: gradient of out times out, without dropout's scale
  ResidentPlace* places;  // of some items, in turn

  __device__ explicit ResidentMemory(unsigned char* bytes)
      : queries(reinterpret_cast<T*>(bytes)),
        grads(queries + kResidentGroups * kTileSize<kDim>),
        weights(grads + kResidentGroups * kTileSize<kDim>),
        scores(weights + kResidentGroups * kTileSize<kDim>),
        keys(scores + kResidentGroups * kTileSize<kDim>),
        values(keys + kTileSize<kDim>),
        band(values + kTileSize<kDim>),
        skewed(band + kResidentBand * kTileSize<kDim>),
        ones(skewed + kResidentFrames * kSkewedRow),
        zeros(ones + 128),
        inner(reinterpret_cast<float*>(zeros + 8)),
        places(reinterpret_cast<ResidentPlace*>(inner + kResidentFrames)) {}
};
template <int kDim>
constexpr size_t resident_shared() {
  return sizeof(uint16_t) * ((4 * kResidentGroups + 2 + kResidentBand) * kTileSize<kDim> +
                             kResidentFrames * kSkewedRow + 128 + 8) +
         sizeof(float) * kResidentFrames + kResidentPlaces * sizeof(ResidentPlace);
}
static_assert(kTile == kAttentionResidentDim, "tiles of weights are as large as those of queries");

template <typename T, int kDim, bool kPadded>
struct ResidentBlock {
  const AttentionBackward& b;
  const Attention& a;
  ResidentMemory<T, kDim> m;
  int lane, warp, group, thread;  // the last three within their group of warps
  int head, slot;
  int dim;        // values of a head
  int turn = 0;   // which of the places is the item's
  uint32_t base;  // where products find the first tile

  __device__ ResidentBlock(const AttentionBackward& back, unsigned char* bytes)
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

  __device__ const ResidentPlace& place() const { return m.places[turn]; }
  __device__ const ResidentPlace& next() const { return m.places[after_turn()]; }
  __device__ int after_turn() const { return (turn + 1) % kResidentPlaces; }
  __device__ bool exists(const ResidentPlace& of) const { return of.item < a.batch; }
  __device__ size_t first_row() const { return size_t(place().first); }
  __device__ int rows() const { return place().rows; }
  // By one warp, for all behind a barrier: the first item from `from` on that has any frame.
  __device__ void find_place(int which, int from, int skipped) const {
    int item = from;
    while (item < a.batch && attention_length(a, item) <= 0) item += int(gridDim.y);
    const int at = item < a.batch ? item : a.batch - 1;  // all lanes do the same
    ResidentPlace found = {item < a.batch ? item : a.batch, int(attention_first(a, at)),
                           rows_of(a.layout, at, a.frames), attention_length(a, at),
                           item != from ? 1 : skipped,      {}};
    AERIE_UNROLL
    for (int k = 0; k < kResidentGroups; ++k) {
      const KeyTiles tiles = tiles_of(a, found.length, k);
      found.seen[k] = tiles.first + 256 * tiles.end;
    }
    if (lane == 0) m.places[which] = found;
  }
  __device__ T* tile_of(T* memory, int number) const { return memory + number * kTileSize<kDim>; }
  __device__ GroupTile<T> group_tile(T* memory, int number) const {
    T* const tile = tile_of(memory, number);
    return {tile, base + unsigned(tile - m.queries) * unsigned(sizeof(T)) / 16};
  }
  // Of 16 queries.
  __device__ T* skewed_rows(int number) const { return m.skewed + number * (16 * kSkewedRow); }
  // The positions from 64 * number on, -3 to 2.
  __device__ T* position_tile(int number) const {
    return tile_of(m.keys, number <= 0 ? number + kResidentBand + 1 : 2 - number);
  }
  __device__ void copy_rows(T* tile, const void* from, const ResidentPlace& of, int number,
                            int stride) const {
    copy_tile<kDim, kPadded>(tile,
                             static_cast<const T*>(from) + size_t(of.first) * stride + head * dim,
                             number * kTile, of.length, stride, dim);
  }
  __device__ void copy_queries(const ResidentPlace& of) const {
    AERIE_UNROLL
    for (int i = 0; i < kResidentGroups; ++i)
      copy_rows(tile_of(m.queries, i), a.q, of, i, a.stride);
  }
  __device__ void copy_grads(const ResidentPlace& of) const {
    copy_rows(tile_of(m.grads, group), b.grad_out, of, group, a.heads * dim);
  }
  __device__ void copy_keys(const ResidentPlace& of, int jt) const {
    copy_rows(m.keys, a.k, of, jt, a.stride);
  }
  __device__ void copy_values(const ResidentPlace& of, int jt) const {
    copy_rows(m.values, a.v, of, jt, a.stride);
  }
  __device__ void copy_positions(int number) const {
    copy_tile<kDim, kPadded>(position_tile(number), static_cast<const T*>(a.p) + head * dim,
                             a.frames - 1 + number * kTile, 2 * a.frames - 1, a.p_stride, dim);
  }
  // What an item begins with, a share for every group of queries, in the order in which it is
  // wanted; the saved weights of the first tile of keys wait where those for the group of keys will
  // be, every lane's own.
  __device__ void copy_first(const ResidentPlace& of) const {
    if (group == 1) copy_values(of, 0);
    copy_grads(of);
    cp_async_commit();
  }
  __device__ void copy_second(const ResidentPlace& of) const {
    const bool there = sees(of, 0);
    const T* const from = saved_blocks(of, 0);
    AERIE_UNROLL
    for (int k = 0; k < kTile / 16; ++k) cp_async16(first_saved(k), from + k * 256, there);
    cp_async_commit();
    if (group == 0) copy_keys(of, 0);
    cp_async_commit();
  }
  __device__ T* first_saved(int k) const {
    return tile_of(m.weights, group) + warp * (16 * kTile) + k * 256 + lane * 8;
  }
  // Whether the warp's queries see any of a tile of keys.
  __device__ bool sees(const ResidentPlace& of, int jt) const {
    const int seen = of.seen[group];
    return group * kTile + warp * 16 < of.length && jt >= seen % 256 && jt < seen / 256;
  }
  // The lane's saved weights for a tile of keys, blocks of 16 keys 256 values apart.
  __device__ const T* saved_blocks(const ResidentPlace& of, int jt) const {
    const unsigned blocks = unsigned(attention_blocks(a.frames));
    return static_cast<const T*>(a.saved) +
           (size_t(unsigned(of.item * a.heads + head)) * (blocks * blocks * 256) +
            (unsigned(group * kMmaWarps + warp) * (blocks * 256) +
             unsigned(jt * (kTile / 16) * 256 + lane * 8)));
  }
  // An item's saved weights come near; by the group of keys.
  __device__ void announce(const ResidentPlace& of) const {
    if (thread == 0)
      prefetch_l2_range(
          static_cast<const T*>(a.saved) +
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

  // Gradients of the 64 positions from 64 * (number - 3) on.
  // totals: of the scores' gradients of the lane's two positions.
  __device__ void sum_positions(int number, float* totals) const {
    const int end = ceil_div(place().length, kTile);
    const int row = lane / 16 * 8 + lane % 8;  // a query whose positions this lane names
    const SharedAddress zero = shared_address(m.zeros);
    const SharedAddress rows = shared_address(m.skewed + row * kSkewedRow + lane / 8 % 2 * 8);
    FragmentC grad[kDim / 8] = {}, sum = {};
    // Tiles of queries that meet these positions.
    const int low = number < 2 ? 2 - number : 0;
    const int high = number > 3 ? end + 3 - number : end;
    AERIE_UNROLL_BY(1)
    for (int i = low; i < high; ++i) {
      FragmentA d[kTile / 16];
      // The tile of keys that these queries' positions begin with, in blocks of 16.
      const int from = (number - kResidentGroups + i) * (kTile / 16) + 1 + warp;
      AERIE_UNROLL
      for (int k = 0; k < kTile / 16; ++k) {
        const bool inside = unsigned(from + k) <= unsigned(end * (kTile / 16));
        const Bits16 x = ldmatrix_x4<true>(
            inside ? rows + (i * kTile + k * 16) * (kSkewedRow * 2) + (from + k) * 32 : zero);
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
    T* const part = resident_part<T>(b, place().item, head, number) + thread * 8;
    AERIE_UNROLL
    for (int n = 0; n < kDim / 8; n += 2)
      store16(part + n / 2 * (kMmaThreads * 8),
              {{pack<T>(grad[n].v[0], grad[n].v[1]), pack<T>(grad[n].v[2], grad[n].v[3]),
                pack<T>(grad[n + 1].v[0], grad[n + 1].v[1]),
                pack<T>(grad[n + 1].v[2], grad[n + 1].v[3])}});
  }
};

// What a warp's 16 queries need beside tiles, on its way while something else is finished.
template <typename T>
struct ResidentQueries {
  FragmentA weights[kTile / 16];  // saved, of the next tile of keys
  float shift[2];                 // what these are relative to, in the lane's two rows
  float log_sum[2];               // of these rows

  template <int kDim, bool kPadded>
  __device__ void load_shifts(const ResidentBlock<T, kDim, kPadded>& q, const ResidentPlace& of,
                              int jt) {
    const unsigned tiles = unsigned(attention_tiles(q.a.frames));
    const float* const from =
        q.a.shifts +
        (size_t(unsigned(of.item * q.a.heads + q.head)) * (tiles * tiles * kTile) +
         (unsigned(jt) * (tiles * kTile) + unsigned(q.group * kTile + q.warp * 16 + q.lane / 4)));
    shift[0] = shift[1] = 0.0f;
    if (!q.sees(of, jt)) return;
    AERIE_UNROLL
    for (int r = 0; r < 2; ++r) shift[r] = from[r * 8];
  }
  template <int kDim, bool kPadded>
  __device__ void load(const ResidentBlock<T, kDim, kPadded>& q, const ResidentPlace& of, int jt) {
    load_shifts(q, of, jt);
    AERIE_UNROLL
    for (int k = 0; k < kTile / 16; ++k) weights[k] = {};
    if (!q.sees(of, jt)) return;
    const T* const from = q.saved_blocks(of, jt);
    AERIE_UNROLL
    for (int k = 0; k < kTile / 16; ++k) weights[k] = fragment(from + k * 256);
  }
  // An item, with copies.
  template <int kDim, bool kPadded>
  __device__ void begin(const ResidentBlock<T, kDim, kPadded>& q, const ResidentPlace& of) {
    load_shifts(q, of, 0);
    AERIE_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int row = q.group * kTile + q.warp * 16 + q.lane / 4 + r * 8;
      log_sum[r] = INFINITY;
      if (row < of.length)
        log_sum[r] = q.a.log_sum[head_of(q.a, of.item, q.head) * q.a.frames + row];
    }
    q.copy_first(of);
  }
  // The first tile's weights have come, but for the last copies.
  template <int kDim, bool kPadded>
  __device__ void take_first(const ResidentBlock<T, kDim, kPadded>& q) {
    cp_async_wait<1>();
    AERIE_UNROLL
    for (int k = 0; k < kTile / 16; ++k) weights[k] = fragment(q.first_saved(k));
  }

 private:
  __device__ static FragmentA fragment(const T* from) {
    const Bits16 x = *reinterpret_cast<const Bits16*>(from);
    return {{x.w[0], x.w[1], x.w[2], x.w[3]}};
  }
};

// A group of queries, one item; begun already, as the next is in the end.
template <typename T, int kDim, bool kPadded>
__device__ inline void resident_queries(const ResidentBlock<T, kDim, kPadded>& q,
                                        ResidentQueries<T>& now, bool first) {
  static_assert(kUsesWgmma<kDim>);
  const AttentionBackward& b = q.b;
  const Attention& a = q.a;
  const int lane = q.lane, warp = q.warp, g = lane / 4, t = lane % 4;
  const int length = q.place().length, end = ceil_div(length, kTile);
  T *const grads = q.tile_of(q.m.grads, q.group), *const weight_tile =
                                                      q.tile_of(q.m.weights, q.group);
  T* const score_tile = q.tile_of(q.m.scores, q.group);
  T* const skewed = q.skewed_rows(q.group * kMmaWarps + warp);
  const float drop_scale = a.dropout.threshold != 0 ? a.dropout.scale : 1.0f;
  // Weights times both scales.
  const float both_scales = drop_scale / sqrtf(float(q.dim));
  float inner[2], log_sum[2];
  AERIE_UNROLL
  for (int r = 0; r < 2; ++r) log_sum[r] = now.log_sum[r] * kLog2E - log2f(both_scales);
  FragmentC grad_q[kDim / 8] = {};
  AERIE_UNROLL_BY(1)
  for (int jt = 0; jt < end; ++jt) {
    // The values have come, and for the first tile gradients; keys are not read any more.
    if (jt == 0) {
      if (first) {
        cp_async_wait_all();
      } else {
        cp_async_wait<2>();
      }
      fence_proxy_async<kDim>();
    }
    named_barrier_sync<kAmongQueries, kQueryThreads>();
    // When all SMs begin, what is wanted first comes sooner if nothing else is under way.
    if (first && jt == 0) q.copy_second(q.place());
    if (jt > 0 && q.group == 0) q.copy_keys(q.place(), jt);
    if (jt == 0) {
      // Positions that no key of a row has: before the first key, and behind the last.
      AERIE_UNROLL
      for (int e = 0; e < 2; ++e)
        *reinterpret_cast<Bits16*>(skewed + lane / 2 * kSkewedRow + lane % 2 * 8 +
                                   e * end * kTile) = {};
    }
    FragmentC d_weights[kTile / 8];
    wgmma_fence<kDim>();
    group_rows<kDim, false>(d_weights, grads, q.m.values, warp, lane);
    wgmma_commit<kDim>();
    if (jt == 0) {
      named_barrier_sync<kInnerReady, kResidentThreads>();
      AERIE_UNROLL
      for (int r = 0; r < 2; ++r)
        inner[r] = q.m.inner[(q.group * kMmaWarps + warp) * 16 + g + r * 8];
    }
    if (jt == 0) now.take_first(q);
    float factor[2];
    AERIE_UNROLL
    for (int r = 0; r < 2; ++r) factor[r] = fast_exp2(now.shift[r] - log_sum[r]);
    wgmma_wait_all<kDim>();
    wgmma_fence_operand<kDim>(d_weights);
    // Nobody reads the values any more.
    named_barrier_sync<kAmongQueries, kQueryThreads>();
    if (q.group == 1) {
      if (jt + 1 < end) {
        q.copy_values(q.place(), jt + 1);
      } else if (end > 1) {
        q.copy_positions(1);
      }
    }
    if (first && jt == 0) {
      q.copy_positions(-1 - q.group);
      if (q.group == 2) q.copy_positions(0);
    }
    cp_async_commit();
    FragmentA d_scores[kTile / 16];
    {
      T* const along = skewed + g * kSkewedRow + jt * kTile + 16 + 2 * t - g;
      AERIE_UNROLL
      for (int k = 0; k < kTile / 16; ++k) AERIE_UNROLL
      for (int n = 2 * k; n < 2 * k + 2; ++n) AERIE_UNROLL
      for (int r = 0; r < 2; ++r) {
        uint32_t& bits = now.weights[k].r[n % 2 * 2 + r];
        const float value[2] = {low_of<T>(bits) * factor[r], high_of<T>(bits) * factor[r]};
        float kept[2], d_score[2];
        AERIE_UNROLL
        for (int e = 0; e < 2; ++e) {
          kept[e] = fmaxf(value[e], 0.0f);
          d_score[e] = kept[e] * d_weights[n].v[2 * r + e] - fabsf(value[e]) * inner[r];
        }
        bits = pack<T>(kept[0], kept[1]);
        const uint32_t pair = pack<T>(d_score[0], d_score[1]);
        d_scores[k].r[n % 2 * 2 + r] = pair;
        along[r * 8 * (kSkewedRow - 1) + n * 8] = T{uint16_t(pair)};
        along[r * 8 * (kSkewedRow - 1) + n * 8 + 1] = T{uint16_t(pair >> 16)};
      }
    }
    if (q.group == 0) {  // keys have come, beside later things
      if (jt == 0) {
        cp_async_wait<1>();
      } else {
        cp_async_wait_all();
      }
      fence_proxy_async<kDim>();
    }
    named_barrier_sync<kTilesEmpty, kResidentThreads>();
    AERIE_UNROLL
    for (int k = 0; k < kTile / 16; ++k) {
      store_block(score_tile, d_scores[k], warp, k, lane);
      store_block(weight_tile, now.weights[k], warp, k, lane);
    }
    fence_proxy_async<kDim>();
    named_barrier_arrive<kTilesFull, kResidentThreads>();
    wgmma_fence<kDim>();
    group_columns<kDim>(grad_q, d_scores, q.m.keys, lane);
    wgmma_commit<kDim>();
    // Before anything is asked for that would have to come first: the next values are there, or
    // positions.
    if (q.group == 1 || jt + 1 == end) {
      cp_async_wait_all();
      fence_proxy_async<kDim>();
    }
    if (jt + 1 < end) now.load(q, q.place(), jt + 1);
    wgmma_wait_all<kDim>();
    wgmma_fence_operand<kDim>(grad_q);
  }
  // Keys are not read any more.
  named_barrier_sync<kAmongQueries, kQueryThreads>();
  if (q.group == 0 && end > 2) q.copy_positions(2);
  // The group's positions begin 64 * (group + 1) before its first key; row r, position p of them is
  // where the warp has column p + 16 * (warp - 3) of its rows.
  const SharedAddress zero = shared_address(q.m.zeros);
  const SharedAddress from = shared_address(skewed + lane % 16 * kSkewedRow + lane / 16 * 8);
  AERIE_UNROLL_BY(1)
  for (int w = 0; w < kResidentBand; w += 2) {
    FragmentA skews[2 * kTile / 16];
    AERIE_UNROLL
    for (int k = 0; k < 2 * kTile / 16; ++k) {
      const int column = w * (kTile / 16) + k - 3 + warp;
      const Bits16 x = ldmatrix_x4<false>(
          unsigned(column) <= unsigned(end * (kTile / 16)) ? from + column * 32 : zero);
      skews[k] = {{x.w[0], x.w[1], x.w[2], x.w[3]}};
    }
    if (w > 0) {
      if (q.group == 0) {
        cp_async_wait_all();
        fence_proxy_async<kDim>();
      }
      named_barrier_sync<kAmongQueries, kQueryThreads>();
    }
    wgmma_fence<kDim>();
    AERIE_UNROLL
    for (int e = 0; e < 2; ++e)  // behind the last, zeros are multiplied with anything finite
      group_columns<kDim>(grad_q, skews + e * (kTile / 16),
                          q.position_tile(w + e <= end ? w + e - 1 - q.group : 0), lane);
    wgmma_commit<kDim>();
    wgmma_wait_all<kDim>();
    wgmma_fence_operand<kDim>(grad_q);
  }
  // All scores' gradients are in their place by position, and all sums over queries are made.
  named_barrier_sync<kTilesEmpty, kResidentThreads>();
  if (q.exists(q.next())) {
    now.begin(q, q.next());
    q.copy_second(q.next());
  }
  q.store_rows(b.grad_q, grad_q, q.group, score_tile);
}

// Of an item's queries: gradients of out times out. By the group of keys.
template <typename T, int kDim, bool kPadded>
__device__ inline void resident_inner(const ResidentBlock<T, kDim, kPadded>& q,
                                      const ResidentPlace& of) {
  const int dense = q.a.heads * q.dim;
  const float kept = q.a.dropout.threshold != 0 ? 1.0f / q.a.dropout.scale : 1.0f;
  InnerProducts<T, kDim, kPadded> products[kResidentGroups];
  AERIE_UNROLL
  for (int k = 0; k < kResidentGroups; ++k) {
    const int i = (k * kMmaWarps + q.warp) * 16;
    const size_t at = (size_t(of.first) + i) * dense + q.head * q.dim;
    if (i < of.length)
      products[k].load(static_cast<const T*>(q.a.out) + at,
                       static_cast<const T*>(q.b.grad_out) + at, of.length - i, dense, q.lane,
                       q.dim);
  }
  AERIE_UNROLL
  for (int k = 0; k < kResidentGroups; ++k)
    products[k].finish(q.m.inner + (k * kMmaWarps + q.warp) * 16, kept, q.lane);
  named_barrier_arrive<kInnerReady, kResidentThreads>();
}

// The group of keys, one item. sum: two columns of bias u's gradient are added to it.
template <typename T, int kDim, bool kPadded>
__device__ inline void resident_keys(const ResidentBlock<T, kDim, kPadded>& q, float* sum) {
  const AttentionBackward& b = q.b;
  const Attention& a = q.a;
  const int lane = q.lane, warp = q.warp, t = lane % 4;
  const int length = q.place().length, end = ceil_div(length, kTile);
  if (warp == 0) q.find_place(q.after_turn(), q.place().item + int(gridDim.y), q.place().skipped);
  // Tiles may be written, and the next item's place is known.
  named_barrier_arrive<kTilesEmpty, kResidentThreads>();
  AERIE_UNROLL_BY(1)
  for (int jt = 0; jt < end; ++jt) {
    if (jt == 0) {
      cp_async_wait_all();  // for the queries
      fence_proxy_async<kDim>();
    }
    // Two columns of the warp's 16 keys, for bias u.
    uint32_t pairs[16];
    const int first = jt * kTile + warp * 16;
    const T* keys =
        static_cast<const T*>(a.k) + (q.first_row() + first) * a.stride + q.head * q.dim + lane * 2;
    AERIE_UNROLL
    for (int r = 0; r < 16; ++r, keys += a.stride) {
      pairs[r] = 0;
      if (first + r < length && (!kPadded || lane * 2 < q.dim))
        pairs[r] = *reinterpret_cast<const uint32_t*>(keys);
    }
    named_barrier_sync<kTilesFull, kResidentThreads>();
    FragmentC grad_k[kDim / 8], grad_v[kDim / 8], sums;
    const uint64_t all_ones = plain_smem_descriptor_at(
        q.base + unsigned(q.m.ones - q.m.queries) * unsigned(sizeof(T)) / 16 - kDescriptorLow);
    const auto add = [&]<bool kAdd>(int i, std::bool_constant<kAdd>) {
      const GroupTile<T> scores = q.group_tile(q.m.scores, i);
      group_turned<kDim, kAdd>(grad_k, scores, q.group_tile(q.m.queries, i), warp, lane);
      group_turned_sum<kAdd>(sums, scores, all_ones, warp, lane);
      group_turned<kDim, kAdd>(grad_v, q.group_tile(q.m.weights, i), q.group_tile(q.m.grads, i),
                               warp, lane);
    };
    wgmma_fence<kDim>();
    add(0, std::false_type{});
    AERIE_UNROLL
    for (int i = 1; i < kResidentGroups; ++i) add(i, std::true_type{});
    wgmma_commit<kDim>();
    wgmma_wait_all<kDim>();
    wgmma_fence_operand<kDim>(grad_k);
    wgmma_fence_operand<kDim>(grad_v);
    wgmma_fence_operand<kDim>(sums);
    named_barrier_arrive<kTilesEmpty, kResidentThreads>();
    AERIE_UNROLL
    for (int n = 0; n < kDim / 8; ++n) {
      const Pair u =
          load_pair<kPadded>(a.bias_u + q.head * q.dim + n * 8 + t * 2, n * 8 + t * 2, q.dim);
      AERIE_UNROLL
      for (int r = 0; r < 2; ++r) {
        grad_k[n].v[2 * r] += sums.v[2 * r] * u.low;
        grad_k[n].v[2 * r + 1] += sums.v[2 * r] * u.high;
      }
    }
    q.store_rows(b.grad_k, grad_k, jt, 1.0f);
    q.store_rows(b.grad_v, grad_v, jt, sqrtf(float(q.dim)));
    AERIE_UNROLL
    for (int r = 0; r < 16; ++r) {
      const float weight = __shfl_sync(kFullWarp, sums.v[r / 8 * 2], r % 8 * 4);
      sum[0] += weight * low_of<T>(pairs[r]);
      sum[1] += weight * high_of<T>(pairs[r]);
    }
    if (jt == 0 && q.exists(q.next())) q.announce(q.next());
  }
  for (void* grad : {b.grad_k, b.grad_v})
    q.store_zeros(grad, q.first_row(), end * kTile, q.rows(), q.thread, kMmaThreads);
  if (!q.exists(q.next())) return;
  resident_inner(q, q.next());
  named_barrier_sync<kPositionsDone, kResidentThreads>();
  q.copy_queries(q.next());
}

template <typename T, int kDim, bool kPadded>
__global__ void __launch_bounds__(kResidentThreads, 1) attention_resident_mma(AttentionBackward b) {
  static_assert(kDim / 8 == 32 / 4);
  AERIE_DYNAMIC_SHARED(memory);
  const Attention& a = b.forward;
  ResidentBlock<T, kDim, kPadded> q(b, memory);
  const int number = int(threadIdx.x);
  if (number < 32) q.find_place(0, q.slot, 0);
  if (number >= 128 && number < 256) q.m.ones[number - 128] = from_float<T>(1.0f);
  if (number >= 256 && number < 264) q.m.zeros[number - 256] = T{};
  fence_proxy_async<kDim>();
  __syncthreads();
  float sum[2] = {};  // of bias u's gradient: a lane has two columns
  if (q.group < kResidentGroups) {
    const int tiles = attention_tiles(a.frames);
    float totals[2][2] = {};  // of the lane's positions, in the group's two tiles of these
    ResidentQueries<T> now;
    if (q.exists(q.place())) now.begin(q, q.place());
    bool first = true;
    for (; q.exists(q.place()); q.turn = q.after_turn(), first = false) {
      resident_queries(q, now, first);
      AERIE_UNROLL_BY(1)
      for (int k = 0; k < 2; ++k) {
        const int which = q.group + k * kResidentGroups;
        if (which < kResidentGroups - tiles || which >= kResidentGroups + tiles) continue;
        float total[2] = {};
        q.sum_positions(which, total);
        AERIE_UNROLL
        for (int e = 0; e < 4; ++e)
          if (e / 2 == k) totals[e / 2][e % 2] += total[e % 2];
      }
      if (q.exists(q.next())) named_barrier_arrive<kPositionsDone, kResidentThreads>();
    }
    AERIE_UNROLL
    for (int k = 0; k < 2; ++k) {
      const int which = q.group + k * kResidentGroups;
      if (which < kResidentGroups - tiles || which >= kResidentGroups + tiles) continue;
      if (q.lane % 4 != 0) continue;
      float* const out = resident_sums(b, q.slot, q.head, which) + q.warp * 16 + q.lane / 4;
      out[0] = totals[k][0];
      out[8] = totals[k][1];
    }
  } else {
    if (q.exists(q.place())) {
      resident_inner(q, q.place());
      q.copy_queries(q.place());
      q.announce(q.place());
    }
    for (; q.exists(q.place()); q.turn = q.after_turn()) resident_keys(q, sum);
  }
  __syncthreads();
  if (q.place().skipped != 0) {
    for (int item = q.slot; item < a.batch; item += int(gridDim.y)) {
      if (attention_length(a, item) > 0) continue;
      for (void* grad : {b.grad_q, b.grad_k, b.grad_v})
        q.store_zeros(grad, attention_first(a, item), 0, rows_of(a.layout, item, a.frames), number,
                      kResidentThreads);
      const int tiles = attention_tiles(a.frames);
      for (int k = kResidentGroups - tiles; k < kResidentGroups + tiles; ++k)
        for (int e = number * 8; e < kTile * kDim; e += kResidentThreads * 8)
          store16(resident_part<T>(b, item, q.head, k) + e, {});
    }
  }
  float* const parts = reinterpret_cast<float*>(memory);  // of every warp of the group of keys
  if (q.group == kResidentGroups) {
    AERIE_UNROLL
    for (int e = 0; e < 2; ++e) parts[q.warp * kDim + q.lane * 2 + e] = sum[e];
  }
  __syncthreads();
  if (number >= q.dim) return;
  float total = 0.0f;
  for (int w = 0; w < kMmaWarps; ++w) total += parts[w * kDim + number];
  b.partial[size_t(q.slot) * (a.heads * q.dim) + q.head * q.dim + number] = total;
}

}  // namespace aerie::kernels::AERIE_BACKEND
