// Bound by memory: one 16-byte access per operand and thread. Backward walks down columns, so that
// sums for the bias stay in registers.
#include "aerie/kernels/activation/activation.h"
#include "aerie/kernels/device.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kThreads = kColumnThreads;
constexpr int kWarps = kThreads / 32;

__device__ inline void add8(Vec8& x, const float* bias, int column) {
  if (bias == nullptr) return;
  const Vec8 more = load8(bias + column);
  AERIE_UNROLL
  for (int k = 0; k < 8; ++k) x.v[k] += more.v[k];
}

template <typename T>
__global__ void __launch_bounds__(kThreads) silu_forward_kernel(SiluForward a) {
  const unsigned per_row = unsigned(a.channels / 8), per_item = unsigned(a.frames) * per_row;
  const unsigned inside = blockIdx.x * kThreads + threadIdx.x, item = blockIdx.y;
  if (inside >= per_item) return;
  const size_t vec = size_t(item) * per_item + inside;
  Vec8 x = load8(static_cast<const T*>(a.x) + vec * 8);
  const unsigned column =
      (per_row & (per_row - 1)) == 0 ? inside & (per_row - 1) : inside % per_row;
  add8(x, a.bias, int(column) * 8);
  float factors[8];
  dropout8(a.dropout, nullptr, 0, item, uint64_t(inside) * 8, factors);
  if (a.keep != nullptr) a.keep[vec] = keep_bits8(factors);
  AERIE_UNROLL
  for (int k = 0; k < 8; ++k) x.v[k] *= sigmoid_for<T>(x.v[k]) * factors[k];
  store8(static_cast<T*>(a.out) + vec * 8, x);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) silu_backward_kernel(SiluBackward a) {
  AERIE_SHARED(float, sums, kThreads * 8);
  const int column = (blockIdx.x * 32 + threadIdx.x % 32) * 8;
  const int rows = a.batch * a.frames;
  Vec8 sum = {};
  if (column < a.channels) {
    AERIE_UNROLL_BY(2)
    for (int row = blockIdx.y * kWarps + threadIdx.x / 32; row < rows; row += gridDim.y * kWarps) {
      const size_t at = size_t(row) * a.channels + column;
      Vec8 x = load8(static_cast<const T*>(a.x) + at);
      add8(x, a.bias, column);
      Vec8 grad = load8(static_cast<const T*>(a.grad_out) + at);
      float factors[8];
      dropout8(a.dropout, a.keep, at / 8, row / a.frames,
               uint64_t(row % a.frames) * a.channels + column, factors);
      AERIE_UNROLL
      for (int k = 0; k < 8; ++k) {
        grad.v[k] *= factors[k] * silu_slope_for<T>(x.v[k]);
        sum.v[k] += grad.v[k];
      }
      store8(static_cast<T*>(a.grad_x) + at, grad);
    }
  }
  if (a.grad_bias != nullptr) write_partial(a.partial, a.channels, column, sum, sums);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) glu_forward_kernel(GluForward a) {
  const unsigned per_row = unsigned(a.channels / 8);
  const unsigned vec = blockIdx.x * kThreads + threadIdx.x;
  if (vec >= per_row * unsigned(a.frames) * unsigned(a.batch)) return;
  const unsigned row = vec / per_row;
  const int column = int(vec % per_row) * 8;
  Vec8 out = {};
  if (int(row % unsigned(a.frames)) < a.lengths[row / unsigned(a.frames)]) {
    const T* x = static_cast<const T*>(a.x) + size_t(row) * a.channels * 2 + column;
    Vec8 left = load8(x), right = load8(x + a.channels);
    add8(left, a.bias, column);
    add8(right, a.bias, a.channels + column);
    AERIE_UNROLL
    for (int k = 0; k < 8; ++k) out.v[k] = left.v[k] * sigmoid_for<T>(right.v[k]);
  }
  store8(static_cast<T*>(a.out) + size_t(vec) * 8, out);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) glu_backward_kernel(GluBackward a) {
  AERIE_SHARED(float, left_sums, kThreads * 8);
  AERIE_SHARED(float, right_sums, kThreads * 8);
  const int column = (blockIdx.x * 32 + threadIdx.x % 32) * 8;
  const int rows = a.batch * a.frames;
  Vec8 left_sum = {}, right_sum = {};
  if (column < a.channels) {
    for (int row = blockIdx.y * kWarps + threadIdx.x / 32; row < rows; row += gridDim.y * kWarps) {
      const size_t at = size_t(row) * a.channels * 2 + column;
      Vec8 left = {}, right = {};
      if (row % a.frames < a.lengths[row / a.frames]) {
        const T* x = static_cast<const T*>(a.x) + at;
        left = load8(x);
        right = load8(x + a.channels);
        add8(left, a.bias, column);
        add8(right, a.bias, a.channels + column);
        const Vec8 grad =
            load8(static_cast<const T*>(a.grad_out) + size_t(row) * a.channels + column);
        AERIE_UNROLL
        for (int k = 0; k < 8; ++k) {
          const float s = sigmoid_for<T>(right.v[k]);
          right.v[k] = grad.v[k] * left.v[k] * s * (1.0f - s);
          left.v[k] = grad.v[k] * s;
          left_sum.v[k] += left.v[k];
          right_sum.v[k] += right.v[k];
        }
      }
      store8(static_cast<T*>(a.grad_x) + at, left);
      store8(static_cast<T*>(a.grad_x) + at + a.channels, right);
    }
  }
  if (a.grad_bias == nullptr) return;
  // Left and right halves are 2C columns; a column beyond C must not reach into the other half.
  const int limit = 2 * a.channels;
  write_partial(a.partial, limit, column < a.channels ? column : limit, left_sum, left_sums);
  write_partial(a.partial, limit, column < a.channels ? column + a.channels : limit, right_sum,
                right_sums);
}

