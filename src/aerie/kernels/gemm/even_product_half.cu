#include "aerie/kernels/gemm/even_product_kernel.h"

namespace aerie::kernels::AERIE_BACKEND {

int even_product_half(const Gemm& g, void* stream) {
  return even::start<Half>(g, stream);
}

}  // namespace aerie::kernels::AERIE_BACKEND
