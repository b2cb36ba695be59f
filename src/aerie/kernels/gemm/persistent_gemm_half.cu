#include "aerie/kernels/gemm/persistent_gemm_kernel.h"

namespace aerie::kernels::AERIE_BACKEND {

int persistent_gemm_half(const Gemm& g, void* stream) {
  return persistent::start<Half>(g, stream);
}

}  // namespace aerie::kernels::AERIE_BACKEND
