#include "aerie/kernels/gemm/silu_product_kernel.h"

namespace aerie::kernels::AERIE_BACKEND {

int silu_product_bf16(const SiluProductBackward& a, void* stream) {
  return silu::start<Bf16>(a, stream);
}

}  // namespace aerie::kernels::AERIE_BACKEND
