// Backward on tensor cores for 65 to 192 frames and 64 values per head, included by attention.cu
// alone: weights and gradients of scores never leave the multiprocessor. A block takes one head of
// one item after the other; each of its three groups of four warps has 64 queries. It walks over
// tiles of 64 keys. The groups make weights and gradients of scores of their queries, leave them in
// shared memory as tiles, and share the sums over queries: of every tile of keys one group makes
// the gradients of the values, another those of the keys, the third what bias u gets of them.
//
// What moves along the diagonal goes through shared memory: products of queries and positions are
// written by position and read by key, one row of a warp's 16 after the other a place further; the
// gradients of scores are written by position too, where they stay. Behind the last tile of keys
// every group makes the gradients of two tiles of positions of them. Parts of the block's items are
// added in device memory, always by the same thread; a second kernel adds the blocks'.
//
// Weights carry the scale of the scores' gradients: softmax's times dropout's.
#pragma once

#include "aerie/kernels/attention/attention_mma.h"

namespace aerie::kernels::AERIE_BACKEND {

constexpr int kResidentGroups = 3;
constexpr int kResidentThreads = kResidentGroups * kMmaThreads;
constexpr int kResidentFrames = kAttentionResidentFrames;
static_assert(kResidentFrames == kResidentGroups * kTile);
constexpr int kResidentRing = kResidentGroups + 1;   // tiles of p that are in use
constexpr int kResidentTiles = 2 * kResidentGroups;  // of positions
constexpr int kResidentWarps = kResidentThreads / 32;
// Values from row to row of what is kept by position: 16 more than keys, and against bank
// conflicts.
constexpr int kSkewedRow = kResidentFrames + 16 + 8;
// Of products with positions on their way: floats from row to row; half of a warp's rows at a time,
// four in its part of the weights and four in that of the scores' gradients.
constexpr int kTurningRow = kTile + 8;

// Where an item lies: its first row, how many it has, how many count.
struct ResidentPlace {
  int first, rows, length;
};

template <typename T, int kDim>
struct ResidentMemory {
  T *queries, *grads;     // tiles of the groups: q + u; gradients of out
  T *weights, *scores;    // tiles of the groups: weights, gradients of scores
  T *keys, *values;       // the current tile
  T* band;                // a ring of tiles of p
  T* skewed;              // gradients of scores by position, of every warp's 16 queries
  T* zeros;               // a row of a matrix
  float* sums;            // of the scores' gradients of every key
  ResidentPlace* places;  // of this item and the next

