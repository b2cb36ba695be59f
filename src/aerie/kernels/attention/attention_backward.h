// Backward on tensor cores, included by attention.cu alone. One kernel walks over the keys of 64
// queries as forward does: it makes the gradients of the queries, and leaves weights and gradients
// of the scores in scratch memory. A second one makes sums over queries of these: gradients of keys
// and values, and of positions, each block for 64 keys of one item or 64 relative positions of a
// group of items.
//
// Gradients of scores are kept without the softmax's scale; every sum over them is scaled at its
// end. The biases' gradients need no sums of their own: that of u is the sum over keys of
// (sum over queries of the score's gradient) * key, that of v the same over positions.
#pragma once

#include "aerie/kernels/attention/attention_mma.h"

namespace aerie::kernels::AERIE_BACKEND {

template <int kDim>
__global__ void __launch_bounds__(kMmaThreads, kQueryBlocks<kDim>)
    attention_query_grad_mma(AttentionBackward b) {
  AERIE_DYNAMIC_SHARED(memory);
  const Attention& a = b.forward;
  QueryBlock<kDim> q(a, memory);
  const int lane = q.lane, g = lane / 4, t = lane % 4, dense = a.heads * kDim;
  const size_t dense_base = size_t(q.item) * a.frames * dense + size_t(q.head) * kDim;
  const Skew skew = skew_of(lane);
  FragmentA with_u[kDim / 16], with_v[kDim / 16], grads[kDim / 16];
  FragmentC grad_q[kDim / 8] = {};
  float inner[2] = {0.0f, 0.0f}, log_sum[2] = {INFINITY, INFINITY};
  if (q.jt < q.tiles.end) {
    // Queries and gradients pass through the second stage of keys and values.
    Bf16* queries = q.other(q.keys);
    Bf16* grad_rows = q.other(q.values);
    copy_tile<kDim>(queries, static_cast<const Bf16*>(a.q) + q.base_of(a), q.it * kTile, q.length,
                    a.stride);
    copy_tile<kDim>(grad_rows, static_cast<const Bf16*>(b.grad_out) + dense_base, q.it * kTile,
                    q.length, dense);
    q.copy_first(a);
    copy_wait();
    __syncthreads();
    load_queries<kDim>(with_v, queries, q.warp, lane);
    add_bias<kDim>(with_u, with_v, a.bias_u + q.head * kDim, lane);
    add_bias<kDim>(with_v, with_v, a.bias_v + q.head * kDim, lane);
    load_queries<kDim>(grads, grad_rows, q.warp, lane);
    __syncthreads();
    AERIE_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int row = q.i + g + r * 8;
      if (row < q.length) {
        const Bf16* out =
            static_cast<const Bf16*>(a.out) + dense_base + size_t(row) * dense + 2 * t;
        AERIE_UNROLL
        for (int n = 0; n < kDim / 8; ++n) {
          const uint32_t mine = *reinterpret_cast<const uint32_t*>(out + n * 8);
          const uint32_t grad = grads[n / 2].r[n % 2 * 2 + r];
          inner[r] += low_of(mine) * low_of(grad) + high_of(mine) * high_of(grad);
        }
        log_sum[r] = a.log_sum[head_of(a, q.item, q.head) * a.frames + row] * kLog2E;
      }
      inner[r] = quad_sum(inner[r]);
    }
  }
  const KeyRange seen[2] = {keys_of(a, q.length, q.i + g), keys_of(a, q.length, q.i + g + 8)};
  const float softmax_scale = 1.0f / sqrtf(float(kDim)), scale = kLog2E * softmax_scale;
  const float kept = a.dropout.threshold != 0 ? a.dropout.scale : 1.0f;
  const int blocks = attention_blocks(a.frames);
  const bool inside = q.i / 16 < blocks;
  const uint32_t* const decisions =
      a.keep != nullptr ? a.keep + attention_keep_at(a, q.item, q.head, q.i / 16, 0) + lane
                        : nullptr;
  const size_t first_block = attention_block_at(a, q.item, q.head, q.i / 16, 0) + size_t(lane) * 8;
  for (; q.jt < q.tiles.end; q.advance()) {
    q.copy_next(a);
    uint32_t keep = ~0u;
    if (a.dropout.threshold != 0) {
      if (a.keep == nullptr) {
        keep = draw_keep(a.dropout, q.item, q.head, q.i, q.jt * kTile, lane);
      } else if (inside) {
        keep = decisions[q.jt * 32];
      }
    }
    const Bf16 *keys = q.current(q.keys), *values = q.current(q.values);
    const Band<kDim> band = q.current_band();
    FragmentC scores[kTile / 8] = {};
    score_tile<kDim>(scores, with_u, with_v, keys, band, skew, lane);
    if (q.needs_mask()) mask_tile(scores, seen, q.jt, lane);
    // Gradients of the scores, two values per register: [C tile][upper or lower row].
    uint32_t d[kTile / 8][2];
    AERIE_UNROLL
    for (int k = 0; k < kTile / 16; ++k) {
      uint32_t weights[2][2];
      AERIE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int n = 2 * k + half;
        FragmentC d_weight = {};
        multiply_rows<kDim>(d_weight, grads, values, n * 8, lane);
        float dropped[4], d_score[4];
        AERIE_UNROLL
        for (int e = 0; e < 4; ++e) {
          const bool keeps = (keep >> (4 * n + e) & 1u) != 0;
          const float weight = fast_exp2(scores[n].v[e] * scale - log_sum[e / 2]);
          dropped[e] = keeps ? weight : 0.0f;
          d_score[e] = weight * ((keeps ? d_weight.v[e] : 0.0f) * kept - inner[e / 2]);
        }
        AERIE_UNROLL
        for (int r = 0; r < 2; ++r) {
          weights[half][r] = pack_bf16(dropped[2 * r], dropped[2 * r + 1]);
          d[n][r] = pack_bf16(d_score[2 * r], d_score[2 * r + 1]);
        }
      }
      const int column = q.jt * (kTile / 16) + k;
      if (inside && column < blocks) {
        const size_t at = first_block + size_t(column) * 256;
        *reinterpret_cast<Bits16*>(static_cast<Bf16*>(b.weights) + at) = {
            {weights[0][0], weights[1][0], weights[0][1], weights[1][1]}};
        *reinterpret_cast<Bits16*>(static_cast<Bf16*>(b.grad_scores) + at) = {
            {d[2 * k][0], d[2 * k + 1][0], d[2 * k][1], d[2 * k + 1][1]}};
      }
    }
    AERIE_UNROLL
    for (int k = 0; k < kTile / 16; ++k)
      multiply_columns<kDim>(grad_q, {{d[2 * k][0], d[2 * k][1], d[2 * k + 1][0], d[2 * k + 1][1]}},
                             keys, k * 16, lane);
    // Row r, column c of the band is key c + r - 16.
    const auto along = [&](int n, int r) {
      return move_left(skew, n >= 0 && n < kTile / 8 ? d[n][r] : 0u,
                       n + 1 >= 0 && n + 1 < kTile / 8 ? d[n + 1][r] : 0u);
    };
    AERIE_UNROLL
    for (int k = 0; k < kBandBlocks / 2; ++k) {
      const FragmentA skewed = {{k > 0 ? along(2 * k - 2, 0) : 0u, along(2 * k - 1, 1),
                                 along(2 * k - 1, 0),
                                 k < kBandBlocks / 2 - 1 ? along(2 * k, 1) : 0u}};
      multiply_columns<kDim>(grad_q, skewed, band.tile(k * 16), band.row_in(k * 16), lane);
    }
  }
  AERIE_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = q.i + g + r * 8;
    if (row >= a.frames) continue;
    Bf16* out = static_cast<Bf16*>(b.grad_q) + (size_t(q.item) * a.frames + row) * b.grad_stride +
                q.head * kDim + 2 * t;
    AERIE_UNROLL
    for (int n = 0; n < kDim / 8; ++n)
      *reinterpret_cast<uint32_t*>(out + n * 8) =
          pack_bf16(grad_q[n].v[2 * r] * softmax_scale, grad_q[n].v[2 * r + 1] * softmax_scale);
  }
}

