// The first half of backward on tensor cores where it is not fused, included by attention's .cu
// files alone. A block takes kWarpgroups tiles of 64 queries of one head, one for each of its
// warpgroups, and walks over tiles of 64 keys as forward does: keys, values and positions are
// copied once for all groups. It makes dQ, and leaves P and dS (by key, and rel-shifted) in scratch
// memory for attention_dkv.h.
//
// Saved P: P and dropout's decisions are read, so that dP is the only GEMM before dS. Recompute: S
// is made again of q + u, keys and positions.
//
// dS includes the softmax's scale.
#pragma once

#include "aerie/kernels/attention/attention_panels.h"

namespace aerie::kernels::AERIE_BACKEND {

// Tiles in shared memory.
template <typename T, int kDim, int kWarpgroups, bool kSavedP>
struct DqTiles {
  // Recomputing heads of 128 values leaves room for one tile of values only, copied once all groups
  // are done.
  static constexpr int kValueStages = kSavedP || kDim == 64 ? 2 : 1;
  static constexpr int kRing = kWarpgroups + 2;  // tiles of R: those in use, and the next
  static constexpr int kQueries = kSavedP ? 0 : kWarpgroups;
  static constexpr int kTiles = kQueries + kWarpgroups + 2 + kValueStages + kRing;
  T *queries, *grads;       // of every group: q + u, where S is made again; gradients of out
  T *keys, *values, *band;  // stages, stages, ring
  float *delta, *lse;       // of every query, where S is made again: delta, scaled; LSE in log2
  __device__ explicit DqTiles(unsigned char* memory)
      : queries(reinterpret_cast<T*>(memory)),
        grads(queries + kQueries * kTileSize<kDim>),
        keys(grads + kWarpgroups * kTileSize<kDim>),
        values(keys + 2 * kTileSize<kDim>),
        band(values + kValueStages * kTileSize<kDim>),
        delta(reinterpret_cast<float*>(band + kRing * kTileSize<kDim>)),
        lse(delta + kWarpgroups * kTile) {}
  static constexpr size_t kBytes =
      sizeof(uint16_t) * kTiles * kTileSize<kDim> + sizeof(float) * 2 * kQueries * kTile;
};

// Values in local memory, where the compiler would keep them in registers.
template <typename V, int kCount>
struct Parked {
  V values[kCount];
  __device__ V& operator[](int k) { return values[k + launder(0)]; }
};

template <typename T, int kDim, bool kPadded, int kWarpgroups, bool kSavedP>
__global__ void __launch_bounds__(kWarpgroups* kMmaThreads, kDim == 64 ? 3 : 1)
    attention_dq_mma(AttentionBackward b) {
  using Tiles = DqTiles<T, kDim, kWarpgroups, kSavedP>;
  constexpr int kRing = Tiles::kRing, kBlocks = kTile / 16;
  constexpr int kValueGroup = kWarpgroups > 1 ? 1 : 0;  // which copies the values
  // Where registers are few, q + v waits in local memory.
  constexpr bool kParks = !kSavedP && kDim > 64 && kWarpgroups > 1;
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
  // Where registers are few, a condition costs more than the work of warps without queries.
  const bool worth = exists || kParks;
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

  T *const queries = m.queries + group * kTileSize<kDim>, *const grads =
                                                              m.grads + group * kTileSize<kDim>;
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
  // The warp's row of blocks in P, dS and the rel-shifted dS.
  int blocks = 0;
  uint32_t block_row = 0;
  const auto find_blocks = [&] {
    blocks = attention_blocks(a.frames);
    block_row = uint32_t((item * a.heads + head) * blocks + i / 16);
  };
  const auto block_at = [&](int tile) {
    return (size_t(block_row) * unsigned(blocks) + unsigned(tile * kBlocks)) * 256 +
           unsigned(lane * 8);
  };
  if constexpr (kSavedP) find_blocks();
  const auto prefetch_saved = [&](int tile) {
    if (exists && tile < own.end)
      prefetch_l2(static_cast<const T*>(a.saved_p) + block_at(tile) + lane * 24);
  };
  const float* const tile_max =
      kSavedP ? a.tile_max + attention_tile_max_at(a, item, head, 0, i + g) : nullptr;
  FragmentA q_v[kDim / 16] = {};  // q + v as A
  Parked<Bits16, kDim / 16> saved_q_v;
  FragmentC dq[kDim / 8] = {};
  const float softmax_scale = 1.0f / sqrtf(float(dim));
  const bool drops = !kSavedP && a.dropout.threshold != 0;
  float* const delta = m.delta + (group * kMmaWarps + warp) * 16;
  float* const lse = m.lse + (group * kMmaWarps + warp) * 16;
  float delta_of[2] = {}, lse_of[2] = {INFINITY, INFINITY};
  const auto decisions = [&](int tile) {
    return a.keep + attention_keep_at(a, item, head, i / 16, tile) + lane;
  };
  float kept = 0.0f;
  const auto find_kept = [&] {
    kept = softmax_scale * (a.dropout.threshold != 0 ? a.dropout.scale : 1.0f);
  };
  if constexpr (kSavedP) find_kept();
  if (jt < end) {
    if constexpr (kSavedP) {
      prefetch_saved(own.first);
      prefetch_saved(own.first + 1);
      if (group == kValueGroup) copy_values(0);
      copy_panels<kDim, kPadded>(grads, rows_from(b.grad_out, dense), it * kTile, length, dense,
                                 dim);
      cp_async_commit();
      if (group == 0) copy_keys(0);
      copy_band(kWarpgroups - 1 - group, jt - it - 1);
      if (group == 0) copy_band(kWarpgroups, jt - it);
      cp_async_commit();
      AERIE_UNROLL
      for (int r = 0; r < 2; ++r)
        if (i + g + 8 * r < length)
          lse_of[r] = a.lse[head_of(a, item, head) * a.frames + i + g + 8 * r] * kLog2E;
      RowDelta<T, kDim, kPadded> row_delta;
      if (exists)
        row_delta.load(rows_from(a.out, dense) + size_t(i) * dense,
                       rows_from(b.grad_out, dense) + size_t(i) * dense, length - i, dense, lane,
                       dim);
      row_delta.rows(delta_of, softmax_scale, lane);
      cp_async_wait<1>();
      fence_proxy_async<64>();
      __syncthreads();
    } else {
      if (drops && exists) prefetch_l2(decisions(own.first));
      copy_panels<kDim, kPadded>(queries, rows_from(a.q, a.stride), it * kTile, length, a.stride,
                                 dim);
      copy_band(kWarpgroups - 1 - group, jt - it - 1);
      if (group == 0) copy_band(kWarpgroups, jt - it);
      cp_async_commit();
      float logarithm = INFINITY;
      if (lane < 16 && i + lane < length)
        logarithm = a.lse[head_of(a, item, head) * a.frames + i + lane];
      RowDelta<T, kDim, kPadded> row_delta;
      if (exists)
        row_delta.load(rows_from(a.out, dense) + size_t(i) * dense,
                       rows_from(b.grad_out, dense) + size_t(i) * dense, length - i, dense, lane,
                       dim);
      if (group == 0) copy_keys(0);
      if (group == kValueGroup) copy_values(0);
      copy_panels<kDim, kPadded>(grads, rows_from(b.grad_out, dense), it * kTile, length, dense,
                                 dim);
      cp_async_commit();
      const Bias<kDim, kPadded> bias_u(a.bias_u + head * dim, lane, dim);
      const Bias<kDim, kPadded> bias_v(a.bias_v + head * dim, lane, dim);
      FragmentA q_u[kDim / 16];
      cp_async_wait<1>();
      __syncthreads();
      load_panel_rows<kDim>(q_v, queries, warp, lane);
      bias_u.template add<T>(q_u, q_v);
      bias_v.template add<T>(q_v, q_v);
      store_panel_rows<kDim>(queries, q_u, warp, lane);
      AERIE_UNROLL
      for (int n = 0; n < kDim / 16 && kParks; ++n)
        saved_q_v[n] = {{q_v[n].r[0], q_v[n].r[1], q_v[n].r[2], q_v[n].r[3]}};
      row_delta.finish(delta, softmax_scale, lane);
      if (lane < 16) lse[lane] = logarithm * kLog2E;
    }
  }
  const float scale = kLog2E * softmax_scale;
  if constexpr (!kSavedP) {
    find_kept();
    find_blocks();
  }
  const bool limited = a.left >= 0 || a.right >= 0 || a.chunk > 0;
  FragmentA carried = {};  // a ds_shifted block that the next tile of keys completes
  int stage = 0, ring = kWarpgroups - 1 - group;  // the first tile of the group's band
  // What the first tile of keys needs besides comes while something else is computed: keys and
  // positions (saved P); keys, values and dO (recompute).
  const auto others_ready = [&] {
    if constexpr (kSavedP)
      cp_async_wait<1>();
    else
      cp_async_wait_all();
    fence_proxy_async<64>();
    __syncthreads();
  };
  for (bool first = true; jt < end; first = false) {
    const bool active = jt >= own.first && jt < own.end;
    const T *const keys = m.keys + stage * kTileSize<kDim>, *const values =
                                                                m.values + (Tiles::kValueStages == 1
                                                                                ? 0
                                                                                : stage) *
                                                                               kTileSize<kDim>;
    // The rest of the step copies what the next tile of keys needs: jt is that one from here on.
    const int tile = jt++;
    const auto copy_next = [&] {
      if (jt < end) {
        if (group == 0) copy_keys(1 - stage);
        if (group == kWarpgroups - 1) {
          const int slot = ring + 2 + group;
          copy_band(slot < kRing ? slot : slot - kRing, jt - first_tile);
        }
        if (Tiles::kValueStages > 1 && group == kValueGroup) copy_values(1 - stage);
      }
      if constexpr (kSavedP) cp_async_commit();
    };
    if constexpr (!kSavedP)
      if (!first) copy_next();
    const PanelBand<T, kDim, kRing> band(m.band, ring * kTile + 48 - 16 * warp, lane);
    const auto values_done = [&] {
      if (Tiles::kValueStages > 1) return;
      __syncthreads();
      if (jt < end && group == kValueGroup) copy_values(0);
    };
    if (active) {
      // Machine code depends on this order.
      Bits16 saved[kBlocks] = {};
      float factor[2] = {};
      FragmentC scores[kTile / 8], dp[kTile / 8];
      FragmentA ds[kBlocks] = {};
      if constexpr (kSavedP) {
        if (exists) {
          const T* const from = static_cast<const T*>(a.saved_p) + block_at(tile);
          AERIE_UNROLL
          for (int c = 0; c < kBlocks; ++c)
            saved[c] = *reinterpret_cast<const Bits16*>(from + c * 256);
          AERIE_UNROLL
          for (int r = 0; r < 2; ++r) factor[r] = tile_max[tile * (blocks * 16) + 8 * r];
        }
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
        if (first) others_ready();
      } else {
        if (worth) {
          position_scores<T, kDim>(scores, q_v, band, rel_shift_of(launder(lane)));
        } else {
          AERIE_UNROLL
          for (int n = 0; n < kTile / 8; ++n) scores[n] = {};
        }
        if (first) {
          others_ready();
          copy_next();
        }
        uint32_t keep = ~0u;
        if (drops && exists) {
          const uint32_t* const from = decisions(tile);
          keep = *from;
          if (jt < own.end) prefetch_l2(from + 32);
        }
        wgmma_fence<64>();
        panel_rows<kDim, false>(dp, grads, values, warp, lane);
        panel_rows<kDim>(scores, queries, keys, warp, lane);
        wgmma_commit<64>();
        wgmma_wait_all<64>();
        wgmma_fence_operand<64>(scores);
        wgmma_fence_operand<64>(dp);
        values_done();
        if (limited || tile * kTile + kTile > length) {
          const KeyRange seen[2] = {keys_of(a, length, i + g), keys_of(a, length, i + g + 8)};
          mask_tile(scores, seen, tile, lane);
        }
        const float row_delta[2] = {delta[g], delta[g + 8]};
        const float row_lse[2] = {lse[g], lse[g + 8]};
        const size_t first_block =
            (size_t(block_row) * unsigned(blocks) + unsigned(tile * kBlocks)) * 256 +
            unsigned(lane * 8);
        T* const p_at = static_cast<T*>(b.p) + first_block;
        T* const scores_at = static_cast<T*>(b.ds) + first_block;
        AERIE_UNROLL
        for (int c = 0; c < kBlocks && worth; ++c) {
          FragmentA p;
          AERIE_UNROLL
          for (int n = 2 * c; n < 2 * c + 2; ++n) {
            float weight[4], ds_value[4];
            AERIE_UNROLL
            for (int e = 0; e < 4; ++e) {
              weight[e] = fast_exp2(scores[n].v[e] * scale - row_lse[e / 2]);
              const float through = bit_of(keep, n, e) ? dp[n].v[e] : 0.0f;
              ds_value[e] = weight[e] * (through * kept - row_delta[e / 2]);
            }
            AERIE_UNROLL
            for (int r = 0; r < 2; ++r) {
              p.r[n % 2 * 2 + r] =
                  pack<T>(weight[2 * r], weight[2 * r + 1]) & pair_mask(keep, n, r);
              ds[c].r[n % 2 * 2 + r] = pack<T>(ds_value[2 * r], ds_value[2 * r + 1]);
            }
          }
          if (exists) {
            store_fragment(p_at + c * 256, p);
            store_fragment(scores_at + c * 256, ds[c]);
          }
        }
      }
      wgmma_fence<64>();
      panel_columns<kDim>(dq, ds, keys, lane);
      wgmma_commit<64>();
      // Row r, column c of the band is key c + r - 16.
      const auto here =
          kSavedP ? PanelBand<T, kDim, kRing>(m.band, ring * kTile + 48 - 16 * warp, lane) : band;
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
        for (int c = 0; c < kBlocks; ++c) here.columns(dq, ds_shifted[c], c);
        if (jt == own.end) here.columns(dq, ds_shifted[kBlocks], kBlocks);
      }
    } else if constexpr (kSavedP) {
      copy_next();
      if (first) others_ready();
    } else {
      if (first) {
        others_ready();
        copy_next();
      }
      values_done();
    }
    AERIE_UNROLL
    for (int n = 0; n < kDim / 16 && kParks; ++n) {
      const Bits16 x = saved_q_v[n];
      q_v[n] = {{x.w[0], x.w[1], x.w[2], x.w[3]}};
    }
    cp_async_wait_all();
    fence_proxy_async<64>();
    __syncthreads();
    stage = 1 - stage;
    ring = ring + 1 < kRing ? ring + 1 : 0;
  }
  FragmentA packed[kDim / 16];
  FragmentA* const result = kSavedP ? packed : q_v;
  AERIE_UNROLL
  for (int n = 0; n < kDim / 8; ++n) AERIE_UNROLL
  for (int r = 0; r < 2; ++r)
    result[n / 2].r[n % 2 * 2 + r] = pack<T>(dq[n].v[2 * r], dq[n].v[2 * r + 1]);
  write_rows<kDim, kPadded>(
      static_cast<T*>(b.grad_q) + size_t(first_row + i) * b.grad_stride + head * dim, result,
      kSavedP ? grads : queries, rows_of(a.layout, item, a.frames) - i, b.grad_stride, warp, lane,
      dim);
}

}  // namespace aerie::kernels::AERIE_BACKEND
