#include "aerie/kernels/gemm/gemm.h"
#include "aerie/kernels/gemm/weight_gradients.h"

namespace aerie::kernels::reference {

int weight_gradients(const WeightGradients& a, void* stream) {
  for (int i = 0; i < a.count; ++i) {
    const WeightGradient& p = a.products[i];
    Gemm g;
    g.dtype = a.dtype;
    g.out_dtype = Dtype::kFloat;
    g.m = p.outputs;
    g.n = g.ldb = g.ldc = p.inputs;
    g.k = a.rows;
    g.a = p.grad;
    g.lda = p.grad_stride;
    g.transpose_a = true;
    g.b = p.in;
    g.c = p.out;
    g.accumulate = a.accumulate;
    gemm(g, stream);
  }
  return kOk;
}

}  // namespace aerie::kernels::reference