__device__ inline FragmentB ones() {
  return {{0x3f803f80u, 0x3f803f80u}};
}

// The blocks of scratch memory from block (row, column) of a head on; zero where none was written.
struct Blocks {
  const Bf16* from;  // block (row, column), this lane
  size_t pitch;
  int rows;             // that exist from `row` on
  int column, columns;  // first one, and those that exist
  __device__ Blocks(const void* square, const Attention& a, int item, int head, int row,
                    int column_, int lane)
      : pitch(size_t(attention_blocks(a.frames)) * 256),
        rows(attention_blocks(a.frames) - row),
        column(column_),
        columns(attention_blocks(a.frames)) {
    from = static_cast<const Bf16*>(square) + attention_block_at(a, item, head, row, 0) +
           ptrdiff_t(column) * 256 + lane * 8;
  }
  __device__ Bits16 load(const KeyTiles& tiles, int down, int right) const {
    const int at = column + right;
    if (down >= rows || at >= columns || at < tiles.first * (kTile / 16) ||
        at >= tiles.end * (kTile / 16))
      return {};
    return *reinterpret_cast<const Bits16*>(from + size_t(down) * pitch + right * 256);
  }
};
__device__ inline FragmentA transposed(const Bits16& m) {
  return {{transpose_matrix(m.w[0]), transpose_matrix(m.w[1]), transpose_matrix(m.w[2]),
           transpose_matrix(m.w[3])}};
}

