// Attention in float32 with plain arithmetic, included by attention.cu alone. A block of four warps
// takes 32 queries of one head and walks over tiles of 64 keys: scores are made 4 x 4 per thread
// from transposed pieces in shared memory, sums over keys 8 queries per warp, lanes over values.
#pragma once

#include "aerie/kernels/attention/attention_mma.h"

namespace aerie::kernels::AERIE_BACKEND {

constexpr int kFloatWarps = 4;
constexpr int kFloatThreads = kFloatWarps * 32;
constexpr int kFloatRows = kAttentionFloatRows;
constexpr int kPiece = 16;  // values of a row at a time
// Distances of the pieces' rows: multiples of 4, spread over the banks.
constexpr int kLeft = kFloatRows + 4, kRight = kTile + 4, kBandWidth = kFloatRows + kTile,
              kBandRow = kBandWidth + 4;

// What a block works on.
struct HeadRows {
  int lane, warp, head, item, length, rows, dense;
  size_t first;       // the item's first row
  size_t base;        // of the item's head in q, k, v
  size_t dense_base;  // in out and its gradient
};
__device__ inline HeadRows head_rows(const Attention& a, int head, int item) {
  HeadRows p;
  p.lane = int(threadIdx.x % 32);
  p.warp = int(threadIdx.x / 32);
  p.head = head;
  p.item = item;
  p.length = attention_length(a, item);
  p.rows = rows_of(a.layout, item, a.frames);
  p.first = attention_first(a, item);
  p.dense = a.heads * a.dim;
  p.base = p.first * a.stride + size_t(head) * a.dim;
  p.dense_base = p.first * p.dense + size_t(head) * a.dim;
  return p;
}

// Values [d, d + 16) of kCount rows from row `first` on, transposed: to[value][row]; zero outside.
struct Rows {
  const float* from;
  int first, limit, stride;
  const float* bias;  // added to every row, or null
};
template <int kCount>
__device__ inline void load_transposed(float* to, int to_stride, const Rows& rows, int d, int dim) {
  for (int e = int(threadIdx.x); e < kCount * (kPiece / 4); e += kFloatThreads) {
    const int row = e % kCount, value = e / kCount * 4, at = rows.first + row;
    Vec4 x = {};
    if (at >= 0 && at < rows.limit && d + value < dim) {
      x = load4(rows.from + size_t(at) * rows.stride + d + value);
      if (rows.bias != nullptr) {
        const Vec4 more = load4(rows.bias + d + value);
        AERIE_UNROLL
        for (int k = 0; k < 4; ++k) x.v[k] += more.v[k];
      }
    }
    AERIE_UNROLL
    for (int k = 0; k < 4; ++k) to[(value + k) * to_stride + row] = x.v[k];
  }
}

// sums[a][b] += left row 4y + a times right row 4x + b, and with kRelative left2 row 4y + a times
// band row 4x + b - 4y - a + 31; x = thread % 16, y = thread / 16.
template <bool kRelative>
__device__ inline void multiply_tile(float (*sums)[4], float* memory, const Rows& left,
                                     const Rows& right, const Rows& left2, const Rows& band,
                                     int dim) {
  float* left_piece = memory;
  float* right_piece = left_piece + kPiece * kLeft;
  float* left2_piece = right_piece + kPiece * kRight;
  float* band_piece = left2_piece + kPiece * kLeft;
  const int x = int(threadIdx.x % 16), y = int(threadIdx.x / 16);
  for (int d = 0; d < dim; d += kPiece) {
    __syncthreads();
    load_transposed<kFloatRows>(left_piece, kLeft, left, d, dim);
    load_transposed<kTile>(right_piece, kRight, right, d, dim);
    if constexpr (kRelative) {
      load_transposed<kFloatRows>(left2_piece, kLeft, left2, d, dim);
      load_transposed<kBandWidth>(band_piece, kBandRow, band, d, dim);
    }
    __syncthreads();
    AERIE_UNROLL
    for (int k = 0; k < kPiece; ++k) {
      const Vec4 l = load4(left_piece + k * kLeft + 4 * y);
      const Vec4 r = load4(right_piece + k * kRight + 4 * x);
      AERIE_UNROLL
      for (int i = 0; i < 4; ++i) AERIE_UNROLL
      for (int j = 0; j < 4; ++j) sums[i][j] += l.v[i] * r.v[j];
      if constexpr (kRelative) {
        const Vec4 l2 = load4(left2_piece + k * kLeft + 4 * y);
        const float* from = band_piece + k * kBandRow + 4 * x - 4 * y + kFloatRows - 4;
        const Vec4 p0 = load4(from), p1 = load4(from + 4);
        const float p[8] = {p0.v[0], p0.v[1], p0.v[2], p0.v[3], p1.v[0], p1.v[1], p1.v[2], p1.v[3]};
        AERIE_UNROLL
        for (int i = 0; i < 4; ++i) AERIE_UNROLL
        for (int j = 0; j < 4; ++j) sums[i][j] += l2.v[i] * p[3 + j - i];
      }
    }
  }
}
constexpr int kPieceFloats = kPiece * (2 * kLeft + kRight + kBandRow);  // floats
constexpr int kWeights = kTile * kLeft;                                 // a tile of [key][query]

// Scores of a thread's 4 x 4 queries and keys, before scale and mask.
__device__ inline void ds_tile(float (*sums)[4], float* memory, const Attention& a,
                               const HeadRows& p, int i0, int j0) {
  const float* q = static_cast<const float*>(a.q) + p.base;
  const float* bias_u = a.bias_u + p.head * a.dim;
  const float* bias_v = a.bias_v + p.head * a.dim;
  multiply_tile<true>(
      sums, memory, {q, i0, p.length, a.stride, bias_u},
      {static_cast<const float*>(a.k) + p.base, j0, p.length, a.stride, nullptr},
      {q, i0, p.length, a.stride, bias_v},
      {static_cast<const float*>(a.r) + size_t(p.head) * a.dim,
       a.frames - 1 - i0 - (kFloatRows - 1) + j0, 2 * a.frames - 1, a.r_stride, nullptr},
      a.dim);
}
// Factors of dropout for keys [j, j + 4) of query i; j is a multiple of 4.
__device__ inline Vec4 weight_factors(const Attention& a, const HeadRows& p, int i, int j) {
  if (a.dropout.threshold == 0) return {{1.0f, 1.0f, 1.0f, 1.0f}};
  const RandomState& state = *a.dropout.state;
  const PhiloxBlock block =
      philox_block(state.dropout_key, a.dropout.site, item_position(state, uint64_t(p.item)),
                   (uint32_t(p.head) << 23) + (uint32_t(i) << 10) + uint32_t(j >> 3));
  const uint32_t limit = dropout_limit(a.dropout);
  const uint32_t words[2] = {j % 8 == 0 ? block.v[0] : block.v[2],
                             j % 8 == 0 ? block.v[1] : block.v[3]};
  Vec4 out;
  AERIE_UNROLL
  for (int k = 0; k < 4; ++k)
    out.v[k] = half_above(words[k / 2], k % 2, limit) ? a.dropout.scale : 0.0f;
  return out;
}
// Over the 16 threads that share queries.
__device__ inline float row_max(float x) {
  AERIE_UNROLL
  for (int mask = 8; mask > 0; mask >>= 1) x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, mask));
  return x;
}
__device__ inline float row_sum(float x) {
  AERIE_UNROLL
  for (int mask = 8; mask > 0; mask >>= 1) x += __shfl_xor_sync(kFullWarp, x, mask);
  return x;
}
// Tiles of keys that the block's queries see; none for queries that do not exist.
__device__ inline KeyRange float_tiles(const Attention& a, int length, int i0) {
  if (i0 >= length) return {0, 0};
  return {keys_of(a, length, i0).first / kTile,
          ceil_div(keys_of(a, length, i0 + kFloatRows - 1).end, kTile)};
}

