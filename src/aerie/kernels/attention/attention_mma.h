// Attention on tensor cores (bf16), included by attention.cu alone.
//
// A block of four warps takes 64 queries of one head and walks over tiles of 64 keys. The relative
// part of a tile needs 127 rows of p; a warp's 16 queries see 79 of them. Their products are made
// like any other and then read along the diagonal through a small scratch of shared memory.
#pragma once

#include "aerie/kernels/attention/attention.h"
#include "aerie/kernels/attention/mma.h"

namespace aerie::kernels::AERIE_BACKEND {

constexpr int kTile = kAttentionTile;
constexpr int kBand = 2 * kTile;  // rows of p per tile, one of them unused
constexpr int kMmaWarps = 4;
constexpr int kMmaThreads = kMmaWarps * 32;
constexpr int kDiagonal = 80;  // columns of a warp's relative products
constexpr int kDiagonalStride = 84;

template <int kDim>
struct Tiles {
  static constexpr int kStride = kDim + 8;  // of a tile's row: no bank conflicts
  static constexpr size_t kTileBytes = sizeof(Bf16) * kTile * kStride;
  static constexpr size_t kDiagonalBytes = sizeof(float) * kMmaWarps * 16 * kDiagonalStride;
};

// `rows` rows from row `first` of a (limit, kDim) matrix into a tile; zero outside [0, limit).
// With a bias it is added to every row.
template <int kDim>
__device__ inline void load_rows(Bf16* tile, const Bf16* from, int first, int rows, int limit,
                                 int stride, const float* bias) {
  for (int i = threadIdx.x; i < rows * (kDim / 8); i += kMmaThreads) {
    const int row = i / (kDim / 8), column = i % (kDim / 8) * 8;
    Vec8 x = {};
    if (first + row >= 0 && first + row < limit) {
      x = load8(from + size_t(first + row) * stride + column);
      if (bias != nullptr) {
        const Vec8 more = load8(bias + column);
        AERIE_UNROLL
        for (int k = 0; k < 8; ++k) x.v[k] += more.v[k];
      }
    }
    store8(tile + row * Tiles<kDim>::kStride + column, x);
  }
}

// Keys and values from row j on, and the band of p that queries from i0 on see of them.
template <int kDim>
__device__ inline void load_key_tiles(const Attention& a, size_t base, int head, int length, int i0,
                                      int j, Bf16* keys, Bf16* values, Bf16* band) {
  load_rows<kDim>(keys, static_cast<const Bf16*>(a.k) + base, j, kTile, length, a.stride, nullptr);
  load_rows<kDim>(values, static_cast<const Bf16*>(a.v) + base, j, kTile, length, a.stride,
                  nullptr);
  load_rows<kDim>(band, static_cast<const Bf16*>(a.p) + size_t(head) * kDim,
                  a.frames - 1 - i0 - (kTile - 1) + j, kBand, 2 * a.frames - 1, a.p_stride,
                  nullptr);
}

// Factors of dropout for a warp's C tile at (i, j): rows i + g and i + g + 8, columns j + 2t, + 1.
// Four neighbouring columns are one Philox block: of two lanes that share one, the even makes the
// upper row's, the odd the lower row's.
__device__ inline void dropout_tile(const Dropout& dropout, int item, int head, int i, int j,
                                    int lane, float* factors) {
  const int g = lane / 4, t = lane % 4;
  const bool odd = t % 2 != 0;
  const int row = i + g + (odd ? 8 : 0);
  const uint32_t number =
      (uint32_t(head) << 24) + (uint32_t(row) << 11) + uint32_t((j + t / 2 * 4) >> 2);
  const PhiloxBlock block = philox_block(dropout.state->dropout_key, dropout.site,
                                         item_position(*dropout.state, uint64_t(item)), number);
  const uint32_t first = __shfl_xor_sync(kFullWarp, odd ? block.v[0] : block.v[2], 1);
  const uint32_t second = __shfl_xor_sync(kFullWarp, odd ? block.v[1] : block.v[3], 1);
  const uint32_t draws[4] = {odd ? first : block.v[0], odd ? second : block.v[1],
                             odd ? block.v[2] : first, odd ? block.v[3] : second};
  AERIE_UNROLL
  for (int k = 0; k < 4; ++k) factors[k] = draws[k] >= dropout.threshold ? dropout.scale : 0.0f;
}

// Scores of a warp's 16 queries (from `i` on) against the 64 keys in `keys`, scaled and masked to
// -infinity. `queries_u` and `queries_v` point at the warp's rows.
template <int kDim>
__device__ inline void score_tile(const Attention& a, int length, int i, int j, int warp, int lane,
                                  const Bf16* queries_u, const Bf16* queries_v, const Bf16* keys,
                                  const Bf16* band, float* diagonal, FragmentC* scores) {
  constexpr int kStride = Tiles<kDim>::kStride;
  const int g = lane / 4, t = lane % 4;
  // The warp's part of the band begins at row 48 - 16 * warp: key jj of query ii is row
  // jj - ii + 63 of the band.
  const Bf16* rows = band + (48 - 16 * warp) * kStride;
  for (int n = 0; n < kDiagonal / 8; ++n) {
    FragmentC c = {};
    AERIE_UNROLL
    for (int k = 0; k < kDim; k += 16)
      mma(c, load_a(queries_v + k, kStride, lane),
          load_b(rows + n * 8 * kStride + k, kStride, lane));
    float* out = diagonal + g * kDiagonalStride + n * 8 + 2 * t;
    out[0] = c.v[0];
    out[1] = c.v[1];
    out[8 * kDiagonalStride] = c.v[2];
    out[8 * kDiagonalStride + 1] = c.v[3];
  }
  __syncwarp();
  const float scale = 1.0f / sqrtf(float(kDim));
  AERIE_UNROLL
  for (int n = 0; n < kTile / 8; ++n) {
    FragmentC c = {};
    AERIE_UNROLL
    for (int k = 0; k < kDim; k += 16)
      mma(c, load_a(queries_u + k, kStride, lane),
          load_b(keys + n * 8 * kStride + k, kStride, lane));
    AERIE_UNROLL
    for (int e = 0; e < 4; ++e) {
      const int row = g + e / 2 * 8, column = n * 8 + 2 * t + e % 2;
      const float relative = diagonal[row * kDiagonalStride + column - row + 15];
      scores[n].v[e] = attention_allowed(a, length, i + row, j + column)
                           ? (c.v[e] + relative) * scale
                           : -INFINITY;
    }
  }
  __syncwarp();
}

__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, 1));
  return fmaxf(x, __shfl_xor_sync(kFullWarp, x, 2));
}
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(kFullWarp, x, 1);
  return x + __shfl_xor_sync(kFullWarp, x, 2);
}