// Shared memory of the second kernel: two stages of queries and of gradients, and the rows (keys or
// positions) whose sum is a bias's gradient. The first tile serves that sum at the end.
template <int kDim>
struct SumTiles {
  Bf16 *queries, *grads, *rows;
  float* weights;
  __device__ explicit SumTiles(unsigned char* memory)
      : queries(reinterpret_cast<Bf16*>(memory)),
        grads(queries + 2 * kTileSize<kDim>),
        rows(grads + 2 * kTileSize<kDim>),
        weights(reinterpret_cast<float*>(rows + kTileSize<kDim>)) {}
};
template <int kDim>
constexpr size_t sum_shared() {
  return sizeof(Bf16) * 5 * kTileSize<kDim> + sizeof(float) * kTile;
}

// out[0, kDim) = scale * sum over the tile's 64 rows of weight * row; all threads, behind the last
// use of the stages. `sums` are a warp's weights: row g, row g + 8.
template <int kDim>
__device__ inline void sum_rows(float* out, const SumTiles<kDim>& tiles, float sum_upper,
                                float sum_lower, float scale, int warp, int lane) {
  constexpr int kPieces = kDim / 8, kParts = kMmaThreads / kPieces;
  float* partial = reinterpret_cast<float*>(tiles.queries);
  if (lane % 4 == 0) {
    tiles.weights[warp * 16 + lane / 4] = sum_upper;
    tiles.weights[warp * 16 + lane / 4 + 8] = sum_lower;
  }
  __syncthreads();
  const int piece = threadIdx.x % kPieces, part = threadIdx.x / kPieces;
  Vec8 sum = {};
  for (int row = part; row < kTile; row += kParts) {
    const Vec8 more = load8(tiles.rows + row * kDim + (piece ^ row % 8) * 8);
    AERIE_UNROLL
    for (int k = 0; k < 8; ++k) sum.v[k] += tiles.weights[row] * more.v[k];
  }
  store8(partial + part * kDim + piece * 8, sum);
  __syncthreads();
  static_assert(kDim <= kMmaThreads);
  if (threadIdx.x < kDim) {
    float total = 0.0f;
    AERIE_UNROLL
    for (int p = 0; p < kParts; ++p) total += partial[p * kDim + threadIdx.x];
    out[threadIdx.x] = total * scale;
  }
}

