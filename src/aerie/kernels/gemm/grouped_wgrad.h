// Grouped wgrad GEMM: out_i (+)= grad_i^T in_i for several weights in one launch, all over the same
// rows, sums and results in float32. Alone, each of them would occupy a fraction of the SMs; those
// that fill them are left to gemm, whose tiles may be larger, unless other work is to have a share.
// (Its entry in the kernel table keeps the name that benchmarks print.)
//
// CUDA: compute capability 9.0 (code for 90a), bf16 and fp16, M and N multiples of 128;
// anything else is kUnsupported, and the caller makes a call of gemm for each.
#pragma once

#include "aerie/kernels/gemm/gemm.h"
#include "aerie/kernels/types.h"

namespace aerie::kernels {

struct WgradProblem {
  int m = 0, n = 0;            // outputs and inputs of the weight
  const void* grad = nullptr;  // (K,M), rows grad_stride elements apart
  int grad_stride = 0;
  const void* in = nullptr;  // (K,N)
  float* out = nullptr;      // (M,N)
  // Sums of squares of what out is in the end: wgrad_square_partials() doubles whose sum is that
  // of the weight; null: not wanted.
  double* square_partials = nullptr;
};
constexpr size_t wgrad_square_partials(int m, int n) {
  const size_t tile = 128 * 128, values = static_cast<size_t>(m) * static_cast<size_t>(n);
  return (values + tile - 1) / tile * 8;
}

struct GroupedWgrad {
  static constexpr int kMost = 10;
  Dtype dtype = Dtype::kF32;
  int k = 0;  // rows of activations, which all of them sum over
  bool accumulate = false;
  int share = 1;  // one SM in so many is used, if others have work to do
  // For gemm (gemm.h).
  bool tf32 = false, tune = false;
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
  int count = 0;
  WgradProblem problems[kMost];
};

// One of them as a call of gemm.
inline Gemm gemm_of(const GroupedWgrad& a, const WgradProblem& p) {
  Gemm g;
  g.dtype = a.dtype;
  g.out_dtype = Dtype::kF32;
  g.m = p.m;
  g.n = g.ldb = g.ldc = p.n;
  g.k = a.k;
  g.a = p.grad;
  g.lda = p.grad_stride;
  g.transpose_a = true;
  g.b = p.in;
  g.c = p.out;
  g.accumulate = a.accumulate;
  g.tf32 = a.tf32;
  g.tune = a.tune;
  g.workspace = a.workspace;
  g.workspace_bytes = a.workspace_bytes;
  return g;
}

AERIE_DECLARE_KERNEL(weight_gradients, GroupedWgrad)

}  // namespace aerie::kernels
