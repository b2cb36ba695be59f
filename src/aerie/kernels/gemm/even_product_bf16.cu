#include "aerie/kernels/gemm/even_product_kernel.h"

namespace aerie::kernels::AERIE_BACKEND {

int even_product_bf16(const Gemm& g, void* stream) {
  return even::start<Bf16>(g, stream);
}

}  // namespace aerie::kernels::AERIE_BACKEND