  __device__ explicit ResidentMemory(unsigned char* bytes)
      : queries(reinterpret_cast<T*>(bytes)),
        grads(queries + kResidentGroups * kTileSize<kDim>),
        weights(grads + kResidentGroups * kTileSize<kDim>),
        scores(weights + kResidentGroups * kTileSize<kDim>),
        keys(scores + kResidentGroups * kTileSize<kDim>),
        values(keys + kTileSize<kDim>),
        band(values + kTileSize<kDim>),
        skewed(band + kResidentRing * kTileSize<kDim>),
        zeros(skewed + kResidentFrames * kSkewedRow),
        sums(reinterpret_cast<float*>(zeros + 8)),
        places(reinterpret_cast<ResidentPlace*>(sums + kResidentFrames)) {}
};
template <int kDim>
constexpr size_t resident_shared() {
  return sizeof(uint16_t) * ((4 * kResidentGroups + 2 + kResidentRing) * kTileSize<kDim> +
                             kResidentFrames * kSkewedRow + 8) +
         sizeof(float) * kResidentFrames + 2 * sizeof(ResidentPlace);
}
static_assert(kTile == kAttentionResidentDim, "tiles of weights are as large as those of queries");

// Where the gradients of 64 positions of a block wait, in the order of a group's threads: the
// scratch memory of the two squares is free.
__device__ inline Quad* resident_part(const AttentionBackward& b, int slot, int head, int number) {
  const Attention& a = b.forward;
  const int tiles = attention_tiles(a.frames), k = number - (kResidentGroups - tiles);
  return reinterpret_cast<Quad*>(k < tiles ? b.weights : b.grad_scores) +
         (head_of(a, slot, head) * tiles + size_t(k % tiles)) * (kTile * kAttentionResidentDim / 4);
}

// A warp's 16 x 16 values of a tile of 64 columns, from column 16k on.
template <typename T>
__device__ inline void store_block(T* tile, const FragmentA& a, int warp, int k, int lane) {
  store_matrices(shared_address(tile) + (warp * 16 + lane % 16) * (2 * kTile) +
                     ((lane / 16 ^ lane % 8) ^ 2 * k) * 16,
                 a);
}
// A of columns [16 * warp, 16 * warp + 16) and rows [16k, 16k + 16) of a tile: turned around.
template <typename T>
__device__ inline FragmentA load_turned(const T* tile, int warp, int k, int lane) {
  const Bits16 m =
      load_matrices<true>(shared_address(tile) + (16 * k + lane / 16 * 8 + lane % 8) * (2 * kTile) +
                          ((2 * warp + lane / 8 % 2) ^ lane % 8) * 16);
  return {{m.w[0], m.w[1], m.w[2], m.w[3]}};
}
// c (16x64) += 16 columns of the left tile, turned around, times the right tile; a product of the
// group.
template <int kDim, bool kAdd, typename T>
__device__ inline void group_turned(FragmentC* c, const T* left, const T* right, int warp,
                                    int lane) {
  if constexpr (kGroupProducts) {
    const uint64_t a = group_operand(left), b = group_operand(right);
    group_mma<T, true, kAdd>(c, a, b);
    AERIE_UNROLL
    for (int k = 1; k < kTile / 16; ++k)
      group_mma<T, true>(c, a + k * (2048 >> 4), b + k * (2048 >> 4));
  } else {
    AERIE_UNROLL
    for (int n = 0; n < kDim / 8 && !kAdd; ++n) c[n] = {};
    AERIE_UNROLL
    for (int k = 0; k < kTile / 16; ++k)
      multiply_columns<kDim, T>(c, load_turned(left, warp, k, lane),
                                shared_address(right) + k * (32 * kDim), lane);
  }
}

template <typename T, int kDim>
struct ResidentBlock {
  const AttentionBackward& b;
  const Attention& a;
  ResidentMemory<T, kDim> m;
  int lane, warp, group, thread;  // the last three within their group of warps
  int head, slot;
  int item, turn = 0;  // turn: which of the two places is the item's
  int length, end;     // end: of the tiles of keys
  int jt = 0, ring = 0;

  __device__ ResidentBlock(const AttentionBackward& back, unsigned char* bytes, int number)
      : b(back),
        a(back.forward),
        m(bytes),
        lane(number % 32),
        // The same for all lanes, which the compiler sees this way.
        warp(__shfl_sync(kFullWarp, number / 32 % kMmaWarps, 0)),
        group(__shfl_sync(kFullWarp, number / kMmaThreads, 0)),
        thread(number % kMmaThreads),
        head(int(blockIdx.x)),
        slot(int(blockIdx.y)),
        item(slot),
        length(0),
        end(0) {}

