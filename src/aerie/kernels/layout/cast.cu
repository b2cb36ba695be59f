// Eight values per thread; the last ones one by one.
#include "aerie/kernels/device.h"
#include "aerie/kernels/layout/cast.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kThreads) cast_kernel(Cast a) {
  const int64_t i = (int64_t(blockIdx.x) * kThreads + threadIdx.x) * 8;
  T* out = static_cast<T*>(a.out);
  if (i + 8 <= a.count) {
    store8(out + i, load8(a.x + i));
  } else {
    for (int64_t k = i; k < a.count; ++k) out[k] = from_float<T>(a.x[k]);
  }
}

}  // namespace

int cast(const Cast& a, void* stream) {
  if (a.count < 0 || a.to == Dtype::kFloat) return kUnsupported;
  if (a.count == 0) return kOk;
  const LaunchShape shape{dim3(unsigned(ceil_div(a.count, int64_t(kThreads) * 8))), dim3(kThreads)};
  return a.to == Dtype::kHalf ? launch(stream, shape, cast_kernel<Half>, a)
                              : launch(stream, shape, cast_kernel<Bf16>, a);
}

}  // namespace aerie::kernels::AERIE_BACKEND
