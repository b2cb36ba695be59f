// C = op(A) * op(B) (+ bias) (+ C), row-major, float32 accumulation. A and B share a dtype; C may
// be of the same or float32 (weight gradients). Several GEMMs of one shape whose operands lie at
// constant distances (strided batch) are one call. On CUDA this is cuBLASLt, or kernels of our own
// where they are faster (persistent_gemm.h).
#pragma once

#include "aerie/kernels/types.h"

namespace aerie::kernels {

// CUDA: which kernel. M of a tile of our own; 0: the shape decides; negative: cuBLASLt.
struct GemmTile {
  int m = 0;
  bool ping_pong = false;
};

// Memory that calls to come read.
struct L2Prefetch {
  const void* data = nullptr;
  size_t bytes = 0;
};

struct Gemm {
  static constexpr int kMaxPrefetches = 6;

  Dtype dtype = Dtype::kF32;
  Dtype out_dtype = Dtype::kF32;
  int m = 0, n = 0, k = 0;
  const void* a = nullptr;  // (m,k), or (k,m) when transposed; rows lda elements apart
  const void* b = nullptr;  // (k,n), or (n,k) when transposed
  void* c = nullptr;        // (m,n)
  int lda = 0, ldb = 0, ldc = 0;
  bool transpose_a = false, transpose_b = false;
  // GEMMs of this shape, and the elements from one's operand to the next's (0: shared).
  int count = 1;
  int64_t step_a = 0, step_b = 0, step_c = 0;
  const void* bias = nullptr;  // (n), of C's dtype; null: none
  bool accumulate = false;     // adds to C; not together with a bias
  bool tf32 = false;           // float32 operands may be rounded to TF32
  // CUDA: the first call of a shape outside a capture times cuBLASLt's candidates and keeps the
  // fastest; otherwise its first suggestion is taken. Either way the choice stays for the life of
  // the process; only the second is the same in every process.
  bool tune = false;
  GemmTile tile;
  void* workspace = nullptr;  // device scratch for cuBLASLt
  size_t workspace_bytes = 0;
  // GEMMs are bound by arithmetic: kernels of our own meanwhile prefetch this to L2.
  L2Prefetch prefetch[kMaxPrefetches];
};

AERIE_DECLARE_KERNEL(gemm, Gemm)

}  // namespace aerie::kernels
