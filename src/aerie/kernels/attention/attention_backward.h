// Backward on tensor cores, included by attention.cu alone. One kernel walks over the keys of 64
// queries as forward does: it makes the gradients of the queries, and leaves weights and gradients
// of the scores (by key, and by relative position) in scratch memory. A second one makes sums over
// queries of these: gradients of keys, of values and of positions, each block for 64 keys of one
// item or 64 relative positions of a group of items. The last group that comes adds all groups.
//
// Gradients of scores include the softmax's scale. The biases' gradients need no sums of
// their own: that of u is the sum over keys of (sum over queries of the score's gradient) * key,
// that of v the same over positions.
#pragma once

#include "aerie/kernels/attention/attention_mma.h"

namespace aerie::kernels::AERIE_BACKEND {

// kDraw: the decisions of dropout are drawn again.
template <typename T, int kDim, bool kDraw>
__global__ void __launch_bounds__(kMmaThreads, kQueryBlocks<kDim, true>)
    attention_query_grad_mma(AttentionBackward b) {
  AERIE_DYNAMIC_SHARED(memory);
  const Attention& a = b.forward;
  // The biases need no length: they are on their way first.
  const Bias<kDim> bias_u(a.bias_u + int(blockIdx.y) * kDim, int(threadIdx.x % 32));
  const Bias<kDim> bias_v(a.bias_v + int(blockIdx.y) * kDim, int(threadIdx.x % 32));
  QueryBlock<T, kDim, true> q(a, memory);
  const int lane = q.lane, g = lane / 4, t = lane % 4, dense = a.heads * kDim;
  const size_t dense_base = q.first_row * dense + size_t(q.head) * kDim;
  const Skew skew = skew_of(lane);
  FragmentA with_u[kDim / 16], with_v[kDim / 16], grads[kDim / 16];
  FragmentC grad_q[kDim / 8] = {};
  const float softmax_scale = 1.0f / sqrtf(float(kDim));
  float inner[2] = {0.0f, 0.0f}, log_sum[2] = {INFINITY, INFINITY};
  if (q.item == 0 && threadIdx.x < 2)
    *attention_counters(b, q.head, 2 * q.it + int(threadIdx.x)) = 0;
  T* const outs = q.band_tile(2);  // needed for the next tile of keys only
  if (q.jt < q.tiles.end) {
    const auto copy = [&](T* tile, const void* from) {
      copy_tile<kDim>(tile, static_cast<const T*>(from) + dense_base, q.it * kTile, q.length,
                      dense);
    };
    copy_tile<kDim>(q.queries, static_cast<const T*>(a.q) + q.base_of(a), q.it * kTile, q.length,
                    a.stride);
    q.copy_first(a);
    copy(q.grads, b.grad_out);
    copy(outs, a.out);
    copy_commit();
    AERIE_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int row = q.i + g + r * 8;
      if (row < q.length)
        log_sum[r] = a.log_sum[head_of(a, q.item, q.head) * a.frames + row] * kLog2E;
    }
    copy_wait_but<2>();
    __syncthreads();
    load_queries<kDim>(with_v, q.queries, q.warp, lane);
    bias_u.template add<T>(with_u, with_v);
    bias_v.template add<T>(with_v, with_v);
    if (kGrouped<kDim>) store_queries<kDim>(q.queries, with_u, q.warp, lane);
  }
  const KeyRange seen[2] = {keys_of(a, q.length, q.i + g), keys_of(a, q.length, q.i + g + 8)};
  const float scale = kLog2E * softmax_scale;
  const float kept = softmax_scale * (a.dropout.threshold != 0 ? a.dropout.scale : 1.0f);
  const uint32_t* const decisions =
      a.dropout.threshold != 0 && a.keep != nullptr
          ? a.keep + attention_keep_at(a, q.item, q.head, q.i / 16, 0) + lane
          : nullptr;
  const int blocks = attention_blocks(a.frames);
  const size_t first_block =
      attention_block_at(a, q.item, q.head, q.i / 16, blocks) + size_t(lane) * 8;
  T* const skewed_blocks = static_cast<T*>(b.grad_skewed) +
                           attention_block_at(a, q.item, q.head, q.i / 16, blocks + 1) +
                           size_t(lane) * 8;
  FragmentA carried = {};              // a skewed block that the next tile of keys completes
  const bool exists = q.i < q.length;  // any of the warp's queries; other blocks are not read
  for (bool first = true; q.jt < q.tiles.end; q.advance(), first = false) {
    if (!first) q.copy_next(a);
    const T *keys = q.current(q.keys), *values = q.current(q.values);
    uint32_t keep = ~0u, visible = ~0u;
    if (!kDraw && decisions != nullptr) keep = decisions[q.jt * 32];
    FragmentC scores[kTile / 8] = {}, d_weights[kGrouped<kDim> ? kTile / 8 : 1] = {};
    if (exists) {
      Relative<T, kDim> relative(with_v, q.current_band(), skew, lane);
      AERIE_UNROLL
      for (int n = 0; n < kTile / 8; ++n) scores[n] = relative.scores(n);
    }
    if (first) {
      copy_wait();
      group_publish<kDim>();
      __syncthreads();
      load_queries<kDim>(grads, q.grads, q.warp, lane);
      AERIE_UNROLL
      for (int k = 0; k < kDim / 16; ++k) {
        const FragmentA mine = load_a<kDim>(outs, q.warp * 16, k, lane);
        AERIE_UNROLL
        for (int r = 0; r < 4; ++r)
          inner[r % 2] += low_of<T>(mine.r[r]) * low_of<T>(grads[k].r[r]) +
                          high_of<T>(mine.r[r]) * high_of<T>(grads[k].r[r]);
      }
      AERIE_UNROLL
      for (int r = 0; r < 2; ++r) inner[r] = quad_sum(inner[r]) * softmax_scale;
      __syncthreads();
      q.copy_next(a);
    }
    if (!kGrouped<kDim> && !exists) continue;
    group_begin<kDim>();
    if constexpr (kGrouped<kDim>) {
      group_rows<kDim>(d_weights, q.grads, values, q.warp, lane);
      group_rows<kDim>(scores, q.queries, keys, q.warp, lane);
    } else {
      group_rows<kDim>(scores, with_u, keys, lane);
    }
    group_commit<kDim>();
    if constexpr (kDraw) {
      KeepDraw draws(a.dropout, q.item, q.head, q.i, lane);
      draws.draw(q.jt);
      keep = draws.finish(lane);
    }
    if (q.needs_mask()) visible = seen_bits(seen, q.jt, lane);
    group_wait<kDim>();
    group_ready<kDim>(scores);
    group_ready<kDim>(d_weights);
    // Gradients of the scores, two values per register: [C tile][upper or lower row].
    uint32_t d[kTile / 8][2] = {}, weights[2][2];
    AERIE_UNROLL
    for (int n = 0; n < kTile / 8 && exists; ++n) {
      FragmentC d_weight = {};
      if constexpr (kGrouped<kDim>) {
        d_weight = d_weights[n];
      } else {
        multiply_rows<kDim>(d_weight, grads, values, n * 8, lane);
      }
      float weight[4], d_score[4];
      AERIE_UNROLL
      for (int e = 0; e < 4; ++e) {
        weight[e] = fast_exp2(scores[n].v[e] * scale - log_sum[e / 2]);
        const float through = bit_of(keep, n, e) ? d_weight.v[e] : 0.0f;
        d_score[e] = weight[e] * (through * kept - inner[e / 2]);
      }
      AERIE_UNROLL
      for (int r = 0; r < 2; ++r) {
        weights[n % 2][r] =
            pack<T>(weight[2 * r], weight[2 * r + 1]) & pair_mask(keep & visible, n, r);
        d[n][r] = pack<T>(d_score[2 * r], d_score[2 * r + 1]) & pair_mask(visible, n, r);
      }
      if (n % 2 == 0) continue;
      const size_t at = first_block + size_t(q.jt * (kTile / 16) + n / 2) * 256;
      store16(static_cast<T*>(b.weights) + at,
              {{weights[0][0], weights[0][1], weights[1][0], weights[1][1]}});
      store16(static_cast<T*>(b.grad_scores) + at, {{d[n - 1][0], d[n - 1][1], d[n][0], d[n][1]}});
    }
    FragmentA d_scores[kTile / 16];
    AERIE_UNROLL
    for (int k = 0; k < kTile / 16; ++k)
      d_scores[k] = {{d[2 * k][0], d[2 * k][1], d[2 * k + 1][0], d[2 * k + 1][1]}};
    group_begin<kDim>();
    group_columns<kDim>(grad_q, d_scores, keys, lane);
    group_commit<kDim>();
    group_wait<kDim>();
    group_ready<kDim>(grad_q);
    if (!exists) continue;
    const Band<kDim> band = q.current_band();
    // Row r, column c of the band is key c + r - 16.
    const auto along = [&](int n, int r) {
      return move_left(skew, n >= 0 && n < kTile / 8 ? d[n][r] : 0u,
                       n + 1 >= 0 && n + 1 < kTile / 8 ? d[n + 1][r] : 0u);
    };
    const auto use = [&](const FragmentA& skewed, int k) {
      multiply_columns<kDim, T>(grad_q, skewed, band.at(k * 16), lane);
      store16(skewed_blocks + size_t(q.jt * (kTile / 16) + k) * 256,
              {{skewed.r[0], skewed.r[1], skewed.r[2], skewed.r[3]}});
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
    if (q.jt + 1 == q.tiles.end) use(carried, kTile / 16);
  }
  const int rows = rows_of(a.layout, q.item, a.frames);
  AERIE_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = q.i + g + r * 8;
    if (row >= rows) continue;
    T* out =
        static_cast<T*>(b.grad_q) + (q.first_row + row) * b.grad_stride + q.head * kDim + 2 * t;
    AERIE_UNROLL
    for (int n = 0; n < kDim / 8; ++n)
      *reinterpret_cast<uint32_t*>(out + n * 8) =
          pack<T>(grad_q[n].v[2 * r], grad_q[n].v[2 * r + 1]);
  }
}

