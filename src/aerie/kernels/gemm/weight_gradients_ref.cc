#include "aerie/kernels/gemm/weight_gradients.h"

namespace aerie::kernels::reference {

int weight_gradients(const WeightGradients& a, void* stream) {
  for (int i = 0; i < a.count; ++i) gemm(gemm_of(a, a.products[i]), stream);
  return kOk;
}

}  // namespace aerie::kernels::reference
