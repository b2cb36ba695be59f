// One warp per row, the row in registers: one read and one write of everything. Sums over rows go
// to per-block partial results that a second launch adds in a fixed order.
#include "aerie/kernels/device.h"
#include "aerie/kernels/norm/layer_norm.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kWarps = 4;

// Mean and 1/std of the row that a warp holds; zeros behind its end.
template <int kVecs>
__device__ inline void normalize(const Vec8* x, int vecs, int channels, float eps, float* mean,
                                 float* rstd) {
  float total = 0.0f;
  AERIE_UNROLL
  for (int j = 0; j < kVecs; ++j) AERIE_UNROLL
  for (int k = 0; k < 8; ++k) total += x[j].v[k];
  *mean = warp_sum(total) / float(channels);
  float squares = 0.0f;
  AERIE_UNROLL
  for (int j = 0; j < kVecs; ++j) {
    if (int(threadIdx.x % 32) + 32 * j >= vecs) continue;
    AERIE_UNROLL
    for (int k = 0; k < 8; ++k) squares += (x[j].v[k] - *mean) * (x[j].v[k] - *mean);
  }
  *rstd = 1.0f / sqrtf(warp_sum(squares) / float(channels) + eps);
}

template <typename T, int kVecs>
__global__ void __launch_bounds__(kWarps * 32) layer_norm_forward_kernel(LayerNormForward a) {
  const int lane = threadIdx.x % 32;
  const int row = blockIdx.x * kWarps + threadIdx.x / 32;
  if (row >= num_rows(a.layout, a.batch, a.frames)) return;  // whole warps leave
  const RowPlace place = a.dropout.threshold != 0 ? place_of(a.layout, row, a.frames) : RowPlace{};
  const int vecs = a.channels / 8;
  const size_t base = size_t(row) * a.channels;
  Vec8 x[kVecs] = {};
  AERIE_UNROLL
  for (int j = 0; j < kVecs; ++j) {
    const int vec = lane + 32 * j;
    if (vec >= vecs) continue;
    const size_t at = base + vec * 8;
    if (a.residual != nullptr) x[j] = load8(a.residual + at);
    if (a.y != nullptr) {
      Vec8 y = load8(static_cast<const T*>(a.y) + at);
      if (a.y_bias != nullptr) {
        const Vec8 bias = load8(a.y_bias + vec * 8);
        AERIE_UNROLL
        for (int k = 0; k < 8; ++k) y.v[k] += bias.v[k];
      }
      float factors[8];
      const uint32_t bits = dropout8(a.dropout, nullptr, 0, uint64_t(place.item),
                                     uint64_t(place.frame) * a.channels + vec * 8, factors);
      if (a.keep != nullptr) a.keep[at / 8] = uint8_t(bits);
      AERIE_UNROLL
      for (int k = 0; k < 8; ++k) x[j].v[k] += a.scale * (factors[k] * y.v[k]);
    }
    if (a.sum != nullptr) store8(a.sum + at, x[j]);
  }
  float mean, rstd;
  normalize<kVecs>(x, vecs, a.channels, a.eps, &mean, &rstd);
  if (lane == 0) {
    a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
  AERIE_UNROLL
  for (int j = 0; j < kVecs; ++j) {
    const int vec = lane + 32 * j;
    if (vec >= vecs) continue;
    const Vec8 weight = load8(a.weight + vec * 8), bias = load8(a.bias + vec * 8);
    Vec8 out;
    AERIE_UNROLL
    for (int k = 0; k < 8; ++k) out.v[k] = (x[j].v[k] - mean) * rstd * weight.v[k] + bias.v[k];
    if (a.out != nullptr) store8(static_cast<T*>(a.out) + base + vec * 8, out);
    if (a.out_float != nullptr) store8(a.out_float + base + vec * 8, out);
    x[j] = out;
  }
  if (a.next.weight == nullptr) return;
  normalize<kVecs>(x, vecs, a.channels, a.eps, &mean, &rstd);
  if (lane == 0) {
    a.next.mean[row] = mean;
    a.next.rstd[row] = rstd;
  }
  AERIE_UNROLL
  for (int j = 0; j < kVecs; ++j) {
    const int vec = lane + 32 * j;
    if (vec >= vecs) continue;
    const Vec8 weight = load8(a.next.weight + vec * 8), bias = load8(a.next.bias + vec * 8);
    Vec8 out;
    AERIE_UNROLL
    for (int k = 0; k < 8; ++k) out.v[k] = (x[j].v[k] - mean) * rstd * weight.v[k] + bias.v[k];
    store8(static_cast<T*>(a.next.out) + base + vec * 8, out);
  }
}

// Sums over a warp's rows live in shared memory: registers would leave room for half the warps, and
// what counts is how many rows are under way at once.
__host__ __device__ constexpr int backward_sums(bool next) {
  return next ? 5 : 3;
}
constexpr int backward_warps(int vecs, bool next) {  // of a block, at most
  return (next ? 16 : 24) / (vecs <= 2 ? 1 : vecs / 2);
}

// One sum of one warp: kVecs * 256 values, the halves of a lane's vector apart, so that lanes lie
// side by side.
__device__ inline void add_to_row_sum(float* sum, int j, const Vec8& x, bool first) {
  AERIE_UNROLL
  for (int half = 0; half < 2; ++half) {
    struct alignas(16) Four {
      float v[4];
    };
    Four* at = reinterpret_cast<Four*>(sum + j * 256 + half * 128 + threadIdx.x % 32 * 4);
    Four value = first ? Four{} : *at;
    AERIE_UNROLL
    for (int k = 0; k < 4; ++k) value.v[k] += x.v[half * 4 + k];
    *at = value;
  }
}
__device__ inline int row_sum_column(int at) {
  return (at % 128 / 4 + at / 256 * 32) * 8 + at % 256 / 128 * 4 + at % 4;
}

// Through the norm behind this one: adds what arrives at this one's output, normal * weight + bias,
// to grad.
template <typename T, int kVecs>
__device__ inline void next_backward(const LayerNormBackward& a, int row, const Vec8* normal,
                                     const Raw8<T>* raw, Vec8* grad, float* sums, bool first) {
  const int lane = threadIdx.x % 32, vecs = a.channels / 8;
  const float mean = a.next.mean[row], rstd = a.next.rstd[row];
  Vec8 behind[kVecs] = {}, arriving[kVecs] = {};
  float sum_grad = 0.0f, sum_product = 0.0f;
  AERIE_UNROLL
  for (int j = 0; j < kVecs; ++j) {
    const int vec = lane + 32 * j;
    if (vec >= vecs) continue;
    arriving[j] = unpack(raw[j]);
    const Vec8 weight = load8(a.weight + vec * 8), bias = load8(a.bias + vec * 8);
    const Vec8 next_weight = load8(a.next.weight + vec * 8);
    const Vec8 next_bias = a.next.out != nullptr ? load8(a.next.bias + vec * 8) : Vec8{};
    Vec8 again, product;
    AERIE_UNROLL
    for (int k = 0; k < 8; ++k) {
      behind[j].v[k] = (normal[j].v[k] * weight.v[k] + bias.v[k] - mean) * rstd;
      again.v[k] = behind[j].v[k] * next_weight.v[k] + next_bias.v[k];
      product.v[k] = arriving[j].v[k] * behind[j].v[k];
    }
    add_to_row_sum(sums, j, product, first);
    add_to_row_sum(sums + kVecs * 256, j, arriving[j], first);
    AERIE_UNROLL
    for (int k = 0; k < 8; ++k) {
      arriving[j].v[k] *= next_weight.v[k];
      sum_grad += arriving[j].v[k];
      sum_product += arriving[j].v[k] * behind[j].v[k];
    }
    if (a.next.out != nullptr)
      store8(static_cast<T*>(a.next.out) + size_t(row) * a.channels + vec * 8, again);
  }
  sum_grad = warp_sum(sum_grad) / float(a.channels);
  sum_product = warp_sum(sum_product) / float(a.channels);
  AERIE_UNROLL
  for (int j = 0; j < kVecs; ++j) AERIE_UNROLL
  for (int k = 0; k < 8; ++k)
    grad[j].v[k] += rstd * (arriving[j].v[k] - sum_grad - behind[j].v[k] * sum_product);
}

template <typename T, int kVecs, bool kNext>
__global__ void __launch_bounds__(backward_warps(kVecs, kNext) * 32, 1)
    layer_norm_backward_kernel(LayerNormBackward a) {
  constexpr int kSums = backward_sums(kNext), kWidth = kVecs * 256;
  const int warps = blockDim.x / 32;
  AERIE_DYNAMIC_SHARED(memory);
  float* sums = reinterpret_cast<float*>(memory);  // (warps, kSums, kWidth)
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int rows = num_rows(a.layout, a.batch, a.frames), vecs = a.channels / 8;
  float* const mine = sums + warp * kSums * kWidth;
  bool first = true;
  for (int row = blockIdx.x * warps + warp; row < rows; row += gridDim.x * warps) {
    // Asked for where dropout is drawn again alone.
    const bool draws = a.dropout.threshold != 0 && a.keep == nullptr;
    const RowPlace place = draws ? place_of(a.layout, row, a.frames) : RowPlace{};
    const size_t base = size_t(row) * a.channels;
    const float mean = a.mean[row], rstd = a.rstd[row];
    // All loads before the first sum.
    Vec8 normal[kVecs] = {}, grad[kVecs] = {}, out[kVecs] = {};
    Raw8<T> arriving[kNext ? kVecs : 1];
    AERIE_UNROLL
    for (int j = 0; j < kVecs; ++j) {
      const int vec = lane + 32 * j;
      if (vec >= vecs) continue;
      const size_t at = base + vec * 8;
      normal[j] = load8(a.sum + at);
      if (a.grad_out != nullptr) grad[j] = load8(static_cast<const T*>(a.grad_out) + at);
      if constexpr (kNext) {
        arriving[j] = load_raw(static_cast<const T*>(a.grad_next_out) + at);
      } else if (a.grad_sum != nullptr) {
        out[j] = load8(a.grad_sum + at);
      }
      if (a.grad_out_float != nullptr) {
        const Vec8 more = load8(a.grad_out_float + at);
        AERIE_UNROLL
        for (int k = 0; k < 8; ++k) grad[j].v[k] += more.v[k];
      }
    }
    AERIE_UNROLL
    for (int j = 0; j < kVecs; ++j) AERIE_UNROLL
    for (int k = 0; k < 8; ++k) normal[j].v[k] = (normal[j].v[k] - mean) * rstd;
    if constexpr (kNext)
      next_backward<T, kVecs>(a, row, normal, arriving, grad, mine + 3 * kWidth, first);
    float sum_grad = 0.0f, sum_product = 0.0f;
    AERIE_UNROLL
    for (int j = 0; j < kVecs; ++j) {
      const int vec = lane + 32 * j;
      if (vec >= vecs) continue;
      const Vec8 weight = load8(a.weight + vec * 8);
      const Vec8 bias = a.out != nullptr ? load8(a.bias + vec * 8) : Vec8{};
      Vec8 again, product;
      AERIE_UNROLL
      for (int k = 0; k < 8; ++k) {
        again.v[k] = normal[j].v[k] * weight.v[k] + bias.v[k];
        product.v[k] = grad[j].v[k] * normal[j].v[k];
      }
      add_to_row_sum(mine, j, product, first);
      add_to_row_sum(mine + kWidth, j, grad[j], first);
      AERIE_UNROLL
      for (int k = 0; k < 8; ++k) {
        grad[j].v[k] *= weight.v[k];
        sum_grad += grad[j].v[k];
        sum_product += grad[j].v[k] * normal[j].v[k];
      }
      if (a.out != nullptr) store8(static_cast<T*>(a.out) + base + vec * 8, again);
    }
    sum_grad = warp_sum(sum_grad) / float(a.channels);
    sum_product = warp_sum(sum_product) / float(a.channels);
    AERIE_UNROLL
    for (int j = 0; j < kVecs; ++j) {
      const int vec = lane + 32 * j;
      if (vec >= vecs) continue;
      const size_t at = base + vec * 8;
      AERIE_UNROLL
      for (int k = 0; k < 8; ++k)
        out[j].v[k] += rstd * (grad[j].v[k] - sum_grad - normal[j].v[k] * sum_product);
      store8(a.grad_residual + at, out[j]);
      if (a.grad_y == nullptr) continue;
      float factors[8];
      dropout8(a.dropout, a.keep, at / 8, uint64_t(place.item),
               uint64_t(place.frame) * a.channels + vec * 8, factors);
      AERIE_UNROLL
      for (int k = 0; k < 8; ++k) out[j].v[k] *= a.scale * factors[k];
      add_to_row_sum(mine + 2 * kWidth, j, out[j], first);
      store8(static_cast<T*>(a.grad_y) + at, out[j]);
    }
    first = false;
  }

  // Sums that nothing was added to: of warps without rows, of y without a gradient, behind the row.
  AERIE_UNROLL
  for (int j = 0; j < kVecs; ++j)
    for (int which = 0; which < kSums; ++which)
      if (first || lane + 32 * j >= vecs || (which == 2 && a.grad_y == nullptr))
        add_to_row_sum(mine + which * kWidth, j, Vec8{}, true);
  __syncthreads();
  float* partial = a.partial + size_t(blockIdx.x) * kSums * a.channels;
  for (int at = threadIdx.x; at < kSums * kWidth; at += blockDim.x) {
    const int column = row_sum_column(at % kWidth);
    if (column >= a.channels) continue;
    float sum = 0.0f;
    AERIE_UNROLL_BY(8)
    for (int w = 0; w < warps; ++w) sum += sums[w * kSums * kWidth + at];
    partial[at / kWidth * a.channels + column] = sum;
  }
}

// Calls body with the number of 8-vectors per lane as a constant.
template <typename Body>
int with_vecs(int channels, Body body) {
  if (channels % 8 != 0 || channels <= 0 || channels > 2048) return kUnsupported;
  if (channels <= 256) return body(std::integral_constant<int, 1>{});
  if (channels <= 512) return body(std::integral_constant<int, 2>{});
  if (channels <= 1024) return body(std::integral_constant<int, 4>{});
  return body(std::integral_constant<int, 8>{});
}

}  // namespace