inline size_t forward_float_shared(int dim) {
  return sizeof(float) * (size_t(kPieceFloats) + kWeights + kFloatRows + size_t(kFloatRows) * dim);
}
__global__ void __launch_bounds__(kFloatThreads) attention_forward_float(Attention a) {
  AERIE_DYNAMIC_SHARED(bytes);
  float* memory = reinterpret_cast<float*>(bytes);
  float* weights = memory + kPieceFloats;
  float* factors = weights + kWeights;  // of what is o already; at the end, of all of it
  float* o = factors + kFloatRows;
  const HeadRows p = head_rows(a, int(blockIdx.y), int(blockIdx.z));
  const int x = int(threadIdx.x % 16), y = int(threadIdx.x / 16), i0 = int(blockIdx.x) * kFloatRows;
  const float scale = 1.0f / sqrtf(float(a.dim));
  for (int e = int(threadIdx.x); e < kFloatRows * a.dim; e += kFloatThreads) o[e] = 0.0f;
  float running_max[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY}, sum[4] = {};
  const KeyRange tiles = float_tiles(a, p.length, i0);
  for (int jt = tiles.first; jt < tiles.end; ++jt) {
    float s[4][4] = {};
    ds_tile(s, memory, a, p, i0, jt * kTile);
    AERIE_UNROLL
    for (int k = 0; k < 4; ++k) {
      const int i = i0 + 4 * y + k, j = jt * kTile + 4 * x;
      float top = running_max[k];
      AERIE_UNROLL
      for (int e = 0; e < 4; ++e) {
        s[k][e] = attention_allowed(a, p.length, i, j + e) ? s[k][e] * scale : -INFINITY;
        top = fmaxf(top, s[k][e]);
      }
      top = row_max(top);
      const float shift = top > -INFINITY ? top : 0.0f, rescale = expf(running_max[k] - shift);
      running_max[k] = top;
      sum[k] *= rescale;
      if (x == 0) factors[4 * y + k] = rescale;
      const Vec4 kept = weight_factors(a, p, i, j);
      AERIE_UNROLL
      for (int e = 0; e < 4; ++e) {
        const float weight = expf(s[k][e] - shift);
        sum[k] += weight;
        weights[(4 * x + e) * kLeft + 4 * y + k] = weight * kept.v[e];
      }
    }
    __syncthreads();
    const int end = p.length - jt * kTile < kTile ? p.length - jt * kTile : kTile;
    for (int d = p.lane; d < a.dim; d += 32) {
      const float* value =
          static_cast<const float*>(a.v) + p.base + size_t(jt * kTile) * a.stride + d;
      float* out = o + p.warp * 8 * a.dim + d;
      float m[8];
      AERIE_UNROLL
      for (int r = 0; r < 8; ++r) m[r] = out[r * a.dim] * factors[p.warp * 8 + r];
      for (int j = 0; j < end; ++j) {
        const float v = value[size_t(j) * a.stride];
        const Vec4 upper = load4(weights + j * kLeft + p.warp * 8);
        const Vec4 lower = load4(weights + j * kLeft + p.warp * 8 + 4);
        AERIE_UNROLL
        for (int r = 0; r < 4; ++r) {
          m[r] += upper.v[r] * v;
          m[r + 4] += lower.v[r] * v;
        }
      }
      AERIE_UNROLL
      for (int r = 0; r < 8; ++r) out[r * a.dim] = m[r];
    }
  }
  __syncthreads();
  AERIE_UNROLL
  for (int k = 0; k < 4; ++k) {
    const int i = i0 + 4 * y + k;
    const float total = row_sum(sum[k]);
    if (x != 0) continue;
    const bool valid = i < p.length && total > 0.0f;
    factors[4 * y + k] = valid ? 1.0f / total : 0.0f;
    if (i < a.frames)
      a.lse[head_of(a, p.item, p.head) * a.frames + i] =
          valid ? running_max[k] + logf(total) : 0.0f;
  }
  __syncthreads();
  for (int e = int(threadIdx.x); e < kFloatRows * a.dim; e += kFloatThreads) {
    const int r = e / a.dim, d = e % a.dim;
    if (i0 + r < p.rows)
      static_cast<float*>(a.out)[p.dense_base + size_t(i0 + r) * p.dense + d] =
          factors[r] > 0.0f ? o[e] * factors[r] : 0.0f;
  }
}