// Keys that the queries [i, i + 64) may see end here, and begin at a tile from here on.
__device__ inline int last_key(const Attention& a, int length, int i) {
  if (a.chunk > 0) {
    const int end = ((i + kTile - 1) / a.chunk + 1) * a.chunk;
    return end < length ? end : length;
  }
  return a.right >= 0 && i + kTile + a.right < length ? i + kTile + a.right : length;
}

template <int kDim>
constexpr size_t forward_shared() {
  return 2 * Tiles<kDim>::kTileBytes /* queries */ +
         2 * Tiles<kDim>::kTileBytes /* keys, values */ + 2 * Tiles<kDim>::kTileBytes /* band */ +
         Tiles<kDim>::kDiagonalBytes;
}

template <int kDim>
__global__ void __launch_bounds__(kMmaThreads) attention_forward_mma(Attention a) {
  constexpr int kStride = Tiles<kDim>::kStride;
  AERIE_DYNAMIC_SHARED(memory);
  Bf16* queries_u = reinterpret_cast<Bf16*>(memory);
  Bf16* queries_v = queries_u + kTile * kStride;
  Bf16* keys = queries_v + kTile * kStride;
  Bf16* values = keys + kTile * kStride;
  Bf16* band = values + kTile * kStride;
  float* diagonal = reinterpret_cast<float*>(band + kBand * kStride);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int i0 = blockIdx.x * kTile, head = blockIdx.y, item = blockIdx.z;
  const int length = a.lengths[item] < a.frames ? a.lengths[item] : a.frames;
  const size_t base = size_t(item) * a.frames * a.stride + size_t(head) * kDim;
  const Bf16* q = static_cast<const Bf16*>(a.q) + base;
  load_rows<kDim>(queries_u, q, i0, kTile, length, a.stride, a.bias_u + head * kDim);
  load_rows<kDim>(queries_v, q, i0, kTile, length, a.stride, a.bias_v + head * kDim);
  diagonal += warp * 16 * kDiagonalStride;
  const int i = i0 + warp * 16;

  FragmentC mixed[kDim / 8] = {};
  float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
  const int end = i0 < length ? last_key(a, length, i0) : 0;
  for (int j = 0; j < end; j += kTile) {
    __syncthreads();  // the last tile has been used
    load_key_tiles<kDim>(a, base, head, length, i0, j, keys, values, band);
    __syncthreads();
    FragmentC scores[kTile / 8] = {};
    score_tile<kDim>(a, length, i, j, warp, lane, queries_u + warp * 16 * kStride,
                     queries_v + warp * 16 * kStride, keys, band, diagonal, scores);
    float rescale[2], shift[2];
    AERIE_UNROLL
    for (int r = 0; r < 2; ++r) {
      float top = largest[r];
      AERIE_UNROLL
      for (int n = 0; n < kTile / 8; ++n)
        top = fmaxf(top, fmaxf(scores[n].v[2 * r], scores[n].v[2 * r + 1]));
      top = quad_max(top);
      shift[r] = top > -INFINITY ? top : 0.0f;  // a row without keys so far
      rescale[r] = expf(largest[r] - shift[r]);
      largest[r] = top;
      sum[r] *= rescale[r];
    }
    AERIE_UNROLL
    for (int n = 0; n < kDim / 8; ++n) AERIE_UNROLL
    for (int e = 0; e < 4; ++e) mixed[n].v[e] *= rescale[e / 2];
    AERIE_UNROLL
    for (int n = 0; n < kTile / 8; ++n) {
      float factors[4] = {1.0f, 1.0f, 1.0f, 1.0f};
      if (a.dropout.threshold != 0)
        dropout_tile(a.dropout, item, head, i, j + n * 8, lane, factors);
      AERIE_UNROLL
      for (int e = 0; e < 4; ++e) {
        const float weight = expf(scores[n].v[e] - shift[e / 2]);
        sum[e / 2] += weight;
        scores[n].v[e] = weight * factors[e];
      }
    }
    AERIE_UNROLL
    for (int k = 0; k < kTile / 16; ++k) {
      const FragmentA weights = as_a(scores[2 * k], scores[2 * k + 1]);
      AERIE_UNROLL
      for (int n = 0; n < kDim / 8; ++n)
        mma(mixed[n], weights, load_b_transposed(values + k * 16 * kStride + n * 8, kStride, lane));
    }
  }
  AERIE_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = i + g + r * 8;
    const float total = quad_sum(sum[r]);
    if (row >= a.frames) continue;
    const float inverse = total > 0.0f ? 1.0f / total : 0.0f;
    Bf16* out = static_cast<Bf16*>(a.out) + (size_t(item) * a.frames + row) * a.heads * kDim +
                head * kDim + 2 * t;
    AERIE_UNROLL
    for (int n = 0; n < kDim / 8; ++n)
      *reinterpret_cast<uint32_t*>(out + n * 8) =
          pack2<Bf16>(mixed[n].v[2 * r] * inverse, mixed[n].v[2 * r + 1] * inverse);
    if (t == 0)
      a.log_sum[(size_t(item) * a.heads + head) * a.frames + row] =
          total > 0.0f ? largest[r] + logf(total) : 0.0f;
  }
}

