// The first half of backward on tensor cores, included by attention's .cu files alone. A block
// takes kGroups tiles of 64 queries of one head, one for each of its warpgroups, and
// walks over tiles of 64 keys as forward does: keys, values and positions are copied once for all
// groups. It makes the gradients of the queries, and leaves weights and gradients of the scores (by
// key, and by relative position) in scratch memory for attention_backward.h.
//
// Gradients of scores include the softmax's scale.
#pragma once

#include "aerie/kernels/attention/attention_panels.h"

namespace aerie::kernels::AERIE_BACKEND {

// Tiles in shared memory.
template <typename T, int kDim, int kGroups>
struct QueryTiles {
  // Heads of 128 values have room for one tile of values only, copied once all groups are done.
  static constexpr int kValueStages = kDim == 64 ? 2 : 1;
  static constexpr int kRing = kGroups + 2;  // tiles of p: those in use, and the next
  static constexpr int kTiles = 2 * kGroups + 2 + kValueStages + kRing;
  T *queries, *grads;       // of every group: q + u; gradients of out
  T *keys, *values, *band;  // stages, stages, ring
  float *inner, *log_sum;   // of every query: gradient of out times out, scaled; log2 of the sum
  __device__ explicit QueryTiles(unsigned char* memory)
      : queries(reinterpret_cast<T*>(memory)),
        grads(queries + kGroups * kTileSize<kDim>),
        keys(grads + kGroups * kTileSize<kDim>),
        values(keys + 2 * kTileSize<kDim>),
        band(values + kValueStages * kTileSize<kDim>),
        inner(reinterpret_cast<float*>(band + kRing * kTileSize<kDim>)),
        log_sum(inner + kGroups * kTile) {}
  static constexpr size_t kBytes =
      sizeof(uint16_t) * kTiles * kTileSize<kDim> + sizeof(float) * 2 * kGroups * kTile;
};

// Values in local memory, where the compiler would keep them in registers.
template <typename V, int kCount>
struct Parked {
  V values[kCount];
  __device__ V& operator[](int k) { return values[k + launder(0)]; }
};

template <int kDim, int kGroups>
constexpr int kQueryGradBlocks = kDim == 64 && kGroups == 1 ? 3 : 1;

// kDraw: the decisions of dropout are drawn again.
template <typename T, int kDim, bool kPadded, int kGroups, bool kDraw>
__global__ void __launch_bounds__(kGroups* kMmaThreads, kQueryGradBlocks<kDim, kGroups>)
    attention_query_grad_mma(AttentionBackward b) {
  using Tiles = QueryTiles<T, kDim, kGroups>;
  constexpr int kRing = Tiles::kRing, kBlocks = kTile / 16;
  constexpr int kValueGroup = kGroups > 1 ? 1 : 0;  // which copies the values
  constexpr bool kSaved = kDim > 64 && kGroups > 1;
  AERIE_DYNAMIC_SHARED(memory);
  wait_for_launches();
  let_launches();
  const Attention& a = b.forward;
  const Tiles m(memory);
  const int lane = int(threadIdx.x % 32), g = lane / 4;
  // The same for all lanes, which the compiler sees this way.
  const int warp = __shfl_sync(kFullWarp, int(threadIdx.x) / 32 % kMmaWarps, 0);
  const int group = kGroups == 1 ? 0 : __shfl_sync(kFullWarp, int(threadIdx.x) / kMmaThreads, 0);
  const int head = int(blockIdx.y), item = int(blockIdx.z);
  const int dim = head_dim<kDim, kPadded>(a), dense = a.heads * dim;
  const int length = attention_length(a, item), first_tile = int(blockIdx.x) * kGroups;
  const int it = first_tile + group, i = it * kTile + warp * 16;
  const int first_row = int(attention_first(a, item));
  const bool exists = i < length;  // any of the warp's queries; other blocks are not read
  // Where registers are few, a condition costs more than the work of warps without queries.
  const bool worth = exists || kSaved;
  // Tiles of keys that the group sees, and that any group does: both ends grow with the queries.
  const KeyTiles own = tiles_of(a, length, it);
  int jt = tiles_of(a, length, first_tile).first, end = 0;
  AERIE_UNROLL
  for (int k = 0; k < kGroups; ++k) {
    const int other = tiles_of(a, length, first_tile + k).end;
    end = other > end ? other : end;
  }
  if (item == 0 && threadIdx.x < 2 * kGroups &&
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
    copy_panels<kDim, kPadded>(m.band + slot * kPanelSize, static_cast<const T*>(a.p) + head * dim,
                               a.frames - 1 + number * kTile, 2 * a.frames - 1, a.p_stride, dim,
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
  // q + v as A; where registers are too few for it, it waits in local memory.
  FragmentA with_v[kDim / 16] = {};
  Parked<Bits16, kDim / 16> saved;
  FragmentC grad_q[kDim / 8] = {};
  const float softmax_scale = 1.0f / sqrtf(float(dim));
  const bool drops = !kDraw && a.dropout.threshold != 0;
  float* const inner = m.inner + (group * kMmaWarps + warp) * 16;
  float* const log_sum = m.log_sum + (group * kMmaWarps + warp) * 16;
  const auto decisions = [&](int tile) {
    return a.keep + attention_keep_at(a, item, head, i / 16, tile) + lane;
  };
  if (jt < end) {
    if (drops && exists) prefetch_l2(decisions(own.first));
    copy_panels<kDim, kPadded>(queries, rows_from(a.q, a.stride), it * kTile, length, a.stride,
                               dim);
    copy_band(kGroups - 1 - group, jt - it - 1);
    if (group == 0) copy_band(kGroups, jt - it);
    cp_async_commit();
    float logarithm = INFINITY;
    if (lane < 16 && i + lane < length)
      logarithm = a.log_sum[head_of(a, item, head) * a.frames + i + lane];
    InnerProducts<T, kDim, kPadded> products;
    if (exists)
      products.load(rows_from(a.out, dense) + size_t(i) * dense,
                    rows_from(b.grad_out, dense) + size_t(i) * dense, length - i, dense, lane, dim);
    if (group == 0) copy_keys(0);
    if (group == kValueGroup) copy_values(0);
    copy_panels<kDim, kPadded>(grads, rows_from(b.grad_out, dense), it * kTile, length, dense, dim);
    cp_async_commit();
    const Bias<kDim, kPadded> bias_u(a.bias_u + head * dim, lane, dim);
    const Bias<kDim, kPadded> bias_v(a.bias_v + head * dim, lane, dim);
    FragmentA with_u[kDim / 16];
    cp_async_wait<1>();
    __syncthreads();
    load_panel_rows<kDim>(with_v, queries, warp, lane);
    bias_u.template add<T>(with_u, with_v);
    bias_v.template add<T>(with_v, with_v);
    store_panel_rows<kDim>(queries, with_u, warp, lane);
    AERIE_UNROLL
    for (int n = 0; n < kDim / 16 && kSaved; ++n)
      saved[n] = {{with_v[n].r[0], with_v[n].r[1], with_v[n].r[2], with_v[n].r[3]}};
    products.finish(inner, softmax_scale, lane);
    if (lane < 16) log_sum[lane] = logarithm * kLog2E;
  }
  const float scale = kLog2E * softmax_scale;
  const float kept = softmax_scale * (a.dropout.threshold != 0 ? a.dropout.scale : 1.0f);
  const int blocks = attention_blocks(a.frames);
  // The warp's row of blocks in all squares.
  const uint32_t block_row = uint32_t((item * a.heads + head) * blocks + i / 16);
  const bool limited = a.left >= 0 || a.right >= 0 || a.chunk > 0;
  FragmentA carried = {};                     // a skewed block that the next tile of keys completes
  int stage = 0, ring = kGroups - 1 - group;  // the first tile of the group's band
  // Keys and values of the first tile, and gradients of out, come while positions are multiplied.
  const auto others_ready = [&] {
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
      if (jt >= end) return;
      if (group == 0) copy_keys(1 - stage);
      if (group == kGroups - 1) {
        const int slot = ring + 2 + group;
        copy_band(slot < kRing ? slot : slot - kRing, jt - first_tile);
      }
      if (Tiles::kValueStages > 1 && group == kValueGroup) copy_values(1 - stage);
    };
    if (!first) copy_next();
    const PanelBand<T, kDim, kRing> band(m.band, ring * kTile + 48 - 16 * warp, lane);
    const auto values_done = [&] {
      if (Tiles::kValueStages > 1) return;
      __syncthreads();
      if (jt < end && group == kValueGroup) copy_values(0);
    };
    if (active) {
      FragmentC scores[kTile / 8], d_weights[kTile / 8];
      if (worth) {
        relative_scores<T, kDim>(scores, with_v, band, skew_of(launder(lane)));
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
      panel_rows<kDim, false>(d_weights, grads, values, warp, lane);
      panel_rows<kDim>(scores, queries, keys, warp, lane);
      wgmma_commit<64>();
      if constexpr (kDraw) {
        KeepDraw draws(a.dropout, item, head, i, lane);
        draws.draw(tile);
        keep = draws.finish(lane);
      }
      wgmma_wait_all<64>();
      wgmma_fence_operand<64>(scores);
      wgmma_fence_operand<64>(d_weights);
      values_done();
      if (limited || tile * kTile + kTile > length) {
        const KeyRange seen[2] = {keys_of(a, length, i + g), keys_of(a, length, i + g + 8)};
        mask_tile(scores, seen, tile, lane);
      }
      const float inner_of[2] = {inner[g], inner[g + 8]};
      const float log_sum_of[2] = {log_sum[g], log_sum[g + 8]};
      const size_t first_block =
          (size_t(block_row) * unsigned(blocks) + unsigned(tile * kBlocks)) * 256 +
          unsigned(lane * 8);
      T* const weights_at = static_cast<T*>(b.weights) + first_block;
      T* const scores_at = static_cast<T*>(b.grad_scores) + first_block;
      FragmentA d_scores[kBlocks] = {};
      AERIE_UNROLL
      for (int c = 0; c < kBlocks && worth; ++c) {
        FragmentA weights;
        AERIE_UNROLL
        for (int n = 2 * c; n < 2 * c + 2; ++n) {
          float weight[4], d_score[4];
          AERIE_UNROLL
          for (int e = 0; e < 4; ++e) {
            weight[e] = fast_exp2(scores[n].v[e] * scale - log_sum_of[e / 2]);
            const float through = bit_of(keep, n, e) ? d_weights[n].v[e] : 0.0f;
            d_score[e] = weight[e] * (through * kept - inner_of[e / 2]);
          }
          AERIE_UNROLL
          for (int r = 0; r < 2; ++r) {
            weights.r[n % 2 * 2 + r] =
                pack<T>(weight[2 * r], weight[2 * r + 1]) & pair_mask(keep, n, r);
            d_scores[c].r[n % 2 * 2 + r] = pack<T>(d_score[2 * r], d_score[2 * r + 1]);
          }
        }
        if (exists) {
          store_fragment(weights_at + c * 256, weights);
          store_fragment(scores_at + c * 256, d_scores[c]);
        }
      }
      wgmma_fence<64>();
      panel_columns<kDim>(grad_q, d_scores, keys, lane);
      wgmma_commit<64>();
      // Row r, column c of the band is key c + r - 16.
      const Skew skew = skew_of(launder(lane));
      const auto at = [&](int n, int r) {
        return n >= 0 && n < kTile / 8 ? d_scores[n / 2].r[n % 2 * 2 + r] : 0u;
      };
      const auto along = [&](int n, int r) { return move_left(skew, at(n, r), at(n + 1, r)); };
      T* const skewed_at =
          static_cast<T*>(b.grad_skewed) +
          (size_t(block_row) * unsigned(blocks + 1) + unsigned(tile * kBlocks)) * 256 +
          unsigned(lane * 8);
      FragmentA skewed[kBlocks + 1];
      if (exists) {
        AERIE_UNROLL
        for (int c = 0; c <= kBlocks; ++c) {
          skewed[c] = {{c > 0 ? along(2 * c - 2, 0) : 0u, along(2 * c - 1, 1), along(2 * c - 1, 0),
                        c < kBlocks ? along(2 * c, 1) : 0u}};
          AERIE_UNROLL
          for (int r = 0; r < 4 && c == 0; ++r) skewed[c].r[r] |= carried.r[r];
          if (c < kBlocks || jt == own.end) store_fragment(skewed_at + c * 256, skewed[c]);
        }
        carried = skewed[kBlocks];
      }
      wgmma_wait_all<64>();
      panel_ready<kDim>(grad_q);
      if (exists) {
        AERIE_UNROLL
        for (int c = 0; c < kBlocks; ++c) band.columns(grad_q, skewed[c], c);
        if (jt == own.end) band.columns(grad_q, skewed[kBlocks], kBlocks);
      }
    } else {
      if (first) {
        others_ready();
        copy_next();
      }
      values_done();
    }
    AERIE_UNROLL
    for (int n = 0; n < kDim / 16 && kSaved; ++n) {
      const Bits16 x = saved[n];
      with_v[n] = {{x.w[0], x.w[1], x.w[2], x.w[3]}};
    }
    cp_async_wait_all();
    fence_proxy_async<64>();
    __syncthreads();
    stage = 1 - stage;
    ring = ring + 1 < kRing ? ring + 1 : 0;
  }
  AERIE_UNROLL
  for (int n = 0; n < kDim / 8; ++n) AERIE_UNROLL
  for (int r = 0; r < 2; ++r)
    with_v[n / 2].r[n % 2 * 2 + r] = pack<T>(grad_q[n].v[2 * r], grad_q[n].v[2 * r + 1]);
  write_rows<kDim, kPadded>(
      static_cast<T*>(b.grad_q) + size_t(first_row + i) * b.grad_stride + head * dim, with_v,
      queries, rows_of(a.layout, item, a.frames) - i, b.grad_stride, warp, lane, dim);
}

}  // namespace aerie::kernels::AERIE_BACKEND