  __device__ const ResidentPlace& place() const { return m.places[forgotten(turn)]; }
  __device__ size_t first_row() const { return size_t(place().first); }
  __device__ int rows() const { return place().rows; }
  __device__ int items_apart() const { return int(gridDim.y); }
  // By one thread, for all behind a barrier.
  __device__ void find_place(int which, int of) const {
    if (of < a.batch)
      m.places[which] = {int(attention_first(a, of)), rows_of(a.layout, of, a.frames),
                         attention_length(a, of)};
  }
  __device__ void enter() {
    length = place().length;
    end = ceil_div(length, kTile);
  }
  __device__ T* tile_of(T* memory, int number) const { return memory + number * kTileSize<kDim>; }
  // Of 16 queries.
  __device__ T* skewed_rows(int number) const { return m.skewed + number * (16 * kSkewedRow); }
  __device__ bool block_exists(int number) const { return number * 16 < length; }
  // Where the ring has the tile of positions that is `back` before the newest.
  __device__ int ring_slot(int back) const { return (ring - back) & (kResidentRing - 1); }
  // The two tiles of positions that this group's queries see.
  __device__ T* band_tile(int which) const { return tile_of(m.band, ring_slot(group + 1 - which)); }
  __device__ void copy_rows(T* tile, const void* from, const ResidentPlace& of, int number,
                            int stride) const {
    copy_tile<kDim>(tile, static_cast<const T*>(from) + size_t(of.first) * stride + head * kDim,
                    number * kTile, of.length, stride);
  }
  // Positions that key tile `number` and the first query begin with.
  __device__ void copy_band(int slot_of_ring, int number) const {
    copy_tile<kDim>(tile_of(m.band, slot_of_ring), static_cast<const T*>(a.p) + head * kDim,
                    a.frames - 1 + number * kTile, 2 * a.frames - 1, a.p_stride);
  }
  // What an item begins with, while the queries of the one before are in use.
  __device__ void copy_early(const ResidentPlace& of) const {
    const int dense = a.heads * kDim;
    copy_rows(tile_of(m.grads, group), b.grad_out, of, group, dense);
    // Where neither weights nor scores are yet; what an inactive group leaves there is zero.
    copy_rows(tile_of(m.weights, group), a.q, of, group, a.stride);
    copy_rows(tile_of(m.scores, group), a.out, of, group, dense);
    if (group == 0) copy_rows(m.keys, a.k, of, 0, a.stride);
    if (group == 1) copy_rows(m.values, a.v, of, 0, a.stride);
    copy_band(kResidentRing - 2 - group, -group - 1);
    if (group == 2) copy_band(kResidentRing - 1, 0);
  }
  __device__ void copy_early_of_next() const {
    if (item + items_apart() < a.batch) copy_early(m.places[turn ^ 1]);
  }
  // Of the next tile of keys, one tile for each group.
  __device__ void copy_next() const {
    if (jt + 1 >= end) return;
    if (group == 0) copy_rows(m.keys, a.k, place(), jt + 1, a.stride);
    if (group == 1) copy_rows(m.values, a.v, place(), jt + 1, a.stride);
    if (group == 2) copy_band(ring_slot(-1), jt + 1);
  }
  // What the next item begins with, a row after the other; every group has its share.
  __device__ void announce_next() const {
    if (item + items_apart() >= a.batch) return;
    const ResidentPlace& of = m.places[turn ^ 1];
    const int dense = a.heads * kDim, number = group * kTile + thread % kTile;
    if (thread < kTile) {
      announce(a.q, of, 0, a.stride, number);
      announce(b.grad_out, of, 0, dense, number);
    } else {
      announce(a.out, of, 0, dense, number);
      if (group < 2) announce(group == 0 ? a.k : a.v, of, 0, a.stride, thread % kTile);
    }
  }
  // Rows from `from` on of what is read later come near.
  __device__ void announce(const void* rows_of_all, const ResidentPlace& of, int from, int stride,
                           int number) const {
    if (from + number < of.length)
      prefetch(static_cast<const T*>(rows_of_all) + size_t(of.first + from + number) * stride +
               head * kDim);
  }

  // Products of the warp's queries with positions, as its group has made them with two tiles, by
  // key: row r (of 16), key j is position j - r + 16 of the warp's 80, which begin with
  // position 48 - 16 * kWarp of the 128. Half of the rows: r = lane / 4 + 8 * kHalf.
  template <int kWarp, int kHalf>
  __device__ static void place_rows(float* row, const FragmentC* products, int lane) {
    const FragmentC* const first = products + 6 - 2 * kWarp;
    const int g = lane / 4, t = lane % 4;
    // Position p lies at key p - 16 + 8 * kHalf; of the last eight of these a row sees some, and
    // the others 64 positions earlier.
    AERIE_UNROLL
    for (int k = 0; k < kTile / 8; ++k) {
      Pair x = {first[k + 2 - kHalf].v[2 * kHalf], first[k + 2 - kHalf].v[2 * kHalf + 1]};
      if (k == kTile / 8 - 1) {
        if (2 * t >= 8 - g) x.low = first[1 - kHalf].v[2 * kHalf];
        if (2 * t + 1 >= 8 - g) x.high = first[1 - kHalf].v[2 * kHalf + 1];
      }
      *reinterpret_cast<Pair*>(row + k * 8) = x;
    }
  }
  // The scores begin with them.
  template <int kHalf>
  __device__ void turn_products(FragmentC* scores, const FragmentC* products) const {
    const int g = lane / 4, t = lane % 4;
    float* const row =
        reinterpret_cast<float*>(tile_of(g < 4 ? m.weights : m.scores, group) + warp * 16 * kTile) +
        g % 4 * kTurningRow;
    __syncwarp();
    if (warp == 0) place_rows<0, kHalf>(row + 2 * t, products, lane);
    if (warp == 1) place_rows<1, kHalf>(row + 2 * t, products, lane);
    if (warp == 2) place_rows<2, kHalf>(row + 2 * t, products, lane);
    if (warp == 3) place_rows<3, kHalf>(row + 2 * t, products, lane);
    __syncwarp();
    AERIE_UNROLL
    for (int e = 0; e < 2; ++e) {
      const int at = 2 * t + e - g;
      scores[0].v[2 * kHalf + e] = row[at & (kTile - 1)];
      AERIE_UNROLL
      for (int n = 1; n < kTile / 8; ++n) scores[n].v[2 * kHalf + e] = row[at + n * 8];
    }
  }

