// Column sums walk down columns; the swap takes a row through shared memory, so that both sides are
// touched in order.
#include "aerie/kernels/device.h"
#include "aerie/kernels/layout/layout.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kThreads = kColumnThreads;
constexpr int kWarps = kThreads / 32;

template <typename T>
__global__ void __launch_bounds__(kThreads) bias_gradient_kernel(BiasGradient a) {
  AERIE_SHARED(float, sums, kThreads * 8);
  const int column = (blockIdx.x * 32 + threadIdx.x % 32) * 8;
  int rows = a.rows;
  if (a.num_rows != nullptr && *a.num_rows < rows) rows = *a.num_rows;
  Vec8 sum = {};
  if (column < a.columns) {
    for (int row = blockIdx.y * kWarps + threadIdx.x / 32; row < rows; row += gridDim.y * kWarps) {
      const Vec8 x = load8(static_cast<const T*>(a.x) + size_t(row) * a.stride + column);
      AERIE_UNROLL
      for (int k = 0; k < 8; ++k) sum.v[k] += x.v[k];
    }
  }
  write_partial(a.partial, a.columns, column, sum, sums);
}

// One block per row. The tile's stride is odd: neither direction meets the same bank over and over.
template <typename From, typename To>
__global__ void __launch_bounds__(kThreads) swap_kernel(SwapInner s) {
  AERIE_DYNAMIC_SHARED(memory);
  float* tile = reinterpret_cast<float*>(memory);  // (a, b | 1)
  const int inner = s.a * s.b, stride = s.b | 1;
  const From* x = static_cast<const From*>(s.x) + size_t(blockIdx.x) * inner;
  To* out = static_cast<To*>(s.out) + size_t(blockIdx.x) * inner;
  for (int i = threadIdx.x; i < inner; i += kThreads)
    tile[i / s.b * stride + i % s.b] = to_float(x[i]);
  __syncthreads();
  for (int i = threadIdx.x; i < inner; i += kThreads) {
    const float value = tile[i % s.a * stride + i / s.a];
    out[i] = from_float<To>(s.accumulate ? to_float(out[i]) + value : value);
  }
}

// Rows too long for shared memory.
template <typename From, typename To>
__global__ void __launch_bounds__(kThreads) swap_scattered(SwapInner s) {
  const unsigned inner = unsigned(s.a) * unsigned(s.b);
  const unsigned i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= unsigned(s.rows) * inner) return;
  const unsigned row = i / inner, a = i % inner / unsigned(s.b), b = i % unsigned(s.b);
  To* out = static_cast<To*>(s.out) + size_t(row) * inner + b * unsigned(s.a) + a;
  const float value = to_float(static_cast<const From*>(s.x)[i]);
  *out = from_float<To>(s.accumulate ? to_float(*out) + value : value);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) repack_kernel(RepackRows a) {
  const unsigned per_row = unsigned(a.channels / 8);
  const unsigned vec = blockIdx.x * kThreads + threadIdx.x;
  if (vec >= per_row * unsigned(num_rows(a.to, a.batch, a.frames))) return;
  const RowPosition place = position_of(a.to, int(vec / per_row), a.frames);
  Vec8 x = {};
  if (place.frame < rows_of(a.from, place.item, a.frames)) {
    const size_t from = first_row(a.from, place.item, a.frames) + place.frame;
    x = load8(static_cast<const T*>(a.x) + (from * per_row + vec % per_row) * 8);
  }
  store8(static_cast<T*>(a.out) + size_t(vec) * 8, x);
}

}  // namespace

int bias_gradient(const BiasGradient& a, void* stream) {
  if (a.rows <= 0 || a.columns <= 0 || a.columns % 8 != 0 || a.stride % 8 != 0) return kUnsupported;
  const int wanted = ceil_div(a.rows, kWarps);
  const int parts = wanted < kBiasGradientParts ? wanted : kBiasGradientParts;
  AERIE_TRY(dispatch(a.dtype, [&](auto zero) {
    return launch(stream,
                  {dim3(unsigned(ceil_div(a.columns, 256)), unsigned(parts)), dim3(kThreads)},
                  bias_gradient_kernel<decltype(zero)>, a);
  }));
  return finish_column_sums(stream, column_sums(a.out, a.columns, a.partial, parts, a.accumulate),
                            a.deferred);
}

int swap_inner(const SwapInner& s, void* stream) {
  const size_t count = size_t(s.rows) * s.a * s.b;
  if (count == 0 || count >= (size_t(1) << 31)) return kUnsupported;
  const size_t tile = size_t(s.a) * (size_t(s.b) | 1) * sizeof(float);
  const bool fits = tile <= 200 * 1024;
  const LaunchShape shape =
      fits ? LaunchShape{dim3(unsigned(s.rows)), dim3(kThreads), tile}
           : LaunchShape{dim3(unsigned(ceil_div(count, size_t(kThreads)))), dim3(kThreads)};
  return dispatch(s.from, [&](auto from) {
    return dispatch(s.to, [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      return fits ? launch(stream, shape, swap_kernel<From, To>, s)
                  : launch(stream, shape, swap_scattered<From, To>, s);
    });
  });
}

int repack_rows(const RepackRows& a, void* stream) {
  const size_t vecs = size_t(num_rows(a.to, a.batch, a.frames)) * (a.channels / 8);
  if (vecs == 0 || a.channels % 8 != 0 || vecs >= (size_t(1) << 31)) return kUnsupported;
  return dispatch(a.dtype, [&](auto zero) {
    return launch(stream, {dim3(unsigned(ceil_div(vecs, size_t(kThreads)))), dim3(kThreads)},
                  repack_kernel<decltype(zero)>, a);
  });
}

}  // namespace aerie::kernels::AERIE_BACKEND
