// Column sums walk down columns; the swap reads in order and writes scattered, on tensors of a few
// megabytes that stay in the cache.
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
  Vec8 sum = {};
  if (column < a.columns) {
    for (int row = blockIdx.y * kWarps + threadIdx.x / 32; row < a.rows;
         row += gridDim.y * kWarps) {
      const Vec8 x = load8(static_cast<const T*>(a.x) + size_t(row) * a.stride + column);
      AERIE_UNROLL
      for (int k = 0; k < 8; ++k) sum.v[k] += x.v[k];
    }
  }
  write_partial(a.partial, a.columns, column, sum, sums);
}

template <typename From, typename To>
__global__ void __launch_bounds__(kThreads) swap_kernel(SwapInner s) {
  const unsigned inner = unsigned(s.a) * unsigned(s.b);
  const unsigned i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= unsigned(s.rows) * inner) return;
  const unsigned row = i / inner, a = i % inner / unsigned(s.b), b = i % unsigned(s.b);
  To* out = static_cast<To*>(s.out) + size_t(row) * inner + b * unsigned(s.a) + a;
  const float value = to_float(static_cast<const From*>(s.x)[i]);
  *out = from_float<To>(s.accumulate ? to_float(*out) + value : value);
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
  ColumnSums sums;
  sums.out[0] = a.out;
  sums.sections = 1;
  sums.width = a.columns;
  sums.partial = a.partial;
  sums.parts = parts;
  sums.accumulate = a.accumulate;
  return finish_column_sums(stream, sums, a.later);
}

int swap_inner(const SwapInner& s, void* stream) {
  const size_t count = size_t(s.rows) * s.a * s.b;
  if (count == 0 || count >= (size_t(1) << 31)) return kUnsupported;
  const LaunchShape shape{dim3(unsigned(ceil_div(count, size_t(kThreads)))), dim3(kThreads)};
  return dispatch(s.from, [&](auto from) {
    return dispatch(s.to, [&](auto to) {
      return launch(stream, shape, swap_kernel<decltype(from), decltype(to)>, s);
    });
  });
}

}  // namespace aerie::kernels::AERIE_BACKEND