  // A group's 64 rows of a gradient. Neighbours exchange values, so that both store 8 bytes.
  __device__ void store_rows(T* to, const FragmentC* grad, int number, float factor) const {
    const bool odd = lane % 2 != 0;
    AERIE_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int row = number * kTile + warp * 16 + lane / 4 + r * 8;
      T* const out =
          to + (first_row() + row) * b.grad_stride + head * kDim + (odd ? 8 : 0) + lane % 4 / 2 * 4;
      AERIE_UNROLL
      for (int n = 0; n < kDim / 8; n += 2) {
        const uint32_t x = pack<T>(grad[n].v[2 * r] * factor, grad[n].v[2 * r + 1] * factor);
        const uint32_t y =
            pack<T>(grad[n + 1].v[2 * r] * factor, grad[n + 1].v[2 * r + 1] * factor);
        const uint32_t other = __shfl_xor_sync(kFullWarp, odd ? x : y, 1);
        if (row >= rows()) continue;
        struct alignas(8) Words {
          uint32_t low, high;
        };
        *reinterpret_cast<Words*>(out + n * 8) = {odd ? other : x, odd ? y : other};
      }
    }
  }
  __device__ void store_zeros(void* to, int from) const {
    constexpr int kRowPieces = kDim / 8;
    const int count = rows() * kRowPieces;
    for (int e = from * kRowPieces + int(threadIdx.x); e < count; e += kResidentThreads)
      store16(static_cast<T*>(to) + (first_row() + e / kRowPieces) * b.grad_stride + head * kDim +
                  e % kRowPieces * 8,
              {});
  }

  // Sums over queries of the weights times the gradients of out, or of the scores' gradients times
  // the queries: of this tile of keys.
  template <bool kOfValues>
  __device__ void sum_keys() const {
    FragmentC grad[kDim / 8];
    T *const left = kOfValues ? m.weights : m.scores, *const right =
                                                          kOfValues ? m.grads : m.queries;
    group_begin<kDim>();
    group_turned<kDim, false>(grad, left, right, warp, lane);
    AERIE_UNROLL
    for (int i = 1; i < kResidentGroups; ++i)
      group_turned<kDim, true>(grad, tile_of(left, i), tile_of(right, i), warp, lane);
    group_commit<kDim>();
    group_wait<kDim>();
    group_ready<kDim>(grad);
    store_rows(static_cast<T*>(kOfValues ? b.grad_v : b.grad_k), grad, jt,
               kOfValues ? sqrtf(float(kDim)) : 1.0f);
  }
  // Sums over queries of the scores' gradients of this tile of keys.
  __device__ void sum_scores() const {
    // Chains that do not wait for each other.
    FragmentA d[kResidentGroups][kTile / 16];
    FragmentC sums[kTile / 16] = {};
    AERIE_UNROLL
    for (int i = 0; i < kResidentGroups; ++i) AERIE_UNROLL
    for (int k = 0; k < kTile / 16; ++k) d[i][k] = load_turned(tile_of(m.scores, i), warp, k, lane);
    AERIE_UNROLL
    for (int i = 0; i < kResidentGroups; ++i) AERIE_UNROLL
    for (int k = 0; k < kTile / 16; ++k) mma<T>(sums[k], d[i][k], ones<T>());
    if (lane % 4 == 0) {
      float* const out = m.sums + jt * kTile + warp * 16 + lane / 4;
      out[0] = (sums[0].v[0] + sums[1].v[0]) + (sums[2].v[0] + sums[3].v[0]);
      out[8] = (sums[0].v[2] + sums[1].v[2]) + (sums[2].v[2] + sums[3].v[2]);
    }
  }
  // Two columns of the warp's 16 keys.
  __device__ void load_keys(uint32_t* pairs) const {
    const int first = (group * kMmaWarps + warp) * 16, count = length - first;
    const T* keys =
        static_cast<const T*>(a.k) + (first_row() + first) * a.stride + head * kDim + lane * 2;
    AERIE_UNROLL
    for (int r = 0; r < 16; ++r, keys += a.stride) {
      pairs[r] = 0;
      if (r < count) pairs[r] = *reinterpret_cast<const uint32_t*>(keys);
    }
  }
  // Of the gradient of bias u: these times the sums of their scores' gradients.
  __device__ void sum_bias(float* sum, const uint32_t* pairs) const {
    const int first = (group * kMmaWarps + warp) * 16;
    AERIE_UNROLL
    for (int r = 0; r < 16; ++r) {
      const float weight = first + r < end * kTile ? m.sums[first + r] : 0.0f;
      sum[0] += weight * low_of<T>(pairs[r]);
      sum[1] += weight * high_of<T>(pairs[r]);
    }
  }