// A block of 16 x 16 values, stored as A, the other way round.
__device__ inline FragmentA transposed(const Bits16& m) {
  return {{transpose_matrix(m.w[0]), transpose_matrix(m.w[2]), transpose_matrix(m.w[1]),
           transpose_matrix(m.w[3])}};
}

// Shared memory of the second kernel: three stages of queries or gradients and of blocks of weights
// or scores' gradients. Behind the last of them a stage takes the rows (keys or positions) whose
// sum is a bias's gradient, the next one serves that sum.
constexpr int kSumStages = 3;
template <typename T, int kDim>
struct SumStages {
  static constexpr int kCount = kSumStages, kSize = kTileSize<kDim> + kTile * kTile;
  T* memory;
  __device__ explicit SumStages(unsigned char* bytes) : memory(reinterpret_cast<T*>(bytes)) {}
  __device__ static int after(int stage, int more = 1) {
    return stage + more < kCount ? stage + more : stage + more - kCount;
  }
  __device__ T* tile(int stage) const { return memory + stage * kSize; }
  // Of this lane, for its warp's k-th 16 queries.
  __device__ Bits16* block(int stage, int k) const {
    return reinterpret_cast<Bits16*>(tile(stage) + kTileSize<kDim>) +
           (int(threadIdx.x) / 32 * (kTile / 16) + k) * 32 + threadIdx.x % 32;
  }
  __device__ float* weights() const { return reinterpret_cast<float*>(memory + kCount * kSize); }
  __device__ float* bias() const { return weights() + kTile; }
  __device__ void copy_bias(const float* from) const {
    if (threadIdx.x < kDim / 4) copy_async(bias() + threadIdx.x * 4, from + threadIdx.x * 4, true);
  }
  __device__ Pair bias_of(int n, int t) const {
    return *reinterpret_cast<const Pair*>(bias() + n * 8 + t * 2);
  }
};
template <int kDim>
constexpr size_t sum_shared() {
  return sizeof(uint16_t) * kSumStages * (kTileSize<kDim> + kTile * kTile) +
         sizeof(float) * (kTile + kDim);
}

