// Backward on tensor cores for 65 to 192 frames and 64 values per head, included by attention.cu
// alone: weights and gradients of scores never leave the multiprocessor. A block takes one head of
// one item after the other; each of its three groups of four warps has 64 queries. It walks over
// tiles of 64 keys: the groups make weights and gradients of scores of their queries as forward
// does, leave them in shared memory as blocks of 16 x 16, and share the sums over queries: of every
// tile of keys, one group makes the gradients of the values, another those of the keys.
//
// The gradients of scores are kept by relative position too, in columns of 16 positions; behind the
// last tile of keys every group makes the gradients of two tiles of positions. Parts of the block's
// items are added in device memory, always by the same thread; a second kernel adds the blocks'.
#pragma once

#include "aerie/kernels/attention/attention_mma.h"

namespace aerie::kernels::AERIE_BACKEND {

constexpr int kResidentGroups = 3;
constexpr int kResidentThreads = kResidentGroups * kMmaThreads;
constexpr int kResidentFrames = kAttentionResidentFrames;
static_assert(kResidentFrames == kResidentGroups * kTile);
constexpr int kResidentRing = kResidentGroups + 1;     // tiles of p that are in use
constexpr int kResidentBlocks = kResidentFrames / 16;  // of queries or keys
constexpr int kResidentColumns = kResidentBlocks + 1;  // of positions, for 16 queries
constexpr int kResidentTiles = 2 * kResidentGroups;    // of positions
constexpr int kResidentWarps = kResidentThreads / 32;

// A warp's 16 x 16 values in shared memory: four matrices of 8 x 8, so that they can be read the
// other way round.
template <typename T>
__device__ inline void store_block(T* block, const FragmentA& a, int lane) {
  AERIE_UNROLL
  for (int r = 0; r < 4; ++r) memcpy(block + r * 64 + lane * 2, &a.r[r], 4);
}
template <typename T>
__device__ inline FragmentA load_block_transposed(const T* block, int lane) {
  const int matrix = lane / 8 % 2 * 2 + lane / 16;  // the second and third change places
  const Bits16 m = load_matrices<true>(shared_address(block) + matrix * 128 + lane % 8 * 16);
  return {{m.w[0], m.w[1], m.w[2], m.w[3]}};
}

template <typename T, int kDim>
struct ResidentMemory {
  T *queries, *grads;            // tiles of the groups: q + u; gradients of out
  T *keys, *values;              // the current tile
  T* band;                       // a ring of tiles of p
  T *weights, *scores, *skewed;  // blocks of every 16 queries: of the tile's keys; by position
  float* difference;             // v - u
  float* sums;                   // of the scores' gradients of every key
  float* totals;                 // of all items: sums of the queries' gradients, and bias u's
  int* place;                    // the item's first row, how many it has

  __device__ explicit ResidentMemory(unsigned char* bytes)
      : queries(reinterpret_cast<T*>(bytes)),
        grads(queries + kResidentGroups * kTileSize<kDim>),
        keys(grads + kResidentGroups * kTileSize<kDim>),
        values(keys + kTileSize<kDim>),
        band(values + kTileSize<kDim>),
        weights(band + kResidentRing * kTileSize<kDim>),
        scores(weights + kResidentFrames * kTile),
        skewed(scores + kResidentFrames * kTile),
        difference(reinterpret_cast<float*>(skewed + kResidentBlocks * kResidentColumns * 256)),
        sums(difference + kDim),
        totals(sums + kResidentFrames),
        place(reinterpret_cast<int*>(totals + 2 * kDim)) {}
};
template <int kDim>
constexpr size_t resident_shared() {
  return sizeof(uint16_t) *
             ((2 * kResidentGroups + 2 + kResidentRing) * kTileSize<kDim> +
              2 * kResidentFrames * kTile + kResidentBlocks * kResidentColumns * 256) +
         sizeof(float) * (3 * kDim + kResidentFrames + 4);
}

// Where the gradients of 64 positions of a block wait, in the order of a group's threads: the
// scratch memory of the two squares is free.
__device__ inline Quad* resident_part(const AttentionBackward& b, int slot, int head, int number) {
  const Attention& a = b.forward;
  const int tiles = attention_tiles(a.frames), k = number - (kResidentGroups - tiles);
  return reinterpret_cast<Quad*>(k < tiles ? b.weights : b.grad_scores) +
         (head_of(a, slot, head) * tiles + size_t(k % tiles)) * (kTile * kAttentionResidentDim / 4);
}

template <typename T, int kDim>
struct ResidentBlock {
  const AttentionBackward& b;
  const Attention& a;
  ResidentMemory<T, kDim> m;
  int lane, warp, group, thread;  // the last three within their group of warps
  int head, slot;
  int item, length, end;  // end: of the tiles of keys
  int jt = 0, ring = 0;