  // Gradients of the 64 positions from 64 * (number - 3) on.
  __device__ void sum_positions(int number) const {
    FragmentC grad[kDim / 8] = {};
    const int row = lane / 16 * 8 + lane % 8;  // a query whose positions this lane names
    // Of the items before; on its way while the products are made.
    Quad* const part = resident_part(b, slot, head, number) + thread;
    Quad before[kDim / 8];
    AERIE_UNROLL
    for (int n = 0; n < kDim / 8; ++n) {
      before[n] = {};
      if (item != slot) before[n] = part[n * kMmaThreads];
    }
    const SharedAddress zero = shared_address(m.zeros);
    const SharedAddress rows = shared_address(m.skewed + row * kSkewedRow + lane / 8 % 2 * 8);
    FragmentA d[kResidentGroups][kTile / 16];
    AERIE_UNROLL
    for (int i = 0; i < kResidentGroups; ++i) {
      // The tile of keys that these queries' positions begin with, in blocks of 16.
      const int first = (number - kResidentGroups + i) * (kTile / 16) + 1 + warp;
      AERIE_UNROLL
      for (int k = 0; k < kTile / 16; ++k) {
        const int block = i * (kTile / 16) + k;
        const bool inside =
            unsigned(first + k) <= unsigned(end * (kTile / 16)) && block_exists(block);
        const Bits16 x = load_matrices<true>(
            inside ? rows + block * (16 * kSkewedRow * 2) + (first + k) * 32 : zero);
        d[i][k] = {{x.w[0], x.w[1], x.w[2], x.w[3]}};
      }
    }
    if (length > 0) {  // otherwise nobody has written queries
      group_begin<kDim>();
      AERIE_UNROLL
      for (int i = 0; i < kResidentGroups; ++i)
        group_columns<kDim>(grad, d[i], tile_of(m.queries, i), lane);
      group_commit<kDim>();
      group_wait<kDim>();
      group_ready<kDim>(grad);
    }
    AERIE_UNROLL
    for (int n = 0; n < kDim / 8; ++n) {
      AERIE_UNROLL
      for (int e = 0; e < 4; ++e) before[n].v[e] += grad[n].v[e];
      part[n * kMmaThreads] = before[n];
    }
  }
};

