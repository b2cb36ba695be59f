#include "aerie/kernels/gemm/gemm.h"
#include "aerie/kernels/reference.h"

namespace aerie::kernels::reference {

int gemm(const Gemm& g, void*) {
  const auto at = [](int row, int column, int stride) {
    return static_cast<size_t>(row) * static_cast<size_t>(stride) + static_cast<size_t>(column);
  };
  if (g.count > 1) {
    Gemm one = g;
    one.count = 1;
    for (int i = 0; i < g.count; ++i) {
      const auto offset = [&](const void* p, int64_t step, Dtype dtype) {
        return static_cast<const unsigned char*>(p) +
               i * step * static_cast<int64_t>(dtype_size(dtype));
      };
      one.a = offset(g.a, g.step_a, g.dtype);
      one.b = offset(g.b, g.step_b, g.dtype);
      one.c = const_cast<unsigned char*>(offset(g.c, g.step_c, g.out_dtype));
      gemm(one, nullptr);
    }
    return kOk;
  }
  for (int i = 0; i < g.m; ++i)
    for (int j = 0; j < g.n; ++j) {
      double sum = 0.0;
      for (int l = 0; l < g.k; ++l)
        sum += static_cast<double>(
                   load(g.a, g.dtype, g.transpose_a ? at(l, i, g.lda) : at(i, l, g.lda))) *
               load(g.b, g.dtype, g.transpose_b ? at(j, l, g.ldb) : at(l, j, g.ldb));
      const size_t out = at(i, j, g.ldc);
      if (g.bias != nullptr) sum += load(g.bias, g.out_dtype, static_cast<size_t>(j));
      if (g.accumulate) sum += load(g.c, g.out_dtype, out);
      store(g.c, g.out_dtype, out, static_cast<float>(sum));
    }
  return kOk;
}

}  // namespace aerie::kernels::reference
