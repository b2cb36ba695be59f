#include "aerie/kernels/gemm/dgrad_dsilu.h"

namespace aerie::kernels::reference {

int silu_product_backward(const DgradDsilu& a, void* stream) {
  const int code = gemm(a.gemm, stream);
  return code == kOk ? silu_backward(a.silu, stream) : code;
}

}  // namespace aerie::kernels::reference