template <int kDim>
constexpr size_t backward_shared() {
  return forward_shared<kDim>() + Tiles<kDim>::kTileBytes /* grad_out */;
}

// Gradients of the queries, and into scratch the weights (with dropout) and the scores' gradients.
template <int kDim>
__global__ void __launch_bounds__(kMmaThreads) attention_query_grad_mma(AttentionBackward b) {
  constexpr int kStride = Tiles<kDim>::kStride;
  AERIE_DYNAMIC_SHARED(memory);
  const Attention& a = b.forward;
  Bf16* queries_u = reinterpret_cast<Bf16*>(memory);
  Bf16* queries_v = queries_u + kTile * kStride;
  Bf16* keys = queries_v + kTile * kStride;
  Bf16* values = keys + kTile * kStride;
  Bf16* band = values + kTile * kStride;
  Bf16* grads = band + kBand * kStride;
  float* all_diagonals = reinterpret_cast<float*>(grads + kTile * kStride);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int i0 = blockIdx.x * kTile, head = blockIdx.y, item = blockIdx.z;
  const int length = a.lengths[item] < a.frames ? a.lengths[item] : a.frames;
  const size_t base = size_t(item) * a.frames * a.stride + size_t(head) * kDim;
  const Bf16* q = static_cast<const Bf16*>(a.q) + base;
  const int dense = a.heads * kDim;
  const size_t dense_base = size_t(item) * a.frames * dense + size_t(head) * kDim;
  load_rows<kDim>(queries_u, q, i0, kTile, length, a.stride, a.bias_u + head * kDim);
  load_rows<kDim>(queries_v, q, i0, kTile, length, a.stride, a.bias_v + head * kDim);
  load_rows<kDim>(grads, static_cast<const Bf16*>(b.grad_out) + dense_base, i0, kTile, length,
                  dense, nullptr);
  float* diagonal = all_diagonals + warp * 16 * kDiagonalStride;
  const int i = i0 + warp * 16;

  // Per query: out . grad_out, and the softmax's denominator.
  float inner[2] = {0.0f, 0.0f}, log_sum[2] = {0.0f, 0.0f};
  AERIE_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = i + g + r * 8;
    if (row < length) {
      const Bf16* out = static_cast<const Bf16*>(a.out) + dense_base + size_t(row) * dense;
      const Bf16* grad = static_cast<const Bf16*>(b.grad_out) + dense_base + size_t(row) * dense;
      for (int d = t; d < kDim; d += 4) inner[r] += to_float(out[d]) * to_float(grad[d]);
      log_sum[r] = a.log_sum[(size_t(item) * a.heads + head) * a.frames + row];
    }
    inner[r] = quad_sum(inner[r]);
  }

  FragmentC grad_u[kDim / 8] = {}, grad_v[kDim / 8] = {};
  const float scale = 1.0f / sqrtf(float(kDim));
  const int row_width = attention_row(a.frames);
  const size_t square = (size_t(item) * a.heads + head) * a.frames * row_width;
  for (int j = 0; j < length && i0 < length; j += kTile) {
    __syncthreads();
    load_key_tiles<kDim>(a, base, head, length, i0, j, keys, values, band);
    __syncthreads();
    FragmentC scores[kTile / 8] = {};
    score_tile<kDim>(a, length, i, j, warp, lane, queries_u + warp * 16 * kStride,
                     queries_v + warp * 16 * kStride, keys, band, diagonal, scores);
    for (int e = lane; e < 16 * kDiagonalStride; e += 32) diagonal[e] = 0.0f;
    __syncwarp();
    AERIE_UNROLL
    for (int n = 0; n < kTile / 8; ++n) {
      FragmentC d_weight = {};
      AERIE_UNROLL
      for (int k = 0; k < kDim; k += 16)
        mma(d_weight, load_a(grads + warp * 16 * kStride + k, kStride, lane),
            load_b(values + n * 8 * kStride + k, kStride, lane));
      float factors[4] = {1.0f, 1.0f, 1.0f, 1.0f};
      if (a.dropout.threshold != 0)
        dropout_tile(a.dropout, item, head, i, j + n * 8, lane, factors);
      float dropped[4];
      AERIE_UNROLL
      for (int e = 0; e < 4; ++e) {
        const float weight =
            scores[n].v[e] > -INFINITY ? expf(scores[n].v[e] - log_sum[e / 2]) : 0.0f;
        dropped[e] = weight * factors[e];
        scores[n].v[e] = weight * (factors[e] * d_weight.v[e] - inner[e / 2]) * scale;
        const int row = g + e / 2 * 8, column = n * 8 + 2 * t + e % 2;
        diagonal[row * kDiagonalStride + column - row + 15] = scores[n].v[e];
      }
      AERIE_UNROLL
      for (int r = 0; r < 2; ++r) {
        const int row = i + g + r * 8, column = j + n * 8 + 2 * t;
        if (row >= a.frames || column >= row_width) continue;
        const size_t at = square + size_t(row) * row_width + column;
        *reinterpret_cast<uint32_t*>(static_cast<Bf16*>(b.weights) + at) =
            pack2<Bf16>(dropped[2 * r], dropped[2 * r + 1]);
        *reinterpret_cast<uint32_t*>(static_cast<Bf16*>(b.grad_scores) + at) =
            pack2<Bf16>(scores[n].v[2 * r], scores[n].v[2 * r + 1]);
      }
    }
    __syncwarp();
    AERIE_UNROLL
    for (int k = 0; k < kTile / 16; ++k) {
      const FragmentA d = as_a(scores[2 * k], scores[2 * k + 1]);
      AERIE_UNROLL
      for (int n = 0; n < kDim / 8; ++n)
        mma(grad_u[n], d, load_b_transposed(keys + k * 16 * kStride + n * 8, kStride, lane));
    }
    const Bf16* rows = band + (48 - 16 * warp) * kStride;
    for (int k = 0; k < kDiagonal / 16; ++k) {
      const float* from = diagonal + g * kDiagonalStride + k * 16 + 2 * t;
      const float* lower = from + 8 * kDiagonalStride;
      const FragmentA d = {{pack2<Bf16>(from[0], from[1]), pack2<Bf16>(lower[0], lower[1]),
                            pack2<Bf16>(from[8], from[9]), pack2<Bf16>(lower[8], lower[9])}};
      AERIE_UNROLL
      for (int n = 0; n < kDim / 8; ++n)
        mma(grad_v[n], d, load_b_transposed(rows + k * 16 * kStride + n * 8, kStride, lane));
    }
    __syncwarp();
  }

  AERIE_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = i + g + r * 8;
    if (row >= a.frames) continue;
    Bf16* out = static_cast<Bf16*>(b.grad_q) + (size_t(item) * a.frames + row) * b.grad_stride +
                head * kDim + 2 * t;
    AERIE_UNROLL
    for (int n = 0; n < kDim / 8; ++n)
      *reinterpret_cast<uint32_t*>(out + n * 8) = pack2<Bf16>(
          grad_u[n].v[2 * r] + grad_v[n].v[2 * r], grad_u[n].v[2 * r + 1] + grad_v[n].v[2 * r + 1]);
  }
  // Column sums of the 64 queries: each warp's own first, then over warps.
  __syncthreads();
  AERIE_UNROLL
  for (int n = 0; n < kDim / 8; ++n) AERIE_UNROLL
  for (int e = 0; e < 2; ++e) {
    float u = grad_u[n].v[e] + grad_u[n].v[e + 2], v = grad_v[n].v[e] + grad_v[n].v[e + 2];
    AERIE_UNROLL
    for (int mask = 4; mask < 32; mask <<= 1) {
      u += __shfl_xor_sync(kFullWarp, u, mask);
      v += __shfl_xor_sync(kFullWarp, v, mask);
    }
    if (g == 0) {
      all_diagonals[warp * 2 * kDim + n * 8 + 2 * t + e] = u;
      all_diagonals[(warp * 2 + 1) * kDim + n * 8 + 2 * t + e] = v;
    }
  }
  __syncthreads();
  float* partial = b.bias_partial + (size_t(item) * gridDim.x + blockIdx.x) * 2 * dense;
  for (int d = threadIdx.x; d < 2 * kDim; d += kMmaThreads) {
    float sum = 0.0f;
    for (int w = 0; w < kMmaWarps; ++w) sum += all_diagonals[w * 2 * kDim + d];
    partial[d / kDim * dense + head * kDim + d % kDim] = sum;
  }
}