int layer_norm_forward(const LayerNormForward& a, void* stream) {
  const int rows = num_rows(a.layout, a.batch, a.frames);
  const LaunchShape shape{dim3(unsigned(ceil_div(rows, kWarps))), dim3(kWarps * 32)};
  return dispatch(a.dtype, [&](auto zero) {
    return with_vecs(a.channels, [&](auto vecs) {
      return rows == 0
                 ? kOk
                 : launch(stream, shape,
                          layer_norm_forward_kernel<decltype(zero), decltype(vecs)::value>, a);
    });
  });
}

int layer_norm_backward(const LayerNormBackward& a, void* stream) {
  const int rows = num_rows(a.layout, a.batch, a.frames);
  if (rows == 0 || (a.next.weight != nullptr && a.grad_sum != nullptr)) return kUnsupported;
  int parts = 0;
  AERIE_TRY(dispatch(a.dtype, [&](auto zero) {
    return with_vecs(a.channels, [&](auto vecs) {
      constexpr int kVecs = decltype(vecs)::value;
      const auto start = [&](auto next) {
        constexpr bool kNext = decltype(next)::value;
        // Few rows are spread over all multiprocessors, four warps of a block at least.
        constexpr int kMost = backward_warps(kVecs, kNext);
        int warps = ceil_div(rows, kLayerNormParts);
        warps = warps < 4 ? 4 : warps;
        warps = warps < kMost ? warps : kMost;
        const int wanted = ceil_div(rows, warps);
        parts = wanted < kLayerNormParts ? wanted : kLayerNormParts;
        return launch(stream,
                      {dim3(unsigned(parts)), dim3(unsigned(warps) * 32),
                       size_t(warps) * backward_sums(kNext) * kVecs * 256 * sizeof(float)},
                      layer_norm_backward_kernel<decltype(zero), kVecs, kNext>, a);
      };
      return a.next.weight != nullptr ? start(std::true_type{}) : start(std::false_type{});
    });
  }));
  ColumnSums sums;
  sums.out[0] = a.grad_weight;
  sums.out[1] = a.grad_bias;
  sums.out[2] = a.grad_y_bias;
  sums.out[3] = a.grad_next_weight;
  sums.out[4] = a.grad_next_bias;
  sums.sections = a.next.weight != nullptr ? 5 : 3;
  sums.width = a.channels;
  sums.partial = a.partial;
  sums.parts = parts;
  sums.accumulate = a.accumulate;
  return finish_column_sums(stream, sums, a.later);
}

}  // namespace aerie::kernels::AERIE_BACKEND