  __device__ ResidentBlock(const AttentionBackward& back, unsigned char* bytes, int of, int number)
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
        item(of),
        length(attention_length(a, of)),
        end(ceil_div(length, kTile)) {}

  __device__ size_t first_row() const { return size_t(m.place[forgotten(0)]); }
  __device__ int rows() const { return m.place[forgotten(1)]; }
  __device__ T* tile_of(T* memory, int number) const { return memory + number * kTileSize<kDim>; }
  __device__ T* block_of(T* memory, int row, int column) const {
    return memory + (row * (kTile / 16) + column) * 256;
  }
  __device__ T* skewed_block(int row, int column) const {
    return m.skewed + (row * kResidentColumns + column) * 256;
  }
  __device__ bool block_exists(int number) const { return number * 16 < length; }
  // Where the ring has the tile of positions that is `back` before the newest.
  __device__ int ring_slot(int back) const { return (ring - back) & (kResidentRing - 1); }
  __device__ Band<kDim, kResidentRing> band() const {
    return {m.band, ring_slot(group + 1) * kTile + 48 - 16 * warp};
  }
  __device__ void copy_rows(T* tile, const void* from, size_t row, int number, int stride) const {
    copy_tile<kDim>(tile, static_cast<const T*>(from) + row * stride + head * kDim, number * kTile,
                    length, stride);
  }
  // Positions that key tile `number` and the first query begin with.
  __device__ void copy_band(int place, int number) const {
    copy_tile<kDim>(tile_of(m.band, place), static_cast<const T*>(a.p) + head * kDim,
                    a.frames - 1 + number * kTile, 2 * a.frames - 1, a.p_stride);
  }
  // Of the next tile of keys, one tile for each group.
  __device__ void copy_next() const {
    if (jt + 1 >= end) return;
    if (group == 0) copy_rows(m.keys, a.k, first_row(), jt + 1, a.stride);
    if (group == 1) copy_rows(m.values, a.v, first_row(), jt + 1, a.stride);
    if (group == 2) copy_band(ring_slot(-1), jt + 1);
    copy_commit();
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
  __device__ void sum_keys(bool of_values) {
    FragmentC grad[kDim / 8] = {}, sums = {};
    T* const blocks = of_values ? m.weights : m.scores;
    FragmentA d[kResidentGroups][kTile / 16];
    AERIE_UNROLL
    for (int i = 0; i < kResidentGroups; ++i) {
      AERIE_UNROLL
      for (int k = 0; k < kTile / 16; ++k) {
        d[i][k] = {};
        if (block_exists(i * (kTile / 16) + k))
          d[i][k] = load_block_transposed(block_of(blocks, i * (kTile / 16) + k, warp), lane);
      }
      group_begin<kDim>();
      group_columns<kDim>(grad, d[i], tile_of(of_values ? m.grads : m.queries, i), lane);
      group_commit<kDim>();
    }
    AERIE_UNROLL
    for (int i = 0; i < kResidentBlocks; ++i)
      mma<T>(sums, d[i / (kTile / 16)][i % (kTile / 16)], ones<T>());
    if (!of_values && lane % 4 == 0) {
      m.sums[jt * kTile + warp * 16 + lane / 4] = sums.v[0];
      m.sums[jt * kTile + warp * 16 + lane / 4 + 8] = sums.v[2];
    }
    group_wait<kDim>();
    group_ready<kDim>(grad);
    const float factor = of_values && a.dropout.threshold != 0 ? a.dropout.scale : 1.0f;
    store_rows(static_cast<T*>(of_values ? b.grad_v : b.grad_k), grad, jt, factor);
  }

  // Gradients of the 64 positions from 64 * (number - 3) on.
  __device__ void sum_positions(int number) const {
    FragmentC grad[kDim / 8] = {}, sums = {};
    AERIE_UNROLL_BY(1)
    for (int i = 0; i < kResidentGroups; ++i) {
      const int step = number - kResidentGroups + i;  // positions begin with this tile of keys
      if (step < -1 || step >= end || i * kTile >= length) continue;
      FragmentA d[kTile / 16];
      AERIE_UNROLL
      for (int k = 0; k < kTile / 16; ++k) {
        const int column = step * (kTile / 16) + 1 + warp + k, row = i * (kTile / 16) + k;
        d[k] = {};
        if (column >= 0 && column <= end * (kTile / 16) && block_exists(row))
          d[k] = load_block_transposed(skewed_block(row, column), lane);
      }
      group_begin<kDim>();
      group_columns<kDim>(grad, d, tile_of(m.queries, i), lane);
      group_commit<kDim>();
      AERIE_UNROLL
      for (int k = 0; k < kTile / 16; ++k) mma<T>(sums, d[k], ones<T>());
      group_wait<kDim>();
      group_ready<kDim>(grad);
    }
    Quad* const part = resident_part(b, slot, head, number) + thread;
    AERIE_UNROLL
    for (int n = 0; n < kDim / 8; ++n) {
      const Pair d = *reinterpret_cast<const Pair*>(m.difference + n * 8 + lane % 4 * 2);
      Quad x = {{grad[n].v[0] + sums.v[0] * d.low, grad[n].v[1] + sums.v[0] * d.high,
                 grad[n].v[2] + sums.v[2] * d.low, grad[n].v[3] + sums.v[2] * d.high}};
      if (item != slot) {
        const Quad more = part[n * kMmaThreads];
        AERIE_UNROLL
        for (int e = 0; e < 4; ++e) x.v[e] += more.v[e];
      }
      part[n * kMmaThreads] = x;
    }
  }
  // Of the gradient of the bias u, two columns: the keys times the sums of their scores' gradients.
  __device__ void sum_bias(float* sum) const {
    const int first = (group * kMmaWarps + warp) * 16;
    const T* const keys = static_cast<const T*>(a.k) + first_row() * a.stride + head * kDim;
    AERIE_UNROLL
    for (int r = 0; r < 16; ++r) {
      if (first + r >= length) continue;
      const uint32_t pair =
          *reinterpret_cast<const uint32_t*>(keys + size_t(first + r) * a.stride + lane * 2);
      sum[0] += m.sums[first + r] * low_of<T>(pair);
      sum[1] += m.sums[first + r] * high_of<T>(pair);
    }
  }
};

// kDraw: the decisions of dropout are drawn again.
// sum_q: of this item's gradients of queries, two columns are added to it.
template <bool kDraw, typename T, int kDim>
__device__ inline void resident_item(ResidentBlock<T, kDim>& q, size_t first_row, float* sum_q) {
  static_assert(kGrouped<kDim>);
  const AttentionBackward& b = q.b;
  const Attention& a = q.a;
  const int lane = q.lane, warp = q.warp, g = lane / 4, dense = a.heads * kDim;
  const int it = q.group, i = it * kTile + warp * 16, row_block = q.group * kMmaWarps + warp;
  T *const queries = q.tile_of(q.m.queries, q.group), *const grads = q.tile_of(q.m.grads, q.group);
  T* const outs = q.tile_of(q.m.weights, q.group);  // every warp's lie where its blocks will
  const bool exists = i < q.length;                 // any of the warp's queries
  FragmentA with_v[kDim / 16];
  const float softmax_scale = 1.0f / sqrtf(float(kDim));
  float inner[2] = {0.0f, 0.0f}, log_sum[2] = {INFINITY, INFINITY};

  q.jt = 0;
  q.ring = kResidentRing - 1;
  q.copy_rows(queries, a.q, first_row, it, a.stride);
  q.copy_band(q.ring_slot(q.group + 1), -q.group - 1);
  if (q.group == 0) q.copy_band(q.ring_slot(0), 0);
  copy_commit();
  if (q.group == 0) q.copy_rows(q.m.keys, a.k, first_row, 0, a.stride);
  if (q.group == 1) q.copy_rows(q.m.values, a.v, first_row, 0, a.stride);
  q.copy_rows(grads, b.grad_out, first_row, it, dense);
  q.copy_rows(outs, a.out, first_row, it, dense);
  copy_commit();
  AERIE_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = i + g + r * 8;
    if (row < q.length)
      log_sum[r] = a.log_sum[head_of(a, q.item, q.head) * a.frames + row] * kLog2E;
  }
  {
    const Bias<kDim> bias_u(a.bias_u + q.head * kDim, lane), bias_v(a.bias_v + q.head * kDim, lane);
    FragmentA with_u[kDim / 16];
    copy_wait_but<1>();
    __syncthreads();
    load_queries<kDim>(with_v, queries, warp, lane);
    bias_u.template add<T>(with_u, with_v);
    bias_v.template add<T>(with_v, with_v);
    store_queries<kDim>(queries, with_u, warp, lane);
  }
  copy_wait();
  group_publish<kDim>();
  __syncthreads();
  AERIE_UNROLL
  for (int k = 0; k < kDim / 16; ++k) {
    const FragmentA mine = load_a<kDim>(outs, warp * 16, k, lane);
    const FragmentA grad = load_a<kDim>(grads, warp * 16, k, lane);
    AERIE_UNROLL
    for (int r = 0; r < 4; ++r)
      inner[r % 2] += low_of<T>(mine.r[r]) * low_of<T>(grad.r[r]) +
                      high_of<T>(mine.r[r]) * high_of<T>(grad.r[r]);
  }
  AERIE_UNROLL
  for (int r = 0; r < 2; ++r) inner[r] = quad_sum(inner[r]) * softmax_scale;