// kDraw: the decisions of dropout are drawn again.
// sum_q, sum_u: of this item's gradients of queries and of bias u, two columns are added to them.
template <bool kDraw, typename T, int kDim>
__device__ inline void resident_item(ResidentBlock<T, kDim>& q, float* sum_q, float* sum_u) {
  static_assert(kGrouped<kDim>);
  const AttentionBackward& b = q.b;
  const Attention& a = q.a;
  const int lane = q.lane, warp = q.warp, g = lane / 4, t = lane % 4;
  const int it = q.group, i = it * kTile + warp * 16;
  T *const queries = q.tile_of(q.m.queries, q.group), *const grads = q.tile_of(q.m.grads, q.group);
  T* const weight_tile = q.tile_of(q.m.weights, q.group);
  T *const score_tile = q.tile_of(q.m.scores, q.group), *const outs = score_tile;
  T* const skewed = q.skewed_rows(q.group * kMmaWarps + warp);
  const bool active = it * kTile < q.length;  // any of the group's queries
  FragmentA with_v[kDim / 16];
  const float softmax_scale = 1.0f / sqrtf(float(kDim));
  const float drop_scale = a.dropout.threshold != 0 ? a.dropout.scale : 1.0f;
  const bool decided = !kDraw && a.dropout.threshold != 0;
  const uint32_t* decisions =
      decided ? a.keep + attention_keep_at(a, q.item, q.head, it * kMmaWarps + warp, 0) + lane
              : nullptr;
  const bool keeps = decided && i < q.length;
  float inner[2] = {0.0f, 0.0f}, log_sum[2] = {INFINITY, INFINITY};

  q.jt = 0;
  q.ring = kResidentRing - 1;
  const Bias<kDim> bias_u(a.bias_u + q.head * kDim, lane), bias_v(a.bias_v + q.head * kDim, lane);
  uint32_t next_keep = keeps ? *decisions : ~0u;
  AERIE_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = i + g + r * 8;
    if (row < q.length) log_sum[r] = a.log_sum[head_of(a, q.item, q.head) * a.frames + row];
  }
  q.announce(it == 0 ? a.k : a.v, q.place(), kTile, a.stride, it < 2 ? q.thread : kResidentFrames);
  // Positions that no key of a row has: before the first key, and behind the last.
  AERIE_UNROLL
  for (int e = 0; e < 2; ++e)
    *reinterpret_cast<Bits16*>(skewed + lane / 2 * kSkewedRow + lane % 2 * 8 +
                               e * q.end * kTile) = {};
  copy_wait();
  __syncthreads();
  {
    FragmentA with_u[kDim / 16];
    load_queries<kDim>(with_v, weight_tile, warp, lane);
    bias_u.template add<T>(with_u, with_v);
    bias_v.template add<T>(with_v, with_v);
    AERIE_UNROLL
    for (int k = 0; k < kDim / 16; ++k) store_block(queries, with_u[k], warp, k, lane);
  }
  group_publish<kDim>();
  AERIE_UNROLL
  for (int k = 0; k < kDim / 16; ++k) {
    const FragmentA mine = load_a<kDim>(outs, warp * 16, k, lane);
    const FragmentA grad = load_a<kDim>(grads, warp * 16, k, lane);
    AERIE_UNROLL
    for (int r = 0; r < 4; ++r)
      inner[r % 2] += low_of<T>(mine.r[r]) * low_of<T>(grad.r[r]) +
                      high_of<T>(mine.r[r]) * high_of<T>(grad.r[r]);
  }
  // Weights times both scales; scores' gradients of them, and of what goes through.
  AERIE_UNROLL
  for (int r = 0; r < 2; ++r) {
    inner[r] = quad_sum(inner[r]) / drop_scale;
    log_sum[r] = log_sum[r] * kLog2E - log2f(softmax_scale * drop_scale);
  }
  __syncthreads();

  const KeyTiles own = tiles_of(a, q.length, it);
  const float scale = kLog2E * softmax_scale;
  FragmentC grad_q[kDim / 8] = {};
  for (; q.jt < q.end; ++q.jt) {
    if (active) {
      uint32_t keep = next_keep;
      if (keeps && q.jt + 1 < q.end) next_keep = decisions[(q.jt + 1) * 32];
      T *const lower = q.band_tile(0), *const upper = q.band_tile(1);
      FragmentC scores[kTile / 8], d_weights[kTile / 8];
      {
        FragmentC products[2 * kTile / 8];
        group_begin<kDim>();
        group_rows<kDim, false>(products, with_v, lower, lane);
        group_rows<kDim, false>(products + kTile / 8, with_v, upper, lane);
        group_commit<kDim>();
        if constexpr (kDraw) {
          KeepDraw draws(a.dropout, q.item, q.head, i, lane);
          draws.draw(q.jt);
          keep = draws.finish(lane);
        }
        group_wait<kDim>();
        group_ready<kDim>(products);
        group_ready<kDim>(products + kTile / 8);
        q.template turn_products<0>(scores, products);
        q.template turn_products<1>(scores, products);
      }
      group_begin<kDim>();
      group_rows<kDim>(scores, queries, q.m.keys, warp, lane);
      group_rows<kDim, false>(d_weights, grads, q.m.values, warp, lane);
      group_commit<kDim>();
      group_wait<kDim>();
      group_ready<kDim>(scores);
      group_ready<kDim>(d_weights);
      if (q.jt * kTile < own.open || q.jt * kTile + kTile > own.close) {
        const KeyRange seen[2] = {keys_of(a, q.length, i + g), keys_of(a, q.length, i + g + 8)};
        mask_tile(scores, seen, q.jt, lane);
      }
      FragmentA weights[kTile / 16], d_scores[kTile / 16];
      __syncwarp();
      T* const along = skewed + g * kSkewedRow + q.jt * kTile + 16 + 2 * t - g;
      AERIE_UNROLL
      for (int k = 0; k < kTile / 16; ++k) {
        AERIE_UNROLL
        for (int n = 2 * k; n < 2 * k + 2; ++n) {
          float kept[4], d_score[4];
          AERIE_UNROLL
          for (int e = 0; e < 4; ++e) {
            const float weight = fast_exp2(scores[n].v[e] * scale - log_sum[e / 2]);
            kept[e] = bit_of(keep, n, e) ? weight : 0.0f;
            d_score[e] = kept[e] * d_weights[n].v[e] - weight * inner[e / 2];
          }
          AERIE_UNROLL
          for (int r = 0; r < 2; ++r) {
            weights[k].r[n % 2 * 2 + r] = pack<T>(kept[2 * r], kept[2 * r + 1]);
            const uint32_t pair = pack<T>(d_score[2 * r], d_score[2 * r + 1]);
            d_scores[k].r[n % 2 * 2 + r] = pair;
            along[r * 8 * (kSkewedRow - 1) + n * 8] = T{uint16_t(pair)};
            along[r * 8 * (kSkewedRow - 1) + n * 8 + 1] = T{uint16_t(pair >> 16)};
          }
        }
        store_block(score_tile, d_scores[k], warp, k, lane);
      }
      __syncwarp();
      // The warp's positions are 16 to 64 of 64 that come with the next 64; the 16 behind them are
      // complete with the next tile of keys.
      FragmentA skews[2 * kTile / 16];
      {
        const SharedAddress zero = shared_address(q.m.zeros);
        const SharedAddress from =
            shared_address(skewed + lane % 16 * kSkewedRow + q.jt * kTile + lane / 16 * 8);
        const unsigned count = kTile / 16 + (q.jt + 1 == q.end ? 1 : 0);
        AERIE_UNROLL
        for (int k = 0; k < 2 * kTile / 16; ++k) {
          const int number = k - 3 + warp;
          const Bits16 x =
              load_matrices<false>(unsigned(number) < count ? from + number * 32 : zero);
          skews[k] = {{x.w[0], x.w[1], x.w[2], x.w[3]}};
        }
      }
      group_begin<kDim>();
      group_columns<kDim>(grad_q, d_scores, q.m.keys, lane);
      group_columns<kDim>(grad_q, skews, lower, lane);
      group_columns<kDim>(grad_q, skews + kTile / 16, upper, lane);
      group_commit<kDim>();
      AERIE_UNROLL
      for (int k = 0; k < kTile / 16; ++k) store_block(weight_tile, weights[k], warp, k, lane);
      group_wait<kDim>();
      group_ready<kDim>(grad_q);
    }
    group_publish<kDim>();
    __syncthreads();
    q.copy_next();
    const int turn = (q.jt + q.group) % kResidentGroups;
    if (turn == 0) q.template sum_keys<true>();
    if (turn == 1) q.template sum_keys<false>();
    if (turn == 2) q.sum_scores();
    if (q.jt == 0) q.announce_next();
    copy_wait();
    group_publish<kDim>();
    __syncthreads();
    q.ring = q.ring_slot(-1);
  }
  uint32_t pairs[16];
  q.load_keys(pairs);
  q.copy_early_of_next();
  // Positions want the queries with their own bias.
  AERIE_UNROLL
  for (int k = 0; k < kDim / 16; ++k) store_block(queries, with_v[k], warp, k, lane);
  q.store_rows(static_cast<T*>(b.grad_q), grad_q, it, 1.0f);
  // Both biases' gradients together: sums over queries. A lane ends with two of the columns: of the
  // lanes that share columns, half hand over half of theirs, three times.
  float sum[kDim / 8][2];
  AERIE_UNROLL
  for (int n = 0; n < kDim / 8; ++n) AERIE_UNROLL
  for (int e = 0; e < 2; ++e) sum[n][e] = grad_q[n].v[e] + grad_q[n].v[e + 2];
  AERIE_UNROLL
  for (int half = kDim / 16; half > 0; half /= 2) {
    const bool second = (g & half) != 0;
    AERIE_UNROLL
    for (int n = 0; n < half; ++n) AERIE_UNROLL
    for (int e = 0; e < 2; ++e) {
      const float mine = second ? sum[n + half][e] : sum[n][e];
      const float other = second ? sum[n][e] : sum[n + half][e];
      sum[n][e] = mine + __shfl_xor_sync(kFullWarp, other, half * 4);
    }
  }
  sum_q[0] += sum[0][0];
  sum_q[1] += sum[0][1];
  q.sum_bias(sum_u, pairs);
}

