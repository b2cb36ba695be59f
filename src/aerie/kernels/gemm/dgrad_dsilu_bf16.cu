#include "aerie/kernels/gemm/dgrad_dsilu_kernel.h"

namespace aerie::kernels::AERIE_BACKEND {

int dgrad_dsilu_bf16(const DgradDsilu& a, void* stream) {
  return dsilu::start<Bf16>(a, stream);
}

}  // namespace aerie::kernels::AERIE_BACKEND