inline size_t dq_float_shared(int dim) {
  return sizeof(float) *
         (size_t(kPieceFloats) + kWeights + 2 * size_t(kFloatRows) + 2 * size_t(kFloatRows) * dim);
}
// dQ of 32 queries, and P and dS into scratch memory.
__global__ void __launch_bounds__(kFloatThreads) attention_dq_float(AttentionBackward b) {
  AERIE_DYNAMIC_SHARED(bytes);
  const Attention& a = b.forward;
  float* memory = reinterpret_cast<float*>(bytes);
  float* scores = memory + kPieceFloats;
  float* delta = scores + kWeights;
  float* lse = delta + kFloatRows;
  float* sums_u = lse + kFloatRows;
  float* sums_v = sums_u + kFloatRows * a.dim;
  const HeadRows p = head_rows(a, int(blockIdx.y), int(blockIdx.z));
  const int x = int(threadIdx.x % 16), y = int(threadIdx.x / 16), i0 = int(blockIdx.x) * kFloatRows;
  const float scale = 1.0f / sqrtf(float(a.dim));
  const int row_width = attention_row(a.frames);
  const size_t square = (size_t(p.item) * a.heads + p.head) * a.frames * row_width;
  const float* grad_out = static_cast<const float*>(b.grad_out) + p.dense_base;
  for (int e = int(threadIdx.x); e < 2 * kFloatRows * a.dim; e += kFloatThreads) sums_u[e] = 0.0f;
  for (int r = p.warp * 8; r < p.warp * 8 + 8; ++r) {
    const int i = i0 + r;
    float product = 0.0f;
    if (i < p.length)
      for (int d = p.lane; d < a.dim; d += 32)
        product += grad_out[size_t(i) * p.dense + d] *
                   static_cast<const float*>(a.out)[p.dense_base + size_t(i) * p.dense + d];
    product = warp_sum(product);
    if (p.lane != 0) continue;
    delta[r] = product;
    lse[r] = i < p.length ? a.lse[(size_t(p.item) * a.heads + p.head) * a.frames + i] : 0.0f;
  }
  const KeyRange tiles = float_tiles(a, p.length, i0);
  const int all = i0 < p.length ? ceil_div(p.length, kTile) : 0;
  for (int jt = 0; jt < all; ++jt) {
    const int j0 = jt * kTile;
    const bool visited = jt >= tiles.first && jt < tiles.end;
    float s[4][4] = {}, d_weight[4][4] = {};
    if (visited) {
      ds_tile(s, memory, a, p, i0, j0);
      multiply_tile<false>(
          d_weight, memory, {grad_out, i0, p.length, p.dense, nullptr},
          {static_cast<const float*>(a.v) + p.base, j0, p.length, a.stride, nullptr}, {}, {},
          a.dim);
    }
    AERIE_UNROLL
    for (int k = 0; k < 4; ++k) {
      const int i = i0 + 4 * y + k, j = j0 + 4 * x;
      Vec4 dropped = {}, ds_value = {};
      if (visited) {
        const Vec4 kept = weight_factors(a, p, i, j);
        AERIE_UNROLL
        for (int e = 0; e < 4; ++e) {
          if (!attention_allowed(a, p.length, i, j + e)) continue;
          const float weight = expf(s[k][e] * scale - lse[4 * y + k]);
          dropped.v[e] = weight * kept.v[e];
          ds_value.v[e] = weight * (kept.v[e] * d_weight[k][e] - delta[4 * y + k]) * scale;
        }
        AERIE_UNROLL
        for (int e = 0; e < 4; ++e) scores[(4 * x + e) * kLeft + 4 * y + k] = ds_value.v[e];
      }
      if (i >= a.frames || j >= row_width) continue;
      const size_t at = square + size_t(i) * row_width + j;
      *reinterpret_cast<Vec4*>(static_cast<float*>(b.p) + at) = dropped;
      *reinterpret_cast<Vec4*>(static_cast<float*>(b.ds) + at) = ds_value;
    }
    if (!visited) continue;
    __syncthreads();
    const int first = a.frames - 1 - (i0 + p.warp * 8) + j0;  // position of its first query and key
    for (int d = p.lane; d < a.dim; d += 32) {
      const float* key = static_cast<const float*>(a.k) + p.base + d;
      const float* positions = static_cast<const float*>(a.r) + size_t(p.head) * a.dim + d;
      const auto position = [&](int m) {
        return m >= 0 && m < 2 * a.frames - 1 ? positions[size_t(m) * a.r_stride] : 0.0f;
      };
      float u[8], v[8], window[8];
      AERIE_UNROLL
      for (int r = 0; r < 8; ++r) {
        u[r] = sums_u[(p.warp * 8 + r) * a.dim + d];
        v[r] = sums_v[(p.warp * 8 + r) * a.dim + d];
        window[r] = r > 0 ? position(first + r - 8) : 0.0f;
      }
      for (int j = 0; j < kTile; j += 8) AERIE_UNROLL
      for (int e = 0; e < 8; ++e) {
        const float k = j0 + j + e < p.length ? key[size_t(j0 + j + e) * a.stride] : 0.0f;
        window[e] = position(first + j + e);
        const Vec4 upper = load4(scores + (j + e) * kLeft + p.warp * 8);
        const Vec4 lower = load4(scores + (j + e) * kLeft + p.warp * 8 + 4);
        AERIE_UNROLL
        for (int r = 0; r < 8; ++r) {
          const float grad = r < 4 ? upper.v[r % 4] : lower.v[r % 4];
          u[r] += grad * k;
          v[r] += grad * window[(e - r) & 7];
        }
      }
      AERIE_UNROLL
      for (int r = 0; r < 8; ++r) {
        sums_u[(p.warp * 8 + r) * a.dim + d] = u[r];
        sums_v[(p.warp * 8 + r) * a.dim + d] = v[r];
      }
    }
  }
  __syncthreads();
  float* grad_q =
      static_cast<float*>(b.grad_q) + (p.first + i0) * b.grad_stride + size_t(p.head) * a.dim;
  for (int e = int(threadIdx.x); e < kFloatRows * a.dim; e += kFloatThreads) {
    const int r = e / a.dim, d = e % a.dim;
    if (i0 + r < p.rows) grad_q[size_t(r) * b.grad_stride + d] = sums_u[e] + sums_v[e];
  }
  float* partial = b.partial + (size_t(p.item) * gridDim.x + blockIdx.x) * p.dense;
  const size_t second = size_t(a.batch) * gridDim.x * p.dense;
  for (int d = int(threadIdx.x); d < 2 * a.dim; d += kFloatThreads) {
    const float* from = (d < a.dim ? sums_u : sums_v) + d % a.dim;
    float sum = 0.0f;
    for (int r = 0; r < kFloatRows; ++r) sum += from[r * a.dim];
    partial[d / a.dim * second + p.head * a.dim + d % a.dim] = sum;
  }
}

