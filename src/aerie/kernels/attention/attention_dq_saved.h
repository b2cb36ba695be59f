// The first half of the saved-P backward on tensor cores, included by attention's .cu files alone:
// as attention_dq_recompute.h, but P and dropout's decisions are read, so that dP is the only GEMM
// before dS.
#pragma once

#include "aerie/kernels/attention/attention_dq_recompute.h"

namespace aerie::kernels::AERIE_BACKEND {

// Tiles in shared memory.
template <typename T, int kDim, int kWarpgroups>
struct SavedTiles {
  static constexpr int kRing = kWarpgroups + 2;  // tiles of R: those in use, and the next
  static constexpr int kTiles = kWarpgroups + 2 + 2 + kRing;
  T *grads, *keys, *values, *band;  // gradients of out of every group, stages, stages, ring
  __device__ explicit SavedTiles(unsigned char* memory)
      : grads(reinterpret_cast<T*>(memory)),
        keys(grads + kWarpgroups * kTileSize<kDim>),
        values(keys + 2 * kTileSize<kDim>),
        band(values + 2 * kTileSize<kDim>) {}
  static constexpr size_t kBytes = sizeof(uint16_t) * kTiles * kTileSize<kDim>;
};

template <typename T, int kDim, bool kPadded, int kWarpgroups, int kAtATime>
__global__ void __launch_bounds__(kWarpgroups* kMmaThreads, kAtATime)
    attention_dq_saved_mma(AttentionBackward b) {
  using Tiles = SavedTiles<T, kDim, kWarpgroups>;
  constexpr int kRing = Tiles::kRing, kBlocks = kTile / 16;
  constexpr int kValueGroup = kWarpgroups > 1 ? 1 : 0;  // which copies the values
  AERIE_DYNAMIC_SHARED(memory);
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  const Attention& a = b.forward;
  const Tiles m(memory);
  const int lane = int(threadIdx.x % 32), g = lane / 4;
  // The same for all lanes, which the compiler sees this way.
  const int warp = __shfl_sync(kFullWarp, int(threadIdx.x) / 32 % kMmaWarps, 0);
  const int group =
      kWarpgroups == 1 ? 0 : __shfl_sync(kFullWarp, int(threadIdx.x) / kMmaThreads, 0);
  const int head = int(blockIdx.y), item = int(blockIdx.z);
  const int dim = head_dim<kDim, kPadded>(a), dense = a.heads * dim;
  const int length = attention_length(a, item), first_tile = int(blockIdx.x) * kWarpgroups;
  const int it = first_tile + group, i = it * kTile + warp * 16;
  const int first_row = int(attention_first(a, item));
  const bool exists = i < length;  // any of the warp's queries; other blocks are not read
  // Tiles of keys that the group sees, and that any group does: both ends grow with the queries.
  const KeyTiles own = tiles_of(a, length, it);
  int jt = tiles_of(a, length, first_tile).first, end = 0;
  AERIE_UNROLL
  for (int k = 0; k < kWarpgroups; ++k) {
    const int other = tiles_of(a, length, first_tile + k).end;
    end = other > end ? other : end;
  }
  if (item == 0 && threadIdx.x < 2 * kWarpgroups &&
      first_tile + int(threadIdx.x) / 2 < attention_tiles(a.frames))
    *attention_counters(b, head, 2 * first_tile + int(threadIdx.x)) = 0;

  T* const grads = m.grads + group * kTileSize<kDim>;
  // Addresses are not worth being kept from tile to tile.
  const auto rows_from = [&](const void* x, int stride) {
    return static_cast<const T*>(x) + size_t(first_row) * stride + head * dim;
  };
  // Tile `slot` of the ring has the positions from 64 * number on.
  const auto copy_band = [&](int slot, int number) {
    copy_panels<kDim, kPadded>(m.band + slot * kPanelSize, static_cast<const T*>(a.r) + head * dim,
                               a.frames - 1 + number * kTile, 2 * a.frames - 1, a.r_stride, dim,
                               kRing * kPanelSize);
  };
  const auto copy_keys = [&](int stage) {
    copy_panels<kDim, kPadded>(m.keys + stage * kTileSize<kDim>, rows_from(a.k, a.stride),
                               jt * kTile, length, a.stride, dim);
  };
  const auto copy_values = [&](int stage) {
    copy_panels<kDim, kPadded>(m.values + stage * kTileSize<kDim>, rows_from(a.v, a.stride),
                               jt * kTile, length, a.stride, dim);
  };
  const int blocks = attention_blocks(a.frames);
  // The warp's row of blocks in P, dS and the rel-shifted dS.
  const uint32_t block_row = uint32_t((item * a.heads + head) * blocks + i / 16);
  const auto block_at = [&](int tile) {
    return (size_t(block_row) * unsigned(blocks) + unsigned(tile * kBlocks)) * 256 +
           unsigned(lane * 8);
  };
  const auto prefetch_saved = [&](int tile) {
    if (exists && tile < own.end)
      prefetch_l2(static_cast<const T*>(a.saved_p) + block_at(tile) + lane * 24);
  };
  const float* const tile_max = a.tile_max + attention_tile_max_at(a, item, head, 0, i + g);

  FragmentC dq[kDim / 8] = {};
  const float softmax_scale = 1.0f / sqrtf(float(dim));
  const float kept = softmax_scale * (a.dropout.threshold != 0 ? a.dropout.scale : 1.0f);
  float delta_of[2] = {}, lse_of[2] = {INFINITY, INFINITY};
  if (jt < end) {
    prefetch_saved(own.first);
    prefetch_saved(own.first + 1);
    if (group == kValueGroup) copy_values(0);
    copy_panels<kDim, kPadded>(grads, rows_from(b.grad_out, dense), it * kTile, length, dense, dim);
    cp_async_commit();
    if (group == 0) copy_keys(0);
    copy_band(kWarpgroups - 1 - group, jt - it - 1);
    if (group == 0) copy_band(kWarpgroups, jt - it);
    cp_async_commit();
    AERIE_UNROLL
    for (int r = 0; r < 2; ++r)
      if (i + g + 8 * r < length)
        lse_of[r] = a.lse[head_of(a, item, head) * a.frames + i + g + 8 * r] * kLog2E;
    RowDelta<T, kDim, kPadded> products;
    if (exists)
      products.load(rows_from(a.out, dense) + size_t(i) * dense,
                    rows_from(b.grad_out, dense) + size_t(i) * dense, length - i, dense, lane, dim);
    products.rows(delta_of, softmax_scale, lane);
    cp_async_wait<1>();
    fence_proxy_async<64>();
    __syncthreads();
  }
  FragmentA carried = {};  // a ds_shifted block that the next tile of keys completes
  int stage = 0, ring = kWarpgroups - 1 - group;  // the first tile of the group's band
  for (bool first = true; jt < end; first = false) {
    const bool active = jt >= own.first && jt < own.end;
    const T *const keys = m.keys + stage * kTileSize<kDim>, *const values =
                                                                m.values + stage * kTileSize<kDim>;
    // The rest of the step copies what the next tile of keys needs: jt is that one from here on.
    const int tile = jt++;
    const auto copy_next = [&] {
      if (jt < end) {
        if (group == 0) copy_keys(1 - stage);
        if (group == kWarpgroups - 1) {
          const int slot = ring + 2 + group;
          copy_band(slot < kRing ? slot : slot - kRing, jt - first_tile);
        }
        if (group == kValueGroup) copy_values(1 - stage);
      }
      cp_async_commit();
    };
    // Keys and positions of the first tile come while the others are in use.
    const auto others_ready = [&] {
      if (!first) return;
      cp_async_wait<1>();
      fence_proxy_async<64>();
      __syncthreads();
    };
    if (active) {
      Bits16 saved[kBlocks] = {};
      float factor[2] = {};
      if (exists) {
        const T* const from = static_cast<const T*>(a.saved_p) + block_at(tile);
        AERIE_UNROLL
        for (int c = 0; c < kBlocks; ++c)
          saved[c] = *reinterpret_cast<const Bits16*>(from + c * 256);
        AERIE_UNROLL
        for (int r = 0; r < 2; ++r) factor[r] = tile_max[tile * (blocks * 16) + 8 * r];
      }
      FragmentC dp[kTile / 8];
      wgmma_fence<64>();
      panel_rows<kDim, false>(dp, grads, values, warp, lane);
      wgmma_commit<64>();
      copy_next();
      prefetch_saved(tile + 2);
      AERIE_UNROLL
      for (int r = 0; r < 2; ++r) factor[r] = fast_exp2(factor[r] - lse_of[r]);
      wgmma_wait_all<64>();
      wgmma_fence_operand<64>(dp);
      const size_t first_block = block_at(tile);
      T* const p_at = static_cast<T*>(b.p) + first_block;
      T* const scores_at = static_cast<T*>(b.ds) + first_block;
      FragmentA ds[kBlocks] = {};
      AERIE_UNROLL
      for (int c = 0; c < kBlocks && exists; ++c) {
        FragmentA p;
        AERIE_UNROLL
        for (int w = 0; w < 4; ++w) {
          const int n = 2 * c + w / 2, r = w % 2;
          float weight[2] = {low_of<T>(saved[c].w[w]), high_of<T>(saved[c].w[w])}, ds_value[2];
          AERIE_UNROLL
          for (int e = 0; e < 2; ++e) {
            const float through = sign_of(weight[e]) ? 0.0f : dp[n].v[2 * r + e];
            weight[e] *= factor[r];
            ds_value[e] = fabsf(weight[e]) * (through * kept - delta_of[r]);
          }
          p.r[w] = pack_relu<T>(weight[0], weight[1]);
          ds[c].r[w] = pack<T>(ds_value[0], ds_value[1]);
        }
        store_fragment(p_at + c * 256, p);
        store_fragment(scores_at + c * 256, ds[c]);
      }
      others_ready();
      wgmma_fence<64>();
      panel_columns<kDim>(dq, ds, keys, lane);
      wgmma_commit<64>();
      // Row r, column c of the band is key c + r - 16.
      const PanelBand<T, kDim, kRing> band(m.band, ring * kTile + 48 - 16 * warp, lane);
      const RelShift rel_shift = rel_shift_of(launder(lane));
      const auto at = [&](int n, int r) {
        return n >= 0 && n < kTile / 8 ? ds[n / 2].r[n % 2 * 2 + r] : 0u;
      };
      const auto along = [&](int n, int r) {
        return shift_left(rel_shift, at(n, r), at(n + 1, r));
      };
      T* const ds_shifted_at =
          static_cast<T*>(b.ds_shifted) +
          (size_t(block_row) * unsigned(blocks + 1) + unsigned(tile * kBlocks)) * 256 +
          unsigned(lane * 8);
      FragmentA ds_shifted[kBlocks + 1];
      if (exists) {
        AERIE_UNROLL
        for (int c = 0; c <= kBlocks; ++c) {
          ds_shifted[c] = {{c > 0 ? along(2 * c - 2, 0) : 0u, along(2 * c - 1, 1),
                            along(2 * c - 1, 0), c < kBlocks ? along(2 * c, 1) : 0u}};
          AERIE_UNROLL
          for (int r = 0; r < 4 && c == 0; ++r) ds_shifted[c].r[r] |= carried.r[r];
          if (c < kBlocks || jt == own.end) store_fragment(ds_shifted_at + c * 256, ds_shifted[c]);
        }
        carried = ds_shifted[kBlocks];
      }
      wgmma_wait_all<64>();
      panel_ready<kDim>(dq);
      if (exists) {
        AERIE_UNROLL
        for (int c = 0; c < kBlocks; ++c) band.columns(dq, ds_shifted[c], c);
        if (jt == own.end) band.columns(dq, ds_shifted[kBlocks], kBlocks);
      }
    } else {
      copy_next();
      others_ready();
    }
    cp_async_wait_all();
    fence_proxy_async<64>();
    __syncthreads();
    stage = 1 - stage;
    ring = ring + 1 < kRing ? ring + 1 : 0;
  }
  FragmentA result[kDim / 16];
  AERIE_UNROLL
  for (int n = 0; n < kDim / 8; ++n) AERIE_UNROLL
  for (int r = 0; r < 2; ++r)
    result[n / 2].r[n % 2 * 2 + r] = pack<T>(dq[n].v[2 * r], dq[n].v[2 * r + 1]);
  write_rows<kDim, kPadded>(
      static_cast<T*>(b.grad_q) + size_t(first_row + i) * b.grad_stride + head * dim, result, grads,
      rows_of(a.layout, item, a.frames) - i, b.grad_stride, warp, lane, dim);
}

}  // namespace aerie::kernels::AERIE_BACKEND
