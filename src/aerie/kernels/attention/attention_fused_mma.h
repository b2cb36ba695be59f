// GEMMs of attention_fused_backward.h: of tiles in shared memory that are transposed, and
// with ones; included by attention's .cu files alone.
#pragma once

#include "aerie/kernels/attention/attention_mma.h"

namespace aerie::kernels::AERIE_BACKEND {

// A warp's 16 x 16 values of a tile of 64 columns, from column 16k on.
template <typename T>
__device__ inline void store_block(T* tile, const FragmentA& a, int warp, int k, int lane) {
  stmatrix_x4(shared_address(tile) + (warp * 16 + lane % 16) * (2 * kTile) +
                  ((lane / 16 ^ lane % 8) ^ 2 * k) * 16,
              a);
}
// A of columns [16 * warp, 16 * warp + 16) and rows [16k, 16k + 16) of a tile, transposed.
template <typename T>
__device__ inline FragmentA ldmatrix_trans(const T* tile, int warp, int k, int lane) {
  const Bits16 m =
      ldmatrix_x4<true>(shared_address(tile) + (16 * k + lane / 16 * 8 + lane % 8) * (2 * kTile) +
                        ((2 * warp + lane / 8 % 2) ^ lane % 8) * 16);
  return {{m.w[0], m.w[1], m.w[2], m.w[3]}};
}
// A tile, and where wgmma finds it: known to be the same for all lanes, so that nothing has to be
// moved between one wgmma and the next.
template <typename T>
struct GroupTile {
  T* tile;
  uint32_t descriptor_low;  // of smem_descriptor()
  // Its 16 rows from 16k on.
  __device__ uint64_t rows(int k) const {
    return uint64_t(kDescriptorHigh) << 32 | (descriptor_low + unsigned(k) * (2048 >> 4));
  }
};
// c (16x64) += 16 columns of the left tile, transposed, times the right tile; made by the
// warpgroup.
template <int kDim, bool kAdd, typename T>
__device__ inline void group_trans(FragmentC* c, const GroupTile<T>& left,
                                   const GroupTile<T>& right, int warp, int lane) {
  if constexpr (kHaveWgmma) {
    wgmma_m64n64k16<T, true, kAdd>(c, left.rows(0), right.rows(0));
    AERIE_UNROLL
    for (int k = 1; k < kTile / 16; ++k) wgmma_m64n64k16<T, true>(c, left.rows(k), right.rows(k));
  } else {
    AERIE_UNROLL
    for (int n = 0; n < kDim / 8 && !kAdd; ++n) c[n] = {};
    AERIE_UNROLL
    for (int k = 0; k < kTile / 16; ++k)
      multiply_columns<kDim, T>(c, ldmatrix_trans(left.tile, warp, k, lane),
                                shared_address(right.tile) + k * (32 * kDim), lane);
  }
}
// The same with ones on the right, of which one column is wanted.
template <bool kAdd, typename T>
__device__ inline void group_trans_sum(FragmentC& c, const GroupTile<T>& left, uint64_t all_ones,
                                       int warp, int lane) {
  if constexpr (kHaveWgmma) {
    wgmma_m64n8k16<T, kAdd>(c, left.rows(0), all_ones);
    AERIE_UNROLL
    for (int k = 1; k < kTile / 16; ++k) wgmma_m64n8k16<T>(c, left.rows(k), all_ones);
  } else {
    if (!kAdd) c = {};
    AERIE_UNROLL
    for (int k = 0; k < kTile / 16; ++k)
      mma<T>(c, ldmatrix_trans(left.tile, warp, k, lane), ones<T>());
  }
}

// c += sums over the columns of a (16x64).
template <typename T>
__device__ inline void group_columns_sum(FragmentC& c, const FragmentA* a, const T* all_ones) {
  AERIE_UNROLL
  for (int k = 0; k < kTile / 16; ++k) {
    if constexpr (kHaveWgmma) {
      wgmma_m64n8k16<T>(c, a[k], plain_smem_descriptor(all_ones));
    } else {
      mma<T>(c, a[k], ones<T>());
    }
  }
}

}  // namespace aerie::kernels::AERIE_BACKEND