// Gradients of eight keys and their values per warp.
__global__ void __launch_bounds__(kFloatThreads) attention_dkv_float(AttentionBackward b) {
  const Attention& a = b.forward;
  const HeadRows p = head_rows(a, int(blockIdx.y), int(blockIdx.z));
  const int j = (int(blockIdx.x) * kFloatWarps + p.warp) * 8;
  if (j >= p.rows) return;
  const int row_width = attention_row(a.frames);
  const size_t square = head_of(a, p.item, p.head) * a.frames * row_width + j;
  const float* weights = static_cast<const float*>(b.p) + square;
  const float* scores = static_cast<const float*>(b.ds) + square;
  // Two values per lane: what a query's P and dS cost is shared.
  for (int d = p.lane; d < a.dim; d += 64) {
    const int other = d + 32 < a.dim ? 32 : 0;
    float grad_k[2][8] = {}, grad_v[2][8] = {};
    if (j < p.length) {
      const float* q = static_cast<const float*>(a.q) + p.base + d;
      const float* grad = static_cast<const float*>(b.grad_out) + p.dense_base + d;
      const float* bias = a.bias_u + p.head * a.dim + d;
      for (int i = 0; i < p.length; ++i) {
        const Vec8 w = load8(weights + size_t(i) * row_width);
        const Vec8 s = load8(scores + size_t(i) * row_width);
        AERIE_UNROLL
        for (int n = 0; n < 2; ++n) {
          const float q_u = q[size_t(i) * a.stride + n * other] + bias[n * other];
          const float g = grad[size_t(i) * p.dense + n * other];
          AERIE_UNROLL
          for (int r = 0; r < 8; ++r) {
            grad_v[n][r] += w.v[r] * g;
            grad_k[n][r] += s.v[r] * q_u;
          }
        }
      }
    }
    AERIE_UNROLL
    for (int n = 0; n < 2; ++n) AERIE_UNROLL
    for (int r = 0; r < 8; ++r) {
      if (j + r >= p.rows || (n > 0 && other == 0)) continue;
      const size_t at = (p.first + j + r) * b.grad_stride + size_t(p.head) * a.dim + d + n * other;
      static_cast<float*>(b.grad_k)[at] = j + r < p.length ? grad_k[n][r] : 0.0f;
      static_cast<float*>(b.grad_v)[at] = j + r < p.length ? grad_v[n][r] : 0.0f;
    }
  }
}

