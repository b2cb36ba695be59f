// Tiles of 64 rows as a warpgroup's GEMM reads them (wgmma.h), included by attention's .cu files
// alone: of heads with 128 values two panels of 64 columns each, of those with 64 values one.
#pragma once

#include "aerie/kernels/attention/attention_mma.h"
#include "aerie/kernels/cuda/pdl.h"

namespace aerie::kernels::AERIE_BACKEND {

template <int kDim>
constexpr int kPanels = kDim / 64;
constexpr int kPanelSize = kTile * 64;  // values

// copy_tile() into panels that are `apart` values from each other.
template <int kDim, bool kPadded, typename T>
__device__ inline void copy_panels(T* tile, const T* from, int first, int limit, int stride,
                                   int dim, int apart = kPanelSize) {
  AERIE_UNROLL
  for (int p = 0; p < kPanels<kDim>; ++p)
    copy_tile<64, kPadded>(tile + p * apart, from + p * 64, first, limit, stride, dim - p * 64);
}
// A warp's 16 rows as A, and the other way.
template <int kDim, typename T>
__device__ inline void load_panel_rows(FragmentA* a, const T* tile, int warp, int lane) {
  AERIE_UNROLL
  for (int p = 0; p < kPanels<kDim>; ++p)
    load_queries<64>(a + 4 * p, tile + p * kPanelSize, warp, lane);
}
template <int kDim, typename T>
__device__ inline void store_panel_rows(T* tile, const FragmentA* a, int warp, int lane) {
  AERIE_UNROLL
  for (int p = 0; p < kPanels<kDim>; ++p)
    store_queries<64>(tile + p * kPanelSize, a + 4 * p, warp, lane);
}
// A warp's 16 rows, as A, to device memory in pieces of 16 bytes (8 of padded heads): those below
// `valid`, through a tile whose 16 rows of this warp nobody else uses.
template <int kDim, bool kPadded, typename T>
__device__ inline void write_rows(T* to, const FragmentA* a, T* tile, int valid, int stride,
                                  int warp, int lane, [[maybe_unused]] int dim) {
  store_panel_rows<kDim>(tile, a, warp, lane);
  __syncwarp();
  if constexpr (kPadded) {
    constexpr int kRowPieces = kDim / 4;
    AERIE_UNROLL
    for (int e = 0; e < 16 * kRowPieces / 32; ++e) {
      const int row = (e * 32 + lane) / kRowPieces, column = lane % kRowPieces * 4;
      const T* const from = tile + column / 64 * kPanelSize + (warp * 16 + row) * 64;
      if (row < valid && column < dim)
        *reinterpret_cast<Bits8*>(to + ptrdiff_t(row) * stride + column) =
            *reinterpret_cast<const Bits8*>(from + (column / 8 % 8 ^ row % 8) * 8 + column % 8);
    }
  } else {
    constexpr int kRowPieces = kDim / 8;
    AERIE_UNROLL
    for (int e = 0; e < 16 * kRowPieces / 32; ++e) {
      const int row = (e * 32 + lane) / kRowPieces, piece = lane % kRowPieces;
      const T* const from = tile + piece / 8 * kPanelSize + (warp * 16 + row) * 64;
      if (row < valid)
        store16(to + ptrdiff_t(row) * stride + piece * 8,
                *reinterpret_cast<const Bits16*>(from + (piece % 8 ^ row % 8) * 8));
    }
  }
}
// c (16x64) += the warp's 16 rows of `left` * the tile's 64 rows, transposed: begun. Without kAdd,
// what c had is forgotten.
template <int kDim, bool kAdd = true, typename T>
__device__ inline void panel_rows(FragmentC* c, const T* left, const T* tile, int warp, int lane) {
  group_rows<64, kAdd>(c, left, tile, warp, lane);
  AERIE_UNROLL
  for (int p = 1; p < kPanels<kDim>; ++p)
    group_rows<64>(c, left + p * kPanelSize, tile + p * kPanelSize, warp, lane);
}
// c (16 x kDim) += a (16x64) * the tile's 64 rows: begun.
template <int kDim, typename T>
__device__ inline void panel_columns(FragmentC* c, const FragmentA* a, const T* tile, int lane) {
  AERIE_UNROLL
  for (int p = 0; p < kPanels<kDim>; ++p)
    group_columns<64>(c + 8 * p, a, tile + p * kPanelSize, lane);
}
template <int kDim>
__device__ inline void panel_ready(FragmentC* c) {
  AERIE_UNROLL
  for (int p = 0; p < kPanels<kDim>; ++p) wgmma_fence_operand<64>(c + 8 * p);
}

// A block of 16 x 16 values to device memory, in the order of the lanes that hold them.
template <typename T>
__device__ inline void store_fragment(T* to, const FragmentA& a) {
  store16(to, {{a.r[0], a.r[1], a.r[2], a.r[3]}});
}

// The band of positions that a warp sees: 80 rows of a ring of tiles, 16 at a time. All first
// panels of the ring come before all second ones.
template <typename T, int kDim, int kRing>
struct PanelBand {
  static constexpr int kRows = 80;
  static constexpr int kApart = kRing * kPanelSize;  // values from panel to panel
  Band<64, kRing> band;
  int lane;