// A (rows k, 64 columns) piece of a scratch square into a tile: value (r, c) is square[first_row +
// r] [first_column + c + r * slant], zero outside [0, limit) either way.
__device__ inline void load_square(Bf16* tile, int tile_stride, const Bf16* square, int first_row,
                                   int first_column, int slant, int limit, int row_width) {
  for (int e = threadIdx.x; e < kTile * kTile; e += kMmaThreads) {
    const int row = first_row + e / kTile, column = first_column + e % kTile + e / kTile * slant;
    const bool inside = row < limit && column >= 0 && column < limit;
    tile[e / kTile * tile_stride + e % kTile] =
        inside ? square[size_t(row) * row_width + column] : Bf16{0};
  }
}

constexpr int kSquareStride = kTile + 8;

template <int kDim>
constexpr size_t transposed_shared() {
  return 2 * sizeof(Bf16) * kTile * kSquareStride + 2 * Tiles<kDim>::kTileBytes;
}

// out (64 x kDim) += square^T * rows, both tiles in shared memory with the sum's index first.
template <int kDim>
__device__ inline void multiply_transposed(FragmentC* out, const Bf16* square, const Bf16* rows,
                                           int warp, int lane) {
  AERIE_UNROLL
  for (int k = 0; k < kTile; k += 16) {
    const FragmentA left =
        load_a_transposed(square + k * kSquareStride + warp * 16, kSquareStride, lane);
    AERIE_UNROLL
    for (int n = 0; n < kDim / 8; ++n)
      mma(out[n], left,
          load_b_transposed(rows + k * Tiles<kDim>::kStride + n * 8, Tiles<kDim>::kStride, lane));
  }
}

