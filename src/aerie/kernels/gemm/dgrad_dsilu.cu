#include "aerie/kernels/gemm/dgrad_dsilu.h"
#include "aerie/kernels/gemm/dgrad_dsilu_kernel.h"

namespace aerie::kernels::AERIE_BACKEND {

int silu_product_backward(const DgradDsilu& a, void* stream) {
#ifdef AERIE_HAVE_SM90A
  DgradDsilu own = a;
  Gemm& g = own.gemm;
  const SiluBackward& s = a.silu;
  if (g.tile.m < 0 || g.dtype == Dtype::kF32 || g.out_dtype != g.dtype || s.dtype != g.dtype ||
      g.transpose_a || g.transpose_b || g.accumulate || g.bias != nullptr || g.count != 1 ||
      g.m <= 0 || g.n <= 0 || g.k <= 0 || g.n % 8 != 0 || g.ldc != g.n || s.channels != g.n ||
      num_rows(s.layout, s.batch, s.frames) != g.m || s.grad_out != g.c || s.grad_x != g.c ||
      s.out != nullptr || sm90_count() == 0)
    return kUnsupported;
  if (s.dropout.threshold != 0 && s.keep == nullptr) return kUnsupported;
  if (g.tile.m == 0) g.tile.m = dgrad_dsilu_tile(g.m, g.n, g.k, gemm_model(sm90_count()));
  if (g.tile.m == 0) return kUnsupported;
  AERIE_TRY(g.dtype == Dtype::kBF16 ? dgrad_dsilu_bf16(own, stream)
                                    : dgrad_dsilu_half(own, stream));
  if (s.grad_bias == nullptr) return kOk;
  const int parts = ceil_div(g.m, g.tile.m);
  return finish_column_sums(stream, column_sums(s.grad_bias, g.n, s.partial, parts, s.accumulate),
                            s.deferred);
#else
  static_cast<void>(a);
  static_cast<void>(stream);
  return kUnsupported;
#endif
}

}  // namespace aerie::kernels::AERIE_BACKEND
