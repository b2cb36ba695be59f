#include "aerie/kernels/gemm/silu_product_kernel.h"

namespace aerie::kernels::AERIE_BACKEND {

int silu_product_half(const SiluProductBackward& a, void* stream) {
  return silu::start<Half>(a, stream);
}

}  // namespace aerie::kernels::AERIE_BACKEND
