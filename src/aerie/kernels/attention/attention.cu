// Which kernel runs where; and the float32 path: one warp per query (or key, or position), lanes
// over keys for scores and over values for sums.
#include <type_traits>

#include "aerie/kernels/attention/attention.h"
#include "aerie/kernels/attention/attention_backward.h"
#include "aerie/kernels/attention/attention_forward.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kQueries = kAttentionTile / kWarps;  // per warp
constexpr int kFinishThreads = 256;
constexpr size_t kMostShared = 200 * 1024;

// What a block works on.
struct Place {
  int lane, warp, head, item, length, dense;
  size_t base;        // of the item's head in q, k, v
  size_t dense_base;  // in out and its gradient
};
__device__ inline Place place_of(const Attention& a, int head, int item) {
  Place p;
  p.lane = threadIdx.x % 32;
  p.warp = threadIdx.x / 32;
  p.head = head;
  p.item = item;
  p.length = a.lengths[item] < a.frames ? a.lengths[item] : a.frames;
  p.dense = a.heads * a.dim;
  p.base = size_t(item) * a.frames * a.stride + size_t(head) * a.dim;
  p.dense_base = size_t(item) * a.frames * p.dense + size_t(head) * a.dim;
  return p;
}

__device__ inline float dot(const float* a, const float* b, int n) {
  float sum = 0.0f;
  for (int d = 0; d < n; ++d) sum += a[d] * b[d];
  return sum;
}

__device__ inline float weight_factor(const Attention& a, const Place& p, int i, int j) {
  if (a.dropout.threshold == 0) return 1.0f;
  const RandomState& state = *a.dropout.state;
  const uint32_t draw =
      philox_u32(state.dropout_key, a.dropout.site, item_position(state, uint64_t(p.item)),
                 (uint64_t(p.head) << 26) + (uint64_t(i) << 13) + uint64_t(j));
  return draw >= a.dropout.threshold ? a.dropout.scale : 0.0f;
}

// Query i with either bias, by one warp.
__device__ inline void load_query(const Attention& a, const Place& p, int i, float* u, float* v) {
  const float* q = static_cast<const float*>(a.q) + p.base + size_t(i) * a.stride;
  for (int d = p.lane; d < a.dim; d += 32) {
    u[d] = q[d] + a.bias_u[p.head * a.dim + d];
    v[d] = q[d] + a.bias_v[p.head * a.dim + d];
  }
  __syncwarp();
}

__device__ inline float score(const Attention& a, const Place& p, int i, int j, const float* u,
                              const float* v) {
  if (!attention_allowed(a, p.length, i, j)) return -INFINITY;
  const float* key = static_cast<const float*>(a.k) + p.base + size_t(j) * a.stride;
  const float* position = static_cast<const float*>(a.p) +
                          size_t(a.frames - 1 - i + j) * a.p_stride + size_t(p.head) * a.dim;
  return (dot(u, key, a.dim) + dot(v, position, a.dim)) / sqrtf(float(a.dim));
}

__global__ void __launch_bounds__(kThreads) forward_float(Attention a) {
  AERIE_DYNAMIC_SHARED(memory);
  const Place p = place_of(a, blockIdx.y, blockIdx.z);
  float* u = reinterpret_cast<float*>(memory) + p.warp * (2 * a.dim + a.frames);
  float* v = u + a.dim;
  float* row = v + a.dim;
  for (int r = 0; r < kQueries; ++r) {
    const int i = blockIdx.x * kAttentionTile + p.warp * kQueries + r;
    if (i >= a.frames) break;
    float largest = -INFINITY, sum = 0.0f;
    if (i < p.length) {
      load_query(a, p, i, u, v);
      for (int j = p.lane; j < p.length; j += 32) {
        row[j] = score(a, p, i, j, u, v);
        largest = fmaxf(largest, row[j]);
      }
      largest = warp_max(largest);
      for (int j = p.lane; j < p.length; j += 32) {
        const float weight = expf(row[j] - largest);
        sum += weight;
        row[j] = weight * weight_factor(a, p, i, j);
      }
      sum = warp_sum(sum);
    }
    __syncwarp();
    float* out = static_cast<float*>(a.out) + p.dense_base + size_t(i) * p.dense;
    for (int d = p.lane; d < a.dim; d += 32) {
      float mixed = 0.0f;
      if (i < p.length) {
        const float* value = static_cast<const float*>(a.v) + p.base + d;
        for (int j = 0; j < p.length; ++j) mixed += row[j] * value[size_t(j) * a.stride];
        mixed /= sum;
      }
      out[d] = mixed;
    }
    if (p.lane == 0)
      a.log_sum[(size_t(p.item) * a.heads + p.head) * a.frames + i] =
          i < p.length ? largest + logf(sum) : 0.0f;
    __syncwarp();
  }
}