// Gradients of 64 keys and their values.
template <int kDim>
__device__ inline void key_grads(const AttentionBackward& b, const SumTiles<kDim>& tiles, int jt,
                                 int head, int item) {
  const Attention& a = b.forward;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int length = a.lengths[item] < a.frames ? a.lengths[item] : a.frames;
  const int dense = a.heads * kDim;
  const size_t base = size_t(item) * a.frames * a.stride + size_t(head) * kDim;
  const auto sees = [&](int it) {
    const KeyTiles seen = tiles_of(a, length, it);
    return jt >= seen.first && jt < seen.end;
  };
  // Query tiles that see this one follow each other.
  const int last = jt * kTile < length ? ceil_div(length, kTile) : 0;
  int it = 0, end;
  while (it < last && !sees(it)) ++it;
  for (end = it; end < last && sees(end);) ++end;
  const int start = it;
  const auto copy = [&](int tile) {
    const int stage = (tile - start) % 2 * kTileSize<kDim>;
    copy_tile<kDim>(tiles.queries + stage, static_cast<const Bf16*>(a.q) + base, tile * kTile,
                    length, a.stride);
    copy_tile<kDim>(tiles.grads + stage,
                    static_cast<const Bf16*>(b.grad_out) + size_t(item) * a.frames * dense +
                        size_t(head) * kDim,
                    tile * kTile, length, dense);
  };
  copy_tile<kDim>(tiles.rows, static_cast<const Bf16*>(a.k) + base, jt * kTile, length, a.stride);
  if (it < end) copy(it);
  FragmentC grad_k[kDim / 8] = {}, grad_v[kDim / 8] = {}, sums = {};
  for (; it < end; ++it) {
    const KeyTiles seen = tiles_of(a, length, it);
    Bits16 weights[kTile / 16], scores[kTile / 16];
    const int row = it * (kTile / 16), column = jt * (kTile / 16) + warp;
    const Blocks of_weights(b.weights, a, item, head, row, column, lane);
    const Blocks of_scores(b.grad_scores, a, item, head, row, column, lane);
    AERIE_UNROLL
    for (int k = 0; k < kTile / 16; ++k) {
      weights[k] = of_weights.load(seen, k, 0);
      scores[k] = of_scores.load(seen, k, 0);
    }
    copy_wait();
    __syncthreads();
    if (it + 1 < end) copy(it + 1);
    const int stage = (it - start) % 2 * kTileSize<kDim>;
    AERIE_UNROLL
    for (int k = 0; k < kTile / 16; ++k) {
      multiply_columns<kDim>(grad_v, transposed(weights[k]), tiles.grads + stage, k * 16, lane);
      const FragmentA d = transposed(scores[k]);
      multiply_columns<kDim>(grad_k, d, tiles.queries + stage, k * 16, lane);
      mma(sums, d, ones());
    }
  }
  const float scale = 1.0f / sqrtf(float(kDim));
  const float kept = a.dropout.threshold != 0 ? a.dropout.scale : 1.0f;
  AERIE_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = jt * kTile + warp * 16 + g + r * 8;
    if (row >= a.frames) continue;
    const size_t at = (size_t(item) * a.frames + row) * b.grad_stride + size_t(head) * kDim + 2 * t;
    AERIE_UNROLL
    for (int n = 0; n < kDim / 8; ++n) {
      const float* u = a.bias_u + head * kDim + n * 8 + 2 * t;
      const float sum = sums.v[2 * r];
      *reinterpret_cast<uint32_t*>(static_cast<Bf16*>(b.grad_k) + at + n * 8) = pack_bf16(
          (grad_k[n].v[2 * r] + sum * u[0]) * scale, (grad_k[n].v[2 * r + 1] + sum * u[1]) * scale);
      *reinterpret_cast<uint32_t*>(static_cast<Bf16*>(b.grad_v) + at + n * 8) =
          pack_bf16(grad_v[n].v[2 * r] * kept, grad_v[n].v[2 * r + 1] * kept);
    }
  }
  copy_wait();
  __syncthreads();
  float* out = b.bias_partial + size_t(item * attention_tiles(a.frames) + jt) * dense + head * kDim;
  sum_rows<kDim>(out, tiles, sums.v[0], sums.v[2], scale, warp, lane);
}