template <typename T, int kDim, bool kDraw>
__global__ void __launch_bounds__(kResidentThreads, 1) attention_resident_mma(AttentionBackward b) {
  static_assert(kDim / 8 == 32 / 4);
  AERIE_DYNAMIC_SHARED(memory);
  const Attention& a = b.forward;
  {
    const ResidentBlock<T, kDim> q(b, memory, int(threadIdx.x));
    if (threadIdx.x < 2)
      q.find_place(int(threadIdx.x), q.slot + int(threadIdx.x) * q.items_apart());
    if (threadIdx.x == 2) *reinterpret_cast<Bits16*>(q.m.zeros) = {};
    __syncthreads();
    q.copy_early(q.place());
  }
  int turn = 0;
  float sums[2][2] = {};  // of the queries' gradients and of bias u's: a lane has two columns
  for (int item = int(blockIdx.y); item < a.batch; item += int(gridDim.y), turn ^= 1) {
    // What follows from the thread's number is not worth being kept from item to item.
    ResidentBlock<T, kDim> q(b, memory, forgotten(int(threadIdx.x)));
    q.item = item;
    q.turn = turn;
    q.enter();
    if (q.length > 0) {
      resident_item<kDraw>(q, sums[0], sums[1]);
    } else {
      copy_wait();      // what an empty item has begun with goes where the next one's does
      __syncthreads();  // and the next one's place is known
      q.copy_early_of_next();
    }
    group_publish<kDim>();
    __syncthreads();
    const int tiles = attention_tiles(a.frames);
    for (int number = q.group; number < kResidentTiles; number += kResidentGroups)
      if (number >= kResidentGroups - tiles && number < kResidentGroups + tiles)
        q.sum_positions(number);
    q.store_zeros(b.grad_q, q.length > 0 ? kResidentFrames : 0);
    q.store_zeros(b.grad_k, q.end * kTile);
    q.store_zeros(b.grad_v, q.end * kTile);
    __syncthreads();
    if (threadIdx.x == 0) q.find_place(turn, item + 2 * q.items_apart());
  }
  const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x / 32);
  float* const parts = reinterpret_cast<float*>(memory);  // of every warp
  AERIE_UNROLL
  for (int e = 0; e < 4; ++e)
    parts[warp * (2 * kDim) + e / 2 * kDim + lane * 2 + e % 2] = sums[e / 2][e % 2];
  __syncthreads();
  if (threadIdx.x >= kDim) return;
  float total[2] = {};  // both biases', and u's
  for (int w = 0; w < kResidentWarps; ++w) AERIE_UNROLL
  for (int e = 0; e < 2; ++e) total[e] += parts[w * (2 * kDim) + e * kDim + threadIdx.x];
  const int dense = a.heads * kDim;
  float* const out = b.partial + size_t(blockIdx.y) * dense + blockIdx.x * kDim + threadIdx.x;
  out[0] = total[1];
  out[size_t(gridDim.y) * dense] = total[0] - total[1];
}