__global__ void __launch_bounds__(kThreads) query_grad_float(AttentionBackward b) {
  AERIE_DYNAMIC_SHARED(memory);
  const Attention& a = b.forward;
  const Place p = place_of(a, blockIdx.y, blockIdx.z);
  float* all = reinterpret_cast<float*>(memory);
  float* sums_u = all + p.warp * (5 * a.dim + a.frames);
  float* sums_v = sums_u + a.dim;
  float* u = sums_v + a.dim;
  float* v = u + a.dim;
  float* grad = v + a.dim;
  float* row = grad + a.dim;
  for (int d = p.lane; d < a.dim; d += 32) sums_u[d] = sums_v[d] = 0.0f;
  const int row_width = attention_row(a.frames);
  const size_t square = (size_t(p.item) * a.heads + p.head) * a.frames * row_width;
  const float scale = 1.0f / sqrtf(float(a.dim));
  for (int r = 0; r < kQueries; ++r) {
    const int i = blockIdx.x * kAttentionTile + p.warp * kQueries + r;
    if (i >= a.frames) break;
    if (i < p.length) {
      const float* from =
          static_cast<const float*>(b.grad_out) + p.dense_base + size_t(i) * p.dense;
      const float* out = static_cast<const float*>(a.out) + p.dense_base + size_t(i) * p.dense;
      float inner = 0.0f;
      for (int d = p.lane; d < a.dim; d += 32) {
        grad[d] = from[d];
        inner += from[d] * out[d];
      }
      inner = warp_sum(inner);
      load_query(a, p, i, u, v);
      const float log_sum = a.log_sum[(size_t(p.item) * a.heads + p.head) * a.frames + i];
      for (int j = p.lane; j < p.length; j += 32) {
        const float s = score(a, p, i, j, u, v);
        const float weight = s > -INFINITY ? expf(s - log_sum) : 0.0f;
        const float factor = weight_factor(a, p, i, j);
        const float* value = static_cast<const float*>(a.v) + p.base + size_t(j) * a.stride;
        row[j] = weight * (factor * dot(grad, value, a.dim) - inner) * scale;
        static_cast<float*>(b.weights)[square + size_t(i) * row_width + j] = weight * factor;
        static_cast<float*>(b.grad_scores)[square + size_t(i) * row_width + j] = row[j];
      }
      __syncwarp();
    }
    float* out = static_cast<float*>(b.grad_q) + (size_t(p.item) * a.frames + i) * b.grad_stride +
                 p.head * a.dim;
    for (int d = p.lane; d < a.dim; d += 32) {
      float grad_u = 0.0f, grad_v = 0.0f;
      if (i < p.length) {
        const float* key = static_cast<const float*>(a.k) + p.base + d;
        const float* position = static_cast<const float*>(a.p) +
                                size_t(a.frames - 1 - i) * a.p_stride + size_t(p.head) * a.dim + d;
        for (int j = 0; j < p.length; ++j) {
          grad_u += row[j] * key[size_t(j) * a.stride];
          grad_v += row[j] * position[size_t(j) * a.p_stride];
        }
      }
      out[d] = grad_u + grad_v;
      sums_u[d] += grad_u;
      sums_v[d] += grad_v;
    }
    __syncwarp();
  }
  __syncthreads();
  float* partial = b.bias_partial + (size_t(p.item) * gridDim.x + blockIdx.x) * p.dense;
  const size_t second = size_t(a.batch) * gridDim.x * p.dense;
  for (int d = threadIdx.x; d < 2 * a.dim; d += kThreads) {
    float sum = 0.0f;
    for (int w = 0; w < kWarps; ++w) sum += all[w * (5 * a.dim + a.frames) + d];
    partial[d / a.dim * second + p.head * a.dim + d % a.dim] = sum;
  }
}

