#include "aerie/kernels/gemm/persistent_gemm.h"
#include "aerie/kernels/gemm/persistent_gemm_kernel.h"

namespace aerie::kernels::AERIE_BACKEND {

int persistent_gemm(const Gemm& g, void* stream) {
#ifdef AERIE_HAVE_SM90A
  if (g.tile.m < 0 || g.dtype == Dtype::kF32 || g.out_dtype != g.dtype || g.transpose_a ||
      g.accumulate || g.count != 1 || sm90_count() == 0)
    return kUnsupported;
  Gemm own = g;
  if (g.tile.m == 0) {
    const GemmModel device = gemm_model(sm90_count());
    own.tile = persistent_gemm_tile(g.m, g.n, g.k, device);
    if (!persistent_gemm_pays(g.m, g.n, g.k, g.transpose_b, own.tile, device)) return kUnsupported;
  }
  return g.dtype == Dtype::kBF16 ? persistent_gemm_bf16(own, stream)
                                 : persistent_gemm_half(own, stream);
#else
  static_cast<void>(g);
  static_cast<void>(stream);
  return kUnsupported;
#endif
}

}  // namespace aerie::kernels::AERIE_BACKEND