// One step: the oldest stage's tile times its blocks, transposed. fetch(stage) starts to fill the
// one that is free then; kSums: sums of the blocks over queries as well.
template <typename T, int kDim, bool kSums, typename Fetch>
__device__ inline void sum_step(FragmentC* grad, FragmentC& sums, const SumStages<T, kDim>& stages,
                                int stage, int lane, Fetch fetch) {
  copy_wait_but<kSumStages - 2>();
  group_publish<kDim>();
  __syncthreads();
  FragmentA d[kTile / 16];
  AERIE_UNROLL
  for (int k = 0; k < kTile / 16; ++k) d[k] = transposed(*stages.block(stage, k));
  group_begin<kDim>();
  group_columns<kDim>(grad, d, stages.tile(stage), lane);
  group_commit<kDim>();
  fetch(stages.after(stage, kSumStages - 1));
  AERIE_UNROLL
  for (int k = 0; k < kTile / 16; ++k)
    if (kSums) mma<T>(sums, d[k], ones<T>());
  group_wait<kDim>();
  group_ready<kDim>(grad);
}

// out[0, kDim) = sum over the tile's 64 rows of weight * row; all threads, behind the last
// use of the stages. `sums` are a warp's weights: row g, row g + 8.
template <typename T, int kDim>
__device__ inline void sum_rows(float* out, const SumStages<T, kDim>& stages, int stage,
                                float sum_upper, float sum_lower, int warp, int lane) {
  constexpr int kPieces = kDim / 8, kParts = kMmaThreads / kPieces;
  float* partial = reinterpret_cast<float*>(stages.tile(stages.after(stage)));
  if (lane % 4 == 0) {
    stages.weights()[warp * 16 + lane / 4] = sum_upper;
    stages.weights()[warp * 16 + lane / 4 + 8] = sum_lower;
  }
  __syncthreads();
  const int piece = threadIdx.x % kPieces, part = threadIdx.x / kPieces;
  Vec8 sum = {};
  for (int row = part; row < kTile; row += kParts) {
    const Vec8 more = load8(stages.tile(stage) + row * kDim + (piece ^ row % 8) * 8);
    AERIE_UNROLL
    for (int k = 0; k < 8; ++k) sum.v[k] += stages.weights()[row] * more.v[k];
  }
  store8(partial + part * kDim + piece * 8, sum);
  __syncthreads();
  static_assert(kDim <= kMmaThreads);
  if (threadIdx.x < kDim) {
    float total = 0.0f;
    AERIE_UNROLL
    for (int p = 0; p < kParts; ++p) total += partial[p * kDim + threadIdx.x];
    out[threadIdx.x] = total;
  }
}