__global__ void __launch_bounds__(kThreads) key_grad_float(AttentionBackward b) {
  const Attention& a = b.forward;
  const Place p = place_of(a, blockIdx.y, blockIdx.z);
  const int j = blockIdx.x * kWarps + p.warp;
  if (j >= a.frames) return;
  const int row_width = attention_row(a.frames);
  const size_t square = (size_t(p.item) * a.heads + p.head) * a.frames * row_width + j;
  const size_t at = (size_t(p.item) * a.frames + j) * b.grad_stride + size_t(p.head) * a.dim;
  for (int d = p.lane; d < a.dim; d += 32) {
    float grad_k = 0.0f, grad_v = 0.0f;
    if (j < p.length) {
      const float* q = static_cast<const float*>(a.q) + p.base + d;
      const float* grad = static_cast<const float*>(b.grad_out) + p.dense_base + d;
      const float bias = a.bias_u[p.head * a.dim + d];
      for (int i = 0; i < p.length; ++i) {
        const size_t cell = square + size_t(i) * row_width;
        grad_v += static_cast<const float*>(b.weights)[cell] * grad[size_t(i) * p.dense];
        grad_k += static_cast<const float*>(b.grad_scores)[cell] * (q[size_t(i) * a.stride] + bias);
      }
    }
    static_cast<float*>(b.grad_k)[at + d] = grad_k;
    static_cast<float*>(b.grad_v)[at + d] = grad_v;
  }
}

__global__ void __launch_bounds__(kThreads) position_grad_float(AttentionBackward b) {
  const Attention& a = b.forward;
  const int lane = threadIdx.x % 32, m = blockIdx.x * kWarps + threadIdx.x / 32;
  const int head = blockIdx.y, group = blockIdx.z;
  if (m >= 2 * a.frames - 1) return;
  const int row_width = attention_row(a.frames), dense = a.heads * a.dim;
  for (int d = lane; d < a.dim; d += 32) {
    float sum = 0.0f;
    for (int item = group; item < a.batch; item += kAttentionGroups) {
      const Place p = place_of(a, head, item);
      const float* q = static_cast<const float*>(a.q) + p.base + d;
      const size_t square = (size_t(item) * a.heads + head) * a.frames * row_width;
      for (int i = 0; i < p.length; ++i) {
        const int j = m - (a.frames - 1) + i;
        if (j < 0 || j >= p.length) continue;
        sum += static_cast<const float*>(b.grad_scores)[square + size_t(i) * row_width + j] *
               (q[size_t(i) * a.stride] + a.bias_v[head * a.dim + d]);
      }
    }
    b.p_partial[(size_t(group) * (2 * a.frames - 1) + m) * dense + head * a.dim + d] = sum;
  }
}

// Adds the groups of items, and the parts of the two biases.
struct Finish {
  AttentionBackward b;
  int parts_u = 0, parts_v = 0;
  int bias_blocks = 0;  // 32 columns each; the others take positions
};
template <typename T>
__global__ void __launch_bounds__(kFinishThreads) finish_backward(Finish f) {
  AERIE_SHARED(float, sums, kFinishThreads);
  const AttentionBackward& b = f.b;
  const Attention& a = b.forward;
  const int dense = a.heads * a.dim, rows = 2 * a.frames - 1;
  if (int(blockIdx.x) >= f.bias_blocks) {
    const int vec = (blockIdx.x - f.bias_blocks) * kFinishThreads + threadIdx.x;
    if (vec >= rows * (dense / 8)) return;
    const int row = vec / (dense / 8), column = vec % (dense / 8) * 8;
    Vec8 more[kAttentionGroups], sum = {};
    AERIE_UNROLL
    for (int group = 0; group < kAttentionGroups; ++group)
      more[group] = load8(b.p_partial + (size_t(group) * rows + row) * dense + column);
    AERIE_UNROLL
    for (int group = 0; group < kAttentionGroups; ++group) AERIE_UNROLL
    for (int k = 0; k < 8; ++k) sum.v[k] += more[group].v[k];
    store8(static_cast<T*>(b.grad_p) + size_t(row) * b.grad_p_stride + column, sum);
    return;
  }
  // Eight groups of threads share the parts of 32 columns.
  const int lane = threadIdx.x % 32, group = threadIdx.x / 32;
  const int column = blockIdx.x * 32 + lane;
  const bool second = column >= dense;
  const int parts = second ? f.parts_v : f.parts_u;
  const float* partial = b.bias_partial + (second ? size_t(f.parts_u - 1) * dense : 0) + column;
  float sum = 0.0f;
  if (column < 2 * dense)
    for (int p = group; p < parts; p += kFinishThreads / 32) sum += partial[size_t(p) * dense];
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (group != 0 || column >= 2 * dense) return;
  for (int g = 1; g < kFinishThreads / 32; ++g) sum += sums[g * 32 + lane];
  float* out = second ? b.grad_bias_v + (column - dense) : b.grad_bias_u + column;
  *out = b.accumulate ? *out + sum : sum;
}

