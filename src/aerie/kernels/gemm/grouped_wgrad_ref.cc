#include "aerie/kernels/gemm/grouped_wgrad.h"

namespace aerie::kernels::reference {

int weight_gradients(const GroupedWgrad& a, void* stream) {
  for (int i = 0; i < a.count; ++i) {
    const WgradProblem& p = a.problems[i];
    gemm(gemm_of(a, p), stream);
    if (p.square_partials == nullptr) continue;
    const size_t parts = wgrad_square_partials(p.m, p.n);
    for (size_t part = 0; part < parts; ++part) p.square_partials[part] = 0.0;
    const size_t values = static_cast<size_t>(p.m) * static_cast<size_t>(p.n);
    for (size_t v = 0; v < values; ++v)
      p.square_partials[v % parts] += static_cast<double>(p.out[v]) * static_cast<double>(p.out[v]);
  }
  return kOk;
}

}  // namespace aerie::kernels::reference