int parts_of(int rows) {
  const int wanted = ceil_div(rows, kWarps);
  return wanted < kActivationParts ? wanted : kActivationParts;
}

int sum_bias(void* stream, float* grad_bias, const float* partial, int rows, int columns,
             bool accumulate, PartialSums* later) {
  if (grad_bias == nullptr) return kOk;
  ColumnSums sums;
  sums.out[0] = grad_bias;
  sums.sections = 1;
  sums.width = columns;
  sums.partial = partial;
  sums.parts = parts_of(rows);
  sums.accumulate = accumulate;
  return finish_column_sums(stream, sums, later);
}

template <typename Args>
bool covered(const Args& a) {
  return a.channels > 0 && a.channels % 8 == 0 && a.batch > 0 && a.frames > 0;
}

LaunchShape flat_shape(size_t vecs) {
  return {dim3(unsigned(ceil_div(vecs, kThreads))), dim3(kThreads)};
}
LaunchShape column_shape(int rows, int columns) {
  return {dim3(unsigned(ceil_div(columns, 256)), unsigned(parts_of(rows))), dim3(kThreads)};
}

}  // namespace

int silu_forward(const SiluForward& a, void* stream) {
  if (!covered(a)) return kUnsupported;
  return dispatch(a.dtype, [&](auto zero) {
    const unsigned blocks = unsigned(ceil_div(size_t(a.frames) * (a.channels / 8), kThreads));
    return launch(stream, {dim3(blocks, unsigned(a.batch)), dim3(kThreads)},
                  silu_forward_kernel<decltype(zero)>, a);
  });
}

int silu_backward(const SiluBackward& a, void* stream) {
  if (!covered(a)) return kUnsupported;
  const int rows = a.batch * a.frames;
  AERIE_TRY(dispatch(a.dtype, [&](auto zero) {
    return launch(stream, column_shape(rows, a.channels), silu_backward_kernel<decltype(zero)>, a);
  }));
  return sum_bias(stream, a.grad_bias, a.partial, rows, a.channels, a.accumulate, a.later);
}

int glu_forward(const GluForward& a, void* stream) {
  if (!covered(a)) return kUnsupported;
  return dispatch(a.dtype, [&](auto zero) {
    return launch(stream, flat_shape(size_t(a.batch) * a.frames * (a.channels / 8)),
                  glu_forward_kernel<decltype(zero)>, a);
  });
}

int glu_backward(const GluBackward& a, void* stream) {
  if (!covered(a)) return kUnsupported;
  const int rows = a.batch * a.frames;
  AERIE_TRY(dispatch(a.dtype, [&](auto zero) {
    return launch(stream, column_shape(rows, a.channels), glu_backward_kernel<decltype(zero)>, a);
  }));
  return sum_bias(stream, a.grad_bias, a.partial, rows, 2 * a.channels, a.accumulate, a.later);
}

}  // namespace aerie::kernels::AERIE_BACKEND
