#include "aerie/kernels/gemm/dgrad_dsilu_kernel.h"

namespace aerie::kernels::AERIE_BACKEND {

int dgrad_dsilu_half(const DgradDsilu& a, void* stream) {
  return dsilu::start<Half>(a, stream);
}

}  // namespace aerie::kernels::AERIE_BACKEND