// Gradients of 64 keys, or of their values.
template <typename T, int kDim, bool kValues>
__device__ inline void key_grads(const AttentionBackward& b, const SumStages<T, kDim>& stages,
                                 int jt, int head, int item) {
  const Attention& a = b.forward;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int length = attention_length(a, item), item_rows = rows_of(a.layout, item, a.frames);
  const int dense = a.heads * kDim;
  const size_t first_row = attention_first(a, item);
  const size_t base = first_row * a.stride + size_t(head) * kDim;
  // Query tiles that see this one follow each other.
  int it = 0, end = 0;
  if (jt * kTile < length) {
    const auto sees = [&](int tile) {
      const KeyTiles seen = tiles_of(a, length, tile);
      return jt >= seen.first && jt < seen.end;
    };
    end = ceil_div(length, kTile);
    if (a.chunk > 0 || a.left >= 0 || a.right >= 0) {
      while (it < end && !sees(it)) ++it;
      while (it < end && !sees(end - 1)) --end;
    }
  }
  const T* const rows = kValues
                            ? static_cast<const T*>(b.grad_out) + first_row * dense + head * kDim
                            : static_cast<const T*>(a.q) + base;
  const int blocks = attention_blocks(a.frames);
  const T* const from = static_cast<const T*>(kValues ? b.weights : b.grad_scores) +
                        attention_block_at(a, item, head, 0, blocks) +
                        size_t(jt * (kTile / 16) + warp) * 256 + size_t(lane) * 8;
  int next = it;
  const auto fetch = [&](int stage) {
    if (next < end) {
      copy_tile<kDim>(stages.tile(stage), rows, next * kTile, length, kValues ? dense : a.stride);
      AERIE_UNROLL
      for (int k = 0; k < kTile / 16; ++k)
        copy_async(stages.block(stage, k),
                   from + size_t(next * (kTile / 16) + k) * (size_t(blocks) * 256),
                   next * kTile + k * 16 < length);
    } else if (next == end && !kValues) {
      copy_tile<kDim>(stages.tile(stage), static_cast<const T*>(a.k) + base, jt * kTile, length,
                      a.stride);
      stages.copy_bias(a.bias_u + head * kDim);
    }
    ++next;
    copy_commit();
  };
  for (int i = 0; i < kSumStages - 1; ++i) fetch(i);
  FragmentC grad[kDim / 8] = {}, sums = {};
  int stage = 0;
  for (; it < end; ++it, stage = stages.after(stage))
    sum_step<T, kDim, !kValues>(grad, sums, stages, stage, lane, fetch);
  if (!kValues) {
    copy_wait();
    __syncthreads();
  }
  const float kept = a.dropout.threshold != 0 ? a.dropout.scale : 1.0f;
  AERIE_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = jt * kTile + warp * 16 + g + r * 8;
    if (row >= item_rows) continue;
    T* const out = static_cast<T*>(kValues ? b.grad_v : b.grad_k) +
                   (first_row + row) * b.grad_stride + size_t(head) * kDim + 2 * t;
    AERIE_UNROLL
    for (int n = 0; n < kDim / 8; ++n) {
      Pair x = {grad[n].v[2 * r], grad[n].v[2 * r + 1]};
      if (kValues) {
        x = {x.low * kept, x.high * kept};
      } else {
        const Pair u = stages.bias_of(n, t);
        x = {x.low + sums.v[2 * r] * u.low, x.high + sums.v[2 * r] * u.high};
      }
      *reinterpret_cast<uint32_t*>(out + n * 8) = pack<T>(x.low, x.high);
    }
  }
  if (kValues) return;
  float* out = b.partial + size_t(item * attention_tiles(a.frames) + jt) * dense + head * kDim;
  sum_rows<T, kDim>(out, stages, stage, sums.v[0], sums.v[2], warp, lane);
}