bool covered(const Attention& a) {
  if (a.batch <= 0 || a.frames <= 0 || a.frames > 8192 || a.heads <= 0 || a.heads > 255 ||
      a.stride % 8 != 0 || a.p_stride % 8 != 0)
    return false;
  if (a.dtype != Dtype::kFloat) return a.dim == 64 || a.dim == 128;
  return a.dim > 0 && a.dim % 8 == 0 && a.dim <= 256;
}

dim3 grid_of(const Attention& a, int rows, int per_block, int layers) {
  return dim3(unsigned(ceil_div(rows, per_block)), unsigned(a.heads), unsigned(layers));
}

// Calls body with a value of the 16-bit type and the number of values per head.
template <typename Body>
int for_type(const Attention& a, Body body) {
  const auto with = [&](auto type) {
    return a.dim == 64 ? body(type, std::integral_constant<int, 64>{})
                       : body(type, std::integral_constant<int, 128>{});
  };
  return a.dtype == Dtype::kBf16 ? with(Bf16{}) : with(Half{});
}

template <typename T, int kDim>
int forward_mma(const Attention& a, void* stream) {
  const LaunchShape shape{grid_of(a, a.frames, kTile, a.batch), dim3(kMmaThreads),
                          query_shared<kDim>()};
  return a.dropout.threshold != 0 ? launch(stream, shape, attention_forward_mma<T, kDim, true>, a)
                                  : launch(stream, shape, attention_forward_mma<T, kDim, false>, a);
}

template <typename T, int kDim>
int backward_mma(const AttentionBackward& b, void* stream) {
  const Attention& a = b.forward;
  const dim3 block(kMmaThreads);
  AERIE_TRY(launch(stream, {grid_of(a, a.frames, kTile, a.batch), block, query_shared<kDim>()},
                   attention_query_grad_mma<T, kDim>, b));
  return launch(stream, {dim3(unsigned(sum_blocks(a))), block, sum_shared<kDim>()},
                attention_sums_mma<T, kDim>, b);
}

int backward_float(const AttentionBackward& b, void* stream) {
  const Attention& a = b.forward;
  const dim3 block(kThreads);
  const size_t shared = sizeof(float) * kWarps * (5 * size_t(a.dim) + a.frames);
  if (shared > kMostShared) return kUnsupported;
  AERIE_TRY(launch(stream, {grid_of(a, a.frames, kAttentionTile, a.batch), block, shared},
                   query_grad_float, b));
  AERIE_TRY(launch(stream, {grid_of(a, a.frames, kWarps, a.batch), block}, key_grad_float, b));
  return launch(stream, {grid_of(a, 2 * a.frames - 1, kWarps, kAttentionGroups), block},
                position_grad_float, b);
}

}  // namespace

int attention(const Attention& a, void* stream) {
  if (!covered(a)) return kUnsupported;
  if (a.dtype != Dtype::kFloat)
    return for_type(a, [&](auto type, auto dim) {
      return forward_mma<decltype(type), decltype(dim)::value>(a, stream);
    });
  const size_t shared = sizeof(float) * kWarps * (2 * size_t(a.dim) + a.frames);
  if (shared > kMostShared) return kUnsupported;
  return launch(stream, {grid_of(a, a.frames, kAttentionTile, a.batch), dim3(kThreads), shared},
                forward_float, a);
}

int attention_backward(const AttentionBackward& b, void* stream) {
  const Attention& a = b.forward;
  if (!covered(a) || b.grad_stride % 8 != 0 || b.grad_p_stride % 8 != 0) return kUnsupported;
  AERIE_TRY(
      a.dtype == Dtype::kFloat ? backward_float(b, stream) : for_type(a, [&](auto type, auto dim) {
        return backward_mma<decltype(type), decltype(dim)::value>(b, stream);
      }));
  const int dense = a.heads * a.dim, tiles = attention_tiles(a.frames);
  Finish finish;
  finish.b = b;
  finish.parts_u = a.batch * tiles;
  finish.parts_v = a.dtype == Dtype::kFloat ? a.batch * tiles : kAttentionGroups * 2 * tiles;
  finish.bias_blocks = ceil_div(2 * dense, 32);
  const int blocks = ceil_div((2 * a.frames - 1) * (dense / 8), kFinishThreads);
  const LaunchShape shape{dim3(unsigned(finish.bias_blocks + blocks)), dim3(kFinishThreads)};
  return dispatch(a.dtype, [&](auto type) {
    return launch(stream, shape, finish_backward<decltype(type)>, finish);
  });
}

}  // namespace aerie::kernels::AERIE_BACKEND