// Gradients of keys and values of one tile.
template <int kDim>
__global__ void __launch_bounds__(kMmaThreads) attention_key_grad_mma(AttentionBackward b) {
  constexpr int kStride = Tiles<kDim>::kStride;
  AERIE_DYNAMIC_SHARED(memory);
  const Attention& a = b.forward;
  Bf16* weights = reinterpret_cast<Bf16*>(memory);
  Bf16* scores = weights + kTile * kSquareStride;
  Bf16* grads = scores + kTile * kSquareStride;
  Bf16* queries = grads + kTile * kStride;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int j0 = blockIdx.x * kTile, head = blockIdx.y, item = blockIdx.z;
  const int length = a.lengths[item] < a.frames ? a.lengths[item] : a.frames;
  const int dense = a.heads * kDim, row_width = attention_row(a.frames);
  const size_t square = (size_t(item) * a.heads + head) * a.frames * row_width;
  FragmentC grad_k[kDim / 8] = {}, grad_v[kDim / 8] = {};
  for (int i = 0; i < length && j0 < length; i += kTile) {
    __syncthreads();
    load_square(weights, kSquareStride, static_cast<const Bf16*>(b.weights) + square, i, j0, 0,
                length, row_width);
    load_square(scores, kSquareStride, static_cast<const Bf16*>(b.grad_scores) + square, i, j0, 0,
                length, row_width);
    load_rows<kDim>(grads,
                    static_cast<const Bf16*>(b.grad_out) + size_t(item) * a.frames * dense +
                        size_t(head) * kDim,
                    i, kTile, length, dense, nullptr);
    load_rows<kDim>(
        queries,
        static_cast<const Bf16*>(a.q) + size_t(item) * a.frames * a.stride + size_t(head) * kDim, i,
        kTile, length, a.stride, a.bias_u + head * kDim);
    __syncthreads();
    multiply_transposed<kDim>(grad_v, weights, grads, warp, lane);
    multiply_transposed<kDim>(grad_k, scores, queries, warp, lane);
  }
  AERIE_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = j0 + warp * 16 + g + r * 8;
    if (row >= a.frames) continue;
    const size_t at = (size_t(item) * a.frames + row) * b.grad_stride + size_t(head) * kDim + 2 * t;
    AERIE_UNROLL
    for (int n = 0; n < kDim / 8; ++n) {
      *reinterpret_cast<uint32_t*>(static_cast<Bf16*>(b.grad_k) + at + n * 8) =
          pack2<Bf16>(grad_k[n].v[2 * r], grad_k[n].v[2 * r + 1]);
      *reinterpret_cast<uint32_t*>(static_cast<Bf16*>(b.grad_v) + at + n * 8) =
          pack2<Bf16>(grad_v[n].v[2 * r], grad_v[n].v[2 * r + 1]);
    }
  }
}