// Whether this block is the last of `count` to come; what they wrote before is visible to it then.
__device__ inline bool last_of(uint32_t* counter, unsigned count, float* shared) {
  unsigned* const before = reinterpret_cast<unsigned*>(shared);
#ifdef __CUDACC__
  __threadfence();
#endif
  __syncthreads();
  if (threadIdx.x == 0) {
#ifdef __CUDACC__
    *before = atomicAdd(counter, 1u);
    __threadfence();
#else
    *before = (*counter)++;
#endif
  }
  __syncthreads();
  return *before + 1 == count;
}
// What other blocks of this kernel have written.
__device__ inline Vec8 load8_again(const float* p) {
#ifdef __CUDACC__
  const float4 a = __ldcg(reinterpret_cast<const float4*>(p));
  const float4 b = __ldcg(reinterpret_cast<const float4*>(p) + 1);
  return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
#else
  return load8(p);
#endif
}

// Gradients of the 64 relative positions (key - query) from 64 * dt on, of one group of items.
template <typename T, int kDim>
__device__ inline void position_grads(const AttentionBackward& b, const SumStages<T, kDim>& stages,
                                      int number, int head, int group) {
  const Attention& a = b.forward;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int dense = a.heads * kDim, dt = number - attention_tiles(a.frames);
  const int groups = attention_groups(a);
  const int positions = 2 * a.frames - 1, first = a.frames - 1 + dt * kTile;
  // Pairs (item, query tile) that meet these positions, one after the other.
  struct Step {
    int item, it, length;
    KeyTiles seen;
  };
  const auto advance = [&](Step& s) {
    while (s.item < a.batch) {
      if (++s.it * kTile < s.length) {
        s.seen = tiles_of(a, s.length, s.it);
        if (s.it + dt + 1 >= s.seen.first && s.it + dt < s.seen.end) return;
        continue;
      }
      s.item += groups;
      if (s.item >= a.batch) return;
      s.length = attention_length(a, s.item);
      s.it = -1;
    }
  };
  const int blocks = attention_blocks(a.frames);
  Step next = {group - groups, 0, 0, {}};
  advance(next);
  int steps = 0;  // begun
  bool all = false;
  const auto fetch = [&](int stage) {
    if (next.item < a.batch) {
      copy_tile<kDim>(stages.tile(stage),
                      static_cast<const T*>(a.q) + attention_first(a, next.item) * a.stride +
                          size_t(head) * kDim,
                      next.it * kTile, next.length, a.stride);
      const int column = (next.it + dt) * (kTile / 16) + warp + 1;
      const T* from = static_cast<const T*>(b.grad_skewed) +
                      attention_block_at(a, next.item, head, next.it * (kTile / 16), blocks + 1) +
                      ptrdiff_t(column) * 256 + lane * 8;
      AERIE_UNROLL
      for (int k = 0; k < kTile / 16; ++k)
        copy_async(stages.block(stage, k), from + ptrdiff_t(k) * (blocks + 2) * 256,
                   next.it * kTile + k * 16 < next.length &&
                       column + k >= next.seen.first * (kTile / 16) &&
                       column + k <= next.seen.end * (kTile / 16));
      advance(next);
      ++steps;
    } else if (!all) {
      copy_tile<kDim>(stages.tile(stage), static_cast<const T*>(a.p) + size_t(head) * kDim, first,
                      positions, a.p_stride);
      stages.copy_bias(a.bias_v + head * kDim);
      all = true;
    }
    copy_commit();
  };
  for (int i = 0; i < kSumStages - 1; ++i) fetch(i);
  FragmentC grad_p[kDim / 8] = {}, sums = {};
  int stage = 0;
  for (int step = 0; step < steps; ++step, stage = stages.after(stage))
    sum_step<T, kDim, true>(grad_p, sums, stages, stage, lane, fetch);
  copy_wait();
  __syncthreads();
  AERIE_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = first + warp * 16 + g + r * 8;
    if (row < 0 || row >= positions) continue;
    float* out = b.p_partial + (size_t(group) * positions + row) * dense + head * kDim + 2 * t;
    AERIE_UNROLL
    for (int n = 0; n < kDim / 8; ++n) {
      const Pair v = stages.bias_of(n, t);
      *reinterpret_cast<Pair*>(out + n * 8) = {grad_p[n].v[2 * r] + sums.v[2 * r] * v.low,
                                               grad_p[n].v[2 * r + 1] + sums.v[2 * r] * v.high};
    }
  }
  float* out =
      b.partial +
      size_t(a.batch * attention_tiles(a.frames) + group * 2 * attention_tiles(a.frames) + number) *
          dense +
      head * kDim;
  sum_rows<T, kDim>(out, stages, stage, sums.v[0], sums.v[2], warp, lane);

  // The last group to come adds all of them, in their order whichever it is.
  if (!last_of(attention_counters(b, head, number), unsigned(groups), stages.weights())) return;
  constexpr int kPieces = kDim / 8;
  AERIE_UNROLL_BY(2)
  for (int e = int(threadIdx.x); e < kTile * kPieces; e += kMmaThreads) {
    const int row = first + e / kPieces, column = head * kDim + e % kPieces * 8;
    if (row < 0 || row >= positions) continue;
    Vec8 sum = {};
    AERIE_UNROLL_BY(4)
    for (int other = 0; other < groups; ++other) {
      const Vec8 more =
          load8_again(b.p_partial + (size_t(other) * positions + row) * dense + column);
      AERIE_UNROLL
      for (int k = 0; k < 8; ++k) sum.v[k] += more.v[k];
    }
    store8(static_cast<T*>(b.grad_p) + size_t(row) * b.grad_p_stride + column, sum);
  }
}