// Gradients of the 64 relative positions (key - query) from 64 * dt on, of one group of items.
template <int kDim>
__device__ inline void position_grads(const AttentionBackward& b, const SumTiles<kDim>& tiles,
                                      int number, int head, int group) {
  const Attention& a = b.forward;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int dense = a.heads * kDim, dt = number - attention_tiles(a.frames);
  const int positions = 2 * a.frames - 1, first = a.frames - 1 + dt * kTile;
  const Skew skew = skew_of(lane);
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
      s.item += kAttentionGroups;
      if (s.item >= a.batch) return;
      s.length = a.lengths[s.item] < a.frames ? a.lengths[s.item] : a.frames;
      s.it = -1;
    }
  };
  const auto copy = [&](const Step& s, int stage) {
    copy_tile<kDim>(
        tiles.queries + stage * kTileSize<kDim>,
        static_cast<const Bf16*>(a.q) + size_t(s.item) * a.frames * a.stride + size_t(head) * kDim,
        s.it * kTile, s.length, a.stride);
  };
  copy_tile<kDim>(tiles.rows, static_cast<const Bf16*>(a.p) + size_t(head) * kDim, first, positions,
                  a.p_stride);
  Step step = {group - kAttentionGroups, 0, 0, {}};
  advance(step);
  if (step.item < a.batch) copy(step, 0);
  FragmentC grad_p[kDim / 8] = {}, sums = {};
  for (int stage = 0; step.item < a.batch; stage ^= 1) {
    Bits16 near[kTile / 16], far[kTile / 16];
    const int row = step.it * (kTile / 16);
    const Blocks scores(b.grad_scores, a, step.item, head, row, row + dt * (kTile / 16) + warp,
                        lane);
    AERIE_UNROLL
    for (int k = 0; k < kTile / 16; ++k) {
      near[k] = scores.load(step.seen, k, k);
      far[k] = scores.load(step.seen, k, k + 1);
    }
    copy_wait();
    __syncthreads();
    advance(step);
    if (step.item < a.batch) copy(step, stage ^ 1);
    AERIE_UNROLL
    for (int k = 0; k < kTile / 16; ++k) {
      // Row r, column c of the skewed block is key c + r of the two.
      const FragmentA d = transposed(
          {{move_left(skew, near[k].w[0], near[k].w[1]), move_left(skew, near[k].w[1], far[k].w[0]),
            move_left(skew, near[k].w[3], far[k].w[2]),
            move_left(skew, far[k].w[2], far[k].w[3])}});
      multiply_columns<kDim>(grad_p, d, tiles.queries + stage * kTileSize<kDim>, k * 16, lane);
      mma(sums, d, ones());
    }
  }
  const float scale = 1.0f / sqrtf(float(kDim));
  AERIE_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = first + warp * 16 + g + r * 8;
    if (row < 0 || row >= positions) continue;
    float* out = b.p_partial + (size_t(group) * positions + row) * dense + head * kDim + 2 * t;
    AERIE_UNROLL
    for (int n = 0; n < kDim / 8; ++n) {
      const float* v = a.bias_v + head * kDim + n * 8 + 2 * t;
      out[n * 8] = (grad_p[n].v[2 * r] + sums.v[2 * r] * v[0]) * scale;
      out[n * 8 + 1] = (grad_p[n].v[2 * r + 1] + sums.v[2 * r] * v[1]) * scale;
    }
  }
  copy_wait();
  __syncthreads();
  float* out =
      b.bias_partial +
      size_t(a.batch * attention_tiles(a.frames) + group * 2 * attention_tiles(a.frames) + number) *
          dense +
      head * kDim;
  sum_rows<kDim>(out, tiles, sums.v[0], sums.v[2], scale, warp, lane);
}

inline int sum_blocks(const Attention& a) {
  return attention_tiles(a.frames) * a.heads * (a.batch + 2 * kAttentionGroups);
}
template <int kDim>
__global__ void __launch_bounds__(kMmaThreads, kDim == 64 ? 4 : 2)
    attention_sums_mma(AttentionBackward b) {
  AERIE_DYNAMIC_SHARED(memory);
  const SumTiles<kDim> tiles(memory);
  const int count = attention_tiles(b.forward.frames), heads = b.forward.heads;
  // Positions first: they take longest.
  const int positions = 2 * count * heads * kAttentionGroups;
  int block = blockIdx.x;
  if (block < positions) {
    position_grads<kDim>(b, tiles, block % (2 * count), block / (2 * count) % heads,
                         block / (2 * count * heads));
    return;
  }
  block -= positions;
  key_grads<kDim>(b, tiles, block % count, block / count % heads, block / (count * heads));
}

}  // namespace aerie::kernels::AERIE_BACKEND