// Gradients of 64 positions, summed over one group of items.
template <int kDim>
__global__ void __launch_bounds__(kMmaThreads) attention_position_grad_mma(AttentionBackward b) {
  AERIE_DYNAMIC_SHARED(memory);
  const Attention& a = b.forward;
  Bf16* scores = reinterpret_cast<Bf16*>(memory);
  Bf16* queries = scores + kTile * kSquareStride;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int m0 = blockIdx.x * kTile, head = blockIdx.y, group = blockIdx.z;
  const int dense = a.heads * kDim, row_width = attention_row(a.frames);
  FragmentC sum[kDim / 8] = {};
  for (int item = group; item < a.batch; item += kAttentionGroups) {
    const int length = a.lengths[item] < a.frames ? a.lengths[item] : a.frames;
    const size_t square = (size_t(item) * a.heads + head) * a.frames * row_width;
    for (int i = 0; i < length; i += kTile) {
      // Key of query i + r at position m0 + c: m0 + c - (frames - 1) + i + r.
      const int first = m0 - (a.frames - 1) + i;
      if (first >= length || first + 2 * (kTile - 1) < 0) continue;
      __syncthreads();
      load_square(scores, kSquareStride, static_cast<const Bf16*>(b.grad_scores) + square, i, first,
                  1, length, row_width);
      load_rows<kDim>(
          queries,
          static_cast<const Bf16*>(a.q) + size_t(item) * a.frames * a.stride + size_t(head) * kDim,
          i, kTile, length, a.stride, a.bias_v + head * kDim);
      __syncthreads();
      multiply_transposed<kDim>(sum, scores, queries, warp, lane);
    }
  }
  AERIE_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = m0 + warp * 16 + g + r * 8;
    if (row >= 2 * a.frames - 1) continue;
    float* out =
        b.p_partial + (size_t(group) * (2 * a.frames - 1) + row) * dense + head * kDim + 2 * t;
    AERIE_UNROLL
    for (int n = 0; n < kDim / 8; ++n) {
      out[n * 8] = sum[n].v[2 * r];
      out[n * 8 + 1] = sum[n].v[2 * r + 1];
    }
  }
}

}  // namespace aerie::kernels::AERIE_BACKEND