  __device__ PanelBand(const T* ring, int first, int of) : band(ring, first), lane(of) {}
  // c[0], c[1] (16x8 each) = a (16 x kDim) * rows [16k, 16k + 8) and the next 8, transposed.
  __device__ void rows(FragmentC* c, const FragmentA* a, int k) const {
    const SharedAddress first = band.at(16 * k);
    AERIE_UNROLL
    for (int n = 0; n < 2; ++n) c[n] = {};
    AERIE_UNROLL
    for (int i = 0; i < kDim / 32; ++i) AERIE_UNROLL
    for (int n = 0; n < 2; ++n) {
      const int at = lane % 8 * 128 + ((lane / 8 ^ lane % 8) ^ 4 * (i % 2)) * 16;
      const Bits16 b = ldmatrix_x4<false>(first + at + (i / 2 * kApart * 2 + n * 1024));
      mma<T>(c[n], a[2 * i], first_of(b));
      mma<T>(c[n], a[2 * i + 1], second_of(b));
    }
  }
  // c (16 x kDim) += a (16x16) * rows [16k, 16k + 16).
  __device__ void columns(FragmentC* c, const FragmentA& a, int k) const {
    const SharedAddress first = band.at(16 * k);
    AERIE_UNROLL
    for (int n = 0; n < kDim / 16; ++n) {
      const int at = lane % 16 * 128 + ((lane / 16 ^ lane % 8) ^ 2 * (n % 4)) * 16;
      const Bits16 b = ldmatrix_x4<true>(first + at + n / 4 * kApart * 2);
      mma<T>(c[2 * n], a, first_of(b));
      mma<T>(c[2 * n + 1], a, second_of(b));
    }
  }
};

// The position term of a warp's S of 64 keys. Row r, key jj is row jj - r + 16 of the band.
template <typename T, int kDim, int kRing>
__device__ inline void position_scores(FragmentC* scores, const FragmentA* q_v,
                                       const PanelBand<T, kDim, kRing>& band,
                                       const RelShift& rel_shift) {
  FragmentC before[2], here[2];  // GEMMs with 16 rows
  band.rows(before, q_v, 0);
  AERIE_UNROLL
  for (int k = 1; k <= kTile / 16; ++k) {
    band.rows(here, q_v, k);
    const FragmentC* const row[4] = {&before[0], &before[1], &here[0], &here[1]};
    AERIE_UNROLL
    for (int n = 0; n < 2; ++n) {
      FragmentC& out = scores[2 * k - 2 + n];
      const FragmentC &x = *row[n], &y = *row[n + 1], &z = *row[n + 2];
      shift_right(rel_shift, y.v[0], y.v[1], z.v[0], z.v[1], out.v[0], out.v[1]);
      shift_right(rel_shift, x.v[2], x.v[3], y.v[2], y.v[3], out.v[2], out.v[3]);
    }
    before[0] = here[0];
    before[1] = here[1];
  }
}

}  // namespace aerie::kernels::AERIE_BACKEND