// dR of eight positions per warp, summed over one group of items.
__global__ void __launch_bounds__(kFloatThreads) attention_dr_float(AttentionBackward b) {
  const Attention& a = b.forward;
  const int head = int(blockIdx.y), group = int(blockIdx.z), positions = 2 * a.frames - 1;
  const int m = (int(blockIdx.x) * kFloatWarps + int(threadIdx.x / 32)) * 8;
  if (m >= positions) return;
  const int row_width = attention_row(a.frames), dense = a.heads * a.dim;
  // Two values per lane: what a query's scores cost is shared.
  for (int d = int(threadIdx.x % 32); d < a.dim; d += 64) {
    const bool two = d + 32 < a.dim;
    const int other = two ? 32 : 0;
    float sum[8] = {}, other_sum[8] = {};
    const float bias = a.bias_v[head * a.dim + d], other_bias = a.bias_v[head * a.dim + d + other];
    for (int item = group; item < a.batch; item += attention_groups(a)) {
      const HeadRows p = head_rows(a, head, item);
      const float* q = static_cast<const float*>(a.q) + p.base + d;
      const float* scores =
          static_cast<const float*>(b.ds) + head_of(a, item, head) * a.frames * row_width;
      // Key of query i at position m: m - (frames - 1) + i.
      const int offset = m - (a.frames - 1);
      const int begin = offset + 7 < 0 ? -offset - 7 : 0;
      const int end = p.length < p.length - offset ? p.length : p.length - offset;
      for (int i = begin; i < end; ++i) {
        const float q_v = q[size_t(i) * a.stride] + bias;
        const float other_v = q[size_t(i) * a.stride + other] + other_bias;
        AERIE_UNROLL
        for (int r = 0; r < 8; ++r) {
          const int j = offset + i + r;
          const float s = j >= 0 && j < p.length ? scores[size_t(i) * row_width + j] : 0.0f;
          sum[r] += s * q_v;
          other_sum[r] += s * other_v;
        }
      }
    }
    for (int r = 0; r < 8 && m + r < positions; ++r) {
      float* out = b.r_partial + (size_t(group) * positions + m + r) * dense + head * a.dim + d;
      out[0] = sum[r];
      if (two) out[32] = other_sum[r];
    }
  }
}

}  // namespace aerie::kernels::AERIE_BACKEND