  const KeyTiles own = tiles_of(a, q.length, it);
  const float scale = kLog2E * softmax_scale;
  const float kept = softmax_scale * (a.dropout.threshold != 0 ? a.dropout.scale : 1.0f);
  FragmentC grad_q[kDim / 8] = {};
  FragmentA carried = {};  // a block by position that the next tile of keys completes
  for (; q.jt < q.end; ++q.jt) {
    const Skew skew = skew_of(forgotten(lane));
    FragmentA d_scores[kTile / 16] = {};
    if (it * kTile < q.length) {
      uint32_t keep = ~0u, visible = ~0u;
      if (!kDraw && a.dropout.threshold != 0 && exists)
        keep = a.keep[attention_keep_at(a, q.item, q.head, i / 16, q.jt) + lane];
      FragmentC scores[kTile / 8] = {}, d_weights[kTile / 8] = {};
      group_begin<kDim>();
      group_rows<kDim>(d_weights, grads, q.m.values, warp, lane);
      group_commit<kDim>();
      Relative<T, kDim, kResidentRing> relative(with_v, q.band(), skew, lane);
      AERIE_UNROLL
      for (int n = 0; n < kTile / 8; ++n) scores[n] = relative.scores(n);
      group_begin<kDim>();
      group_rows<kDim>(scores, queries, q.m.keys, warp, lane);
      group_commit<kDim>();
      if constexpr (kDraw) {
        KeepDraw draws(a.dropout, q.item, q.head, i, lane);
        draws.draw(q.jt);
        keep = draws.finish(lane);
      }
      if (q.jt * kTile < own.open || q.jt * kTile + kTile > own.close) {
        const KeyRange seen[2] = {keys_of(a, q.length, i + g), keys_of(a, q.length, i + g + 8)};
        visible = seen_bits(seen, q.jt, lane);
      }
      group_wait<kDim>();
      group_ready<kDim>(scores);
      group_ready<kDim>(d_weights);
      AERIE_UNROLL
      for (int k = 0; k < kTile / 16; ++k) {
        FragmentA weights;
        AERIE_UNROLL
        for (int n = 2 * k; n < 2 * k + 2; ++n) {
          float weight[4], d_score[4];
          AERIE_UNROLL
          for (int e = 0; e < 4; ++e) {
            weight[e] = fast_exp2(scores[n].v[e] * scale - log_sum[e / 2]);
            const float through = bit_of(keep, n, e) ? d_weights[n].v[e] : 0.0f;
            d_score[e] = weight[e] * (through * kept - inner[e / 2]);
          }
          AERIE_UNROLL
          for (int r = 0; r < 2; ++r) {
            weights.r[n % 2 * 2 + r] =
                pack<T>(weight[2 * r], weight[2 * r + 1]) & pair_mask(keep & visible, n, r);
            d_scores[k].r[n % 2 * 2 + r] =
                pack<T>(d_score[2 * r], d_score[2 * r + 1]) & pair_mask(visible, n, r);
          }
        }
        store_block(q.block_of(q.m.weights, row_block, k), weights, lane);
        store_block(q.block_of(q.m.scores, row_block, k), d_scores[k], lane);
      }
      if (exists) {
        // Row r, column c of the band is key c + r - 16.
        const Band<kDim, kResidentRing> band = q.band();
        const auto at = [&](int n, int r) {
          return n >= 0 && n < kTile / 8 ? d_scores[n / 2].r[n % 2 * 2 + r] : 0u;
        };
        const auto along = [&](int n, int r) { return move_left(skew, at(n, r), at(n + 1, r)); };
        const auto use = [&](const FragmentA& skewed, int k) {
          multiply_columns<kDim, T>(grad_q, skewed, band.at(k * 16), lane);
          store_block(q.skewed_block(row_block, q.jt * (kTile / 16) + k), skewed, lane);
        };
        AERIE_UNROLL
        for (int k = 0; k < kTile / 16; ++k) {
          FragmentA skewed = {{k > 0 ? along(2 * k - 2, 0) : 0u, along(2 * k - 1, 1),
                               along(2 * k - 1, 0), along(2 * k, 1)}};
          AERIE_UNROLL
          for (int r = 0; r < 4 && k == 0; ++r) skewed.r[r] |= carried.r[r];
          use(skewed, k);
        }
        constexpr int kLast = kTile / 8 - 2;
        carried = {{along(kLast, 0), along(kLast + 1, 1), along(kLast + 1, 0), 0u}};
        if (q.jt + 1 == q.end) use(carried, kTile / 16);
      }
      group_begin<kDim>();
      group_columns<kDim>(grad_q, d_scores, q.m.keys, lane);
      group_commit<kDim>();
      group_wait<kDim>();
      group_ready<kDim>(grad_q);
    }
    __syncthreads();
    q.copy_next();
    const int turn = (q.jt + q.group) % kResidentGroups;
    if (turn < 2) q.sum_keys(turn == 0);
    copy_wait();
    group_publish<kDim>();
    __syncthreads();
    q.ring = q.ring_slot(-1);
  }
  q.store_rows(static_cast<T*>(b.grad_q), grad_q, it, 1.0f);
  // Both biases' gradients together: sums over queries. Every lane keeps two of the columns.
  AERIE_UNROLL
  for (int n = 0; n < kDim / 8; ++n) AERIE_UNROLL
  for (int e = 0; e < 2; ++e) {
    float sum = grad_q[n].v[e] + grad_q[n].v[e + 2];
    AERIE_UNROLL
    for (int mask = 4; mask < 32; mask *= 2) sum += __shfl_xor_sync(kFullWarp, sum, mask);
    if (g == n) sum_q[e] += sum;
  }
}

template <typename T, int kDim, bool kDraw>
__global__ void __launch_bounds__(kResidentThreads, 1) attention_resident_mma(AttentionBackward b) {
  static_assert(kDim / 8 == 32 / 4);
  AERIE_DYNAMIC_SHARED(memory);
  const Attention& a = b.forward;
  for (int item = int(blockIdx.y); item < a.batch; item += int(gridDim.y)) {
    // What follows from the thread's number is not worth being kept from item to item.
    const int thread = forgotten(int(threadIdx.x));
    ResidentBlock<T, kDim> q(b, memory, item, thread);
    const size_t first_row = attention_first(a, q.item);
    __syncthreads();
    if (thread < kDim)
      q.m.difference[thread] = a.bias_v[q.head * kDim + thread] - a.bias_u[q.head * kDim + thread];
    if (thread == kDim) {
      q.m.place[0] = int(first_row);
      q.m.place[1] = rows_of(a.layout, q.item, a.frames);
    }
    if (thread < 2 * kDim && item == q.slot) q.m.totals[thread] = 0.0f;
    if (q.length > 0) {
      float sums[2][2] = {};  // a lane has two columns
      resident_item<kDraw>(q, first_row, sums[0]);
      q.sum_bias(sums[1]);
      float* const parts = reinterpret_cast<float*>(q.m.weights);  // of every warp
      AERIE_UNROLL
      for (int e = 0; e < 4; ++e)
        parts[thread / 32 * (2 * kDim) + e / 2 * kDim + q.lane * 2 + e % 2] = sums[e / 2][e % 2];
    }
    __syncthreads();
    if (q.length > 0 && thread < 2 * kDim) {
      float sum = q.m.totals[thread];
      for (int w = 0; w < kResidentWarps; ++w)
        sum += reinterpret_cast<const float*>(q.m.weights)[w * (2 * kDim) + thread];
      q.m.totals[thread] = sum;
    }
    const int tiles = attention_tiles(a.frames);
    for (int number = q.group; number < kResidentTiles; number += kResidentGroups)
      if (number >= kResidentGroups - tiles && number < kResidentGroups + tiles)
        q.sum_positions(number);
    q.store_zeros(b.grad_q, q.length > 0 ? kResidentFrames : 0);
    q.store_zeros(b.grad_k, q.end * kTile);
    q.store_zeros(b.grad_v, q.end * kTile);
  }
  __syncthreads();
  if (threadIdx.x >= kDim) return;
  const float* const totals = ResidentMemory<T, kDim>(memory).totals + threadIdx.x;
  const int dense = a.heads * kDim;
  float* const out = b.partial + size_t(blockIdx.y) * dense + blockIdx.x * kDim + threadIdx.x;
  out[0] = totals[kDim];
  out[size_t(gridDim.y) * dense] = totals[0] - totals[kDim];
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
