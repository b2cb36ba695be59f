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

// Forward, blocks stay: they walk down the rows with the next one on its way, while the draws of
// dropout keep them busy.
constexpr int kForwardBlocks = 5 * 132;  // that run at the same time

template <typename T>
__global__ void __launch_bounds__(kThreads, 5) silu_forward_kernel(SiluForward a) {
  const int column = int(blockIdx.y * blockDim.x + threadIdx.x) * 8;
  if (column >= a.channels) return;
  const int rows = num_rows(a.layout, a.batch, a.frames);
  const bool draws = a.dropout.threshold != 0;
  const RandomState state = draws ? *a.dropout.state : RandomState{};
  Dropout dropout = a.dropout;
  dropout.state = &state;
  const Vec8 bias = a.bias != nullptr ? load8(a.bias + column) : Vec8{};
  Raw8<T> next;
  RowPlace next_place = {};
  const auto fetch = [&](int row) {
    next = load_raw(static_cast<const T*>(a.x) + size_t(row) * a.channels + column);
    if (draws) next_place = place_of(a.layout, row, a.frames);
  };
  fetch(int(blockIdx.x));
  for (int row = int(blockIdx.x); row < rows; row += int(gridDim.x)) {
    Vec8 x = unpack(next);
    const RowPlace place = next_place;
    const int following = row + int(gridDim.x);
    fetch(following < rows ? following : row);
    const size_t at = size_t(row) * a.channels + column;
    float factors[8];
    const uint32_t bits = dropout8(dropout, nullptr, 0, uint64_t(place.item),
                                   uint64_t(place.frame) * a.channels + column, factors);
    if (a.keep != nullptr) a.keep[at / 8] = uint8_t(bits);
    AERIE_UNROLL
    for (int k = 0; k < 8; ++k) {
      x.v[k] += bias.v[k];
      x.v[k] *= sigmoid_for<T>(x.v[k]) * factors[k];
    }
    store8(static_cast<T*>(a.out) + at, x);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) silu_backward_kernel(SiluBackward a) {
  AERIE_SHARED(float, sums, kThreads * 8);
  const int column = (blockIdx.x * 32 + threadIdx.x % 32) * 8;
  const int rows = num_rows(a.layout, a.batch, a.frames);
  Vec8 sum = {};
  if (column < a.channels) {
    AERIE_UNROLL_BY(2)
    for (int row = blockIdx.y * kWarps + threadIdx.x / 32; row < rows; row += gridDim.y * kWarps) {
      const size_t at = size_t(row) * a.channels + column;
      Vec8 x = load8(static_cast<const T*>(a.x) + at);
      add8(x, a.bias, column);
      Vec8 grad = load8(static_cast<const T*>(a.grad_out) + at);
      float factors[8];
      // Asked for where dropout is drawn again alone.
      const bool draws = a.dropout.threshold != 0 && a.keep == nullptr;
      const RowPlace place = draws ? place_of(a.layout, row, a.frames) : RowPlace{};
      dropout8(a.dropout, a.keep, at / 8, uint64_t(place.item),
               uint64_t(place.frame) * a.channels + column, factors);
      AERIE_UNROLL
      for (int k = 0; k < 8; ++k) {
        const float s = sigmoid_for<T>(x.v[k]);
        grad.v[k] *= factors[k] * (s * (1.0f + x.v[k] * (1.0f - s)));
        sum.v[k] += grad.v[k];
        x.v[k] *= s * factors[k];
      }
      store8(static_cast<T*>(a.grad_x) + at, grad);
      if (a.out != nullptr) store8(static_cast<T*>(a.out) + at, x);
    }
  }
  if (a.grad_bias != nullptr) write_partial(a.partial, a.channels, column, sum, sums);
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

LaunchShape column_shape(int rows, int columns) {
  return {dim3(unsigned(ceil_div(columns, 256)), unsigned(parts_of(rows))), dim3(kThreads)};
}

}  // namespace

int silu_forward(const SiluForward& a, void* stream) {
  if (!covered(a)) return kUnsupported;
  return dispatch(a.dtype, [&](auto zero) {
    const int lanes = ceil_div(a.channels, 256) * 32;  // a thread for eight channels
    const int threads = lanes < kThreads ? lanes : kThreads, columns = ceil_div(lanes, threads);
    const int rows = num_rows(a.layout, a.batch, a.frames);
    const int most = kForwardBlocks * (kThreads / threads) / columns;
    return launch(
        stream,
        {dim3(unsigned(rows < most ? rows : most), unsigned(columns)), dim3(unsigned(threads))},
        silu_forward_kernel<decltype(zero)>, a);
  });
}

int silu_backward(const SiluBackward& a, void* stream) {
  if (!covered(a)) return kUnsupported;
  const int rows = num_rows(a.layout, a.batch, a.frames);
  AERIE_TRY(dispatch(a.dtype, [&](auto zero) {
    return launch(stream, column_shape(rows, a.channels), silu_backward_kernel<decltype(zero)>, a);
  }));
  return sum_bias(stream, a.grad_bias, a.partial, rows, a.channels, a.accumulate, a.later);
}

}  // namespace aerie::kernels::AERIE_BACKEND
