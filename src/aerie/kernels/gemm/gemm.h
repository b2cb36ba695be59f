// C = op(A) * op(B) (+ bias) (+ C), row-major, float32 accumulation. A and B share a dtype; C may
// be of the same or float32 (weight gradients). On CUDA this is cuBLASLt; there is no kernel of our
// own to emulate.
#pragma once

#include "aerie/kernels/types.h"

namespace aerie::kernels {

struct Gemm {
  Dtype dtype = Dtype::kFloat;
  Dtype out_dtype = Dtype::kFloat;
  int m = 0, n = 0, k = 0;
  const void* a = nullptr;  // (m,k), or (k,m) when transposed; rows lda elements apart
  const void* b = nullptr;  // (k,n), or (n,k) when transposed
  void* c = nullptr;        // (m,n)
  int lda = 0, ldb = 0, ldc = 0;
  bool transpose_a = false, transpose_b = false;
  const void* bias = nullptr;  // (n), of C's dtype; null: none
  bool accumulate = false;     // adds to C; not together with a bias
  bool tf32 = false;           // float32 operands may be rounded to TF32
  void* workspace = nullptr;   // device scratch for cuBLASLt
  size_t workspace_bytes = 0;
};

AERIE_DECLARE_KERNEL(gemm, Gemm)

}  // namespace aerie::kernels
