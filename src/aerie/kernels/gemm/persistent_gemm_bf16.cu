#include "aerie/kernels/gemm/persistent_gemm_kernel.h"

namespace aerie::kernels::AERIE_BACKEND {

int persistent_gemm_bf16(const Gemm& g, void* stream) {
  return persistent::start<Bf16>(g, stream);
}

}  // namespace aerie::kernels::AERIE_BACKEND