template <int kDim>
constexpr int kSumBlocks = kDim == 64 ? 4 : 3;
inline int sum_blocks(const Attention& a) {
  return 2 * attention_tiles(a.frames) * a.heads * (a.batch + attention_groups(a));
}
template <typename T, int kDim>
__global__ void __launch_bounds__(kMmaThreads, kSumBlocks<kDim>)
    attention_sums_mma(AttentionBackward b) {
  AERIE_DYNAMIC_SHARED(memory);
  const SumStages<T, kDim> stages(memory);
  const int count = attention_tiles(b.forward.frames), heads = b.forward.heads;
  // Positions first: they take longest.
  const int positions = 2 * count * heads * attention_groups(b.forward);
  int block = blockIdx.x;
  if (block < positions) {
    position_grads<T, kDim>(b, stages, block % (2 * count), block / (2 * count) % heads,
                            block / (2 * count * heads));
    return;
  }
  block -= positions;
  const int item = block / (2 * count * heads), head = block / (2 * count) % heads;
  const int tile = block % (2 * count);
  if (tile < count) {
    key_grads<T, kDim, false>(b, stages, tile, head, item);
  } else {
    key_grads<T, kDim, true>(b, stages, tile - count, head, item);
  }
}

}  // namespace aerie::kernels::AERIE_BACKEND