// Adds what the blocks of a head have for positions, in their order.
constexpr int kPositionThreads = 256;
template <typename T, int kDim>
__global__ void __launch_bounds__(kPositionThreads)
    attention_add_positions(AttentionBackward b, int slots) {
  const Attention& a = b.forward;
  constexpr int kQuads = kTile * kDim / 4;
  static_assert(kQuads % kPositionThreads == 0);
  const int tiles = attention_tiles(a.frames), head = int(blockIdx.y);
  const int tile = int(blockIdx.x) / (kQuads / kPositionThreads) + kResidentGroups - tiles;
  const int at = int(blockIdx.x) % (kQuads / kPositionThreads) * kPositionThreads + threadIdx.x;
  const int n = at / kMmaThreads, lane = at % 32, warp = at / 32 % kMmaWarps;
  const Quad* const part = resident_part(b, 0, head, tile) + at;
  Quad sum = {};
  AERIE_UNROLL_BY(8)
  for (int slot = 0; slot < slots; ++slot) {
    const Quad more = part[size_t(slot) * a.heads * tiles * kQuads];
    AERIE_UNROLL
    for (int e = 0; e < 4; ++e) sum.v[e] += more.v[e];
  }
  AERIE_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = a.frames - 1 + (tile - kResidentGroups) * kTile + warp * 16 + lane / 4 + r * 8;
    if (row < 0 || row >= 2 * a.frames - 1) continue;
    *reinterpret_cast<uint32_t*>(static_cast<T*>(b.grad_p) + size_t(row) * b.grad_p_stride +
                                 head * kDim + n * 8 + lane % 4 * 2) =
        pack<T>(sum.v[2 * r], sum.v[2 * r + 1]);
  }
}

}  // namespace aerie::kernels::AERIE_BACKEND
