// The fused backward on tensor cores for 65 to 192 frames and 64 values per head, with the P that
// forward has saved; included by attention's .cu files alone. P and dS never leave the SM. A block
// takes one head of one item after the other and walks over tiles of 64 keys. Three of its four
// warpgroups have 64 queries each: they make dS and dQ, and leave P and dS in shared memory as
// tiles. The fourth makes the sums over queries of them, which are dK, dV and the gradient of bias
// u, while the others go on.
//
// The rel-shift goes through shared memory: dS is written by position too, where it stays. Behind
// the last tile of keys every warpgroup of queries makes its part of dQ from it, and dR of two
// tiles of positions, which wait in device memory; a second kernel adds those of all items.
//
// P carries the scale of dS: softmax's times dropout's.
#pragma once

#include <initializer_list>
#include <type_traits>

#include "aerie/kernels/attention/attention_fused_block.h"

namespace aerie::kernels::AERIE_BACKEND {

// What a warp's 16 queries need beside tiles, on its way while something else is finished.
template <typename T>
struct FusedQueries {
  FragmentA p[kTile / 16];  // saved, of the next tile of keys
  float tile_max[2];        // what these are relative to, in the lane's two rows
  float lse[2];             // of these rows

  template <int kDim, bool kPadded>
  __device__ void load_tile_max(const FusedBlock<T, kDim, kPadded>& q, const FusedItem& of,
                                int jt) {
    const unsigned tiles = unsigned(attention_tiles(q.a.frames));
    const float* const from =
        q.a.tile_max +
        (size_t(unsigned(of.item * q.a.heads + q.head)) * (tiles * tiles * kTile) +
         (unsigned(jt) * (tiles * kTile) + unsigned(q.group * kTile + q.warp * 16 + q.lane / 4)));
    tile_max[0] = tile_max[1] = 0.0f;
    if (!q.sees(of, jt)) return;
    AERIE_UNROLL
    for (int r = 0; r < 2; ++r) tile_max[r] = from[r * 8];
  }
  template <int kDim, bool kPadded>
  __device__ void load(const FusedBlock<T, kDim, kPadded>& q, const FusedItem& of, int jt) {
    load_tile_max(q, of, jt);
    AERIE_UNROLL
    for (int k = 0; k < kTile / 16; ++k) p[k] = {};
    if (!q.sees(of, jt)) return;
    const T* const from = q.saved_blocks(of, jt);
    AERIE_UNROLL
    for (int k = 0; k < kTile / 16; ++k) p[k] = fragment(from + k * 256);
  }
  // An item, with copies.
  template <int kDim, bool kPadded>
  __device__ void begin(const FusedBlock<T, kDim, kPadded>& q, const FusedItem& of) {
    load_tile_max(q, of, 0);
    AERIE_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int row = q.group * kTile + q.warp * 16 + q.lane / 4 + r * 8;
      lse[r] = INFINITY;
      if (row < of.length) lse[r] = q.a.lse[head_of(q.a, of.item, q.head) * q.a.frames + row];
    }
    q.copy_first(of);
  }
  // The first tile's P has come, but for the last copies.
  template <int kDim, bool kPadded>
  __device__ void take_first(const FusedBlock<T, kDim, kPadded>& q) {
    cp_async_wait<1>();
    AERIE_UNROLL
    for (int k = 0; k < kTile / 16; ++k) p[k] = fragment(q.first_saved(k));
  }

 private:
  __device__ static FragmentA fragment(const T* from) {
    const Bits16 x = *reinterpret_cast<const Bits16*>(from);
    return {{x.w[0], x.w[1], x.w[2], x.w[3]}};
  }
};

// A group of queries, one item; begun already, as the next is in the end.
template <typename T, int kDim, bool kPadded>
__device__ inline void fused_queries(const FusedBlock<T, kDim, kPadded>& q, FusedQueries<T>& now,
                                     bool first) {
  static_assert(kUsesWgmma<kDim>);
  const AttentionBackward& b = q.b;
  const Attention& a = q.a;
  const int lane = q.lane, warp = q.warp, g = lane / 4, t = lane % 4;
  const int length = q.item().length, end = ceil_div(length, kTile);
  T *const grads = q.tile_of(q.m.grads, q.group), *const p_tile = q.tile_of(q.m.p, q.group);
  T* const ds_tile = q.tile_of(q.m.ds, q.group);
  T* const ds_shifted = q.shifted_rows(q.group * kMmaWarps + warp);
  const float drop_scale = a.dropout.threshold != 0 ? a.dropout.scale : 1.0f;
  // Weights times both scales.
  const float both_scales = drop_scale / sqrtf(float(q.dim));
  float delta[2], lse[2];
  AERIE_UNROLL
  for (int r = 0; r < 2; ++r) lse[r] = now.lse[r] * kLog2E - log2f(both_scales);
  FragmentC dq[kDim / 8] = {};
  AERIE_UNROLL_BY(1)
  for (int jt = 0; jt < end; ++jt) {
    // The values have come, and for the first tile gradients; keys are not read any more.
    if (jt == 0) {
      if (first) {
        cp_async_wait_all();
      } else {
        cp_async_wait<2>();
      }
      fence_proxy_async<kDim>();
    }
    named_barrier_sync<kAmongQueries, kQueryThreads>();
    // When all SMs begin, what is wanted first comes sooner if nothing else is under way.
    if (first && jt == 0) q.copy_second(q.item());
    if (jt > 0 && q.group == 0) q.copy_keys(q.item(), jt);
    if (jt == 0) {
      // Positions that no key of a row has: before the first key, and behind the last.
      AERIE_UNROLL
      for (int e = 0; e < 2; ++e)
        *reinterpret_cast<Bits16*>(ds_shifted + lane / 2 * kShiftedRow + lane % 2 * 8 +
                                   e * end * kTile) = {};
    }
    FragmentC dp[kTile / 8];
    wgmma_fence<kDim>();
    group_rows<kDim, false>(dp, grads, q.m.values, warp, lane);
    wgmma_commit<kDim>();
    if (jt == 0) {
      named_barrier_sync<kDeltaReady, kFusedThreads>();
      AERIE_UNROLL
      for (int r = 0; r < 2; ++r)
        delta[r] = q.m.delta[(q.group * kMmaWarps + warp) * 16 + g + r * 8];
    }
    if (jt == 0) now.take_first(q);
    float factor[2];
    AERIE_UNROLL
    for (int r = 0; r < 2; ++r) factor[r] = fast_exp2(now.tile_max[r] - lse[r]);
    wgmma_wait_all<kDim>();
    wgmma_fence_operand<kDim>(dp);
    // Nobody reads the values any more.
    named_barrier_sync<kAmongQueries, kQueryThreads>();
    if (q.group == 1) {
      if (jt + 1 < end) {
        q.copy_values(q.item(), jt + 1);
      } else if (end > 1) {
        q.copy_r(1);
      }
    }
    if (first && jt == 0) {
      q.copy_r(-1 - q.group);
      if (q.group == 2) q.copy_r(0);
    }
    cp_async_commit();
    FragmentA ds[kTile / 16];
    {
      T* const along = ds_shifted + g * kShiftedRow + jt * kTile + 16 + 2 * t - g;
      AERIE_UNROLL
      for (int k = 0; k < kTile / 16; ++k) AERIE_UNROLL
      for (int n = 2 * k; n < 2 * k + 2; ++n) AERIE_UNROLL
      for (int r = 0; r < 2; ++r) {
        uint32_t& bits = now.p[k].r[n % 2 * 2 + r];
        const float value[2] = {low_of<T>(bits) * factor[r], high_of<T>(bits) * factor[r]};
        float kept[2], ds_value[2];
        AERIE_UNROLL
        for (int e = 0; e < 2; ++e) {
          kept[e] = fmaxf(value[e], 0.0f);
          ds_value[e] = kept[e] * dp[n].v[2 * r + e] - fabsf(value[e]) * delta[r];
        }
        bits = pack<T>(kept[0], kept[1]);
        const uint32_t pair = pack<T>(ds_value[0], ds_value[1]);
        ds[k].r[n % 2 * 2 + r] = pair;
        along[r * 8 * (kShiftedRow - 1) + n * 8] = T{uint16_t(pair)};
        along[r * 8 * (kShiftedRow - 1) + n * 8 + 1] = T{uint16_t(pair >> 16)};
      }
    }
    if (q.group == 0) {  // keys have come, beside later things
      if (jt == 0) {
        cp_async_wait<1>();
      } else {
        cp_async_wait_all();
      }
      fence_proxy_async<kDim>();
    }
    named_barrier_sync<kTilesEmpty, kFusedThreads>();
    AERIE_UNROLL
    for (int k = 0; k < kTile / 16; ++k) {
      store_block(ds_tile, ds[k], warp, k, lane);
      store_block(p_tile, now.p[k], warp, k, lane);
    }
    fence_proxy_async<kDim>();
    named_barrier_arrive<kTilesFull, kFusedThreads>();
    wgmma_fence<kDim>();
    group_columns<kDim>(dq, ds, q.m.keys, lane);
    wgmma_commit<kDim>();
    // Before anything is asked for that would have to come first: the next values are there, or
    // positions.
    if (q.group == 1 || jt + 1 == end) {
      cp_async_wait_all();
      fence_proxy_async<kDim>();
    }
    if (jt + 1 < end) now.load(q, q.item(), jt + 1);
    wgmma_wait_all<kDim>();
    wgmma_fence_operand<kDim>(dq);
  }
  // Keys are not read any more.
  named_barrier_sync<kAmongQueries, kQueryThreads>();
  if (q.group == 0 && end > 2) q.copy_r(2);
  // The group's positions begin 64 * (group + 1) before its first key; row r, position p of them is
  // where the warp has column p + 16 * (warp - 3) of its rows.
  const SharedAddress zero = shared_address(q.m.zeros);
  const SharedAddress from = shared_address(ds_shifted + lane % 16 * kShiftedRow + lane / 16 * 8);
  AERIE_UNROLL_BY(1)
  for (int w = 0; w < kFusedBand; w += 2) {
    FragmentA shifted[2 * kTile / 16];
    AERIE_UNROLL
    for (int k = 0; k < 2 * kTile / 16; ++k) {
      const int column = w * (kTile / 16) + k - 3 + warp;
      const Bits16 x = ldmatrix_x4<false>(
          unsigned(column) <= unsigned(end * (kTile / 16)) ? from + column * 32 : zero);
      shifted[k] = {{x.w[0], x.w[1], x.w[2], x.w[3]}};
    }
    if (w > 0) {
      if (q.group == 0) {
        cp_async_wait_all();
        fence_proxy_async<kDim>();
      }
      named_barrier_sync<kAmongQueries, kQueryThreads>();
    }
    wgmma_fence<kDim>();
    AERIE_UNROLL
    for (int e = 0; e < 2; ++e)  // behind the last, zeros are multiplied with anything finite
      group_columns<kDim>(dq, shifted + e * (kTile / 16),
                          q.position_tile(w + e <= end ? w + e - 1 - q.group : 0), lane);
    wgmma_commit<kDim>();
    wgmma_wait_all<kDim>();
    wgmma_fence_operand<kDim>(dq);
  }
  // The rel-shifted dS is there, and all sums over queries are made.
  named_barrier_sync<kTilesEmpty, kFusedThreads>();
  if (q.exists(q.next())) {
    now.begin(q, q.next());
    q.copy_second(q.next());
  }
  q.store_rows(b.grad_q, dq, q.group, ds_tile);
}

// delta of an item's queries. By the warpgroup of keys.
template <typename T, int kDim, bool kPadded>
__device__ inline void fused_delta(const FusedBlock<T, kDim, kPadded>& q, const FusedItem& of) {
  const int dense = q.a.heads * q.dim;
  const float kept = q.a.dropout.threshold != 0 ? 1.0f / q.a.dropout.scale : 1.0f;
  RowDelta<T, kDim, kPadded> row_delta[kFusedWarpgroups];
  AERIE_UNROLL
  for (int k = 0; k < kFusedWarpgroups; ++k) {
    const int i = (k * kMmaWarps + q.warp) * 16;
    const size_t at = (size_t(of.first) + i) * dense + q.head * q.dim;
    if (i < of.length)
      row_delta[k].load(static_cast<const T*>(q.a.out) + at,
                        static_cast<const T*>(q.b.grad_out) + at, of.length - i, dense, q.lane,
                        q.dim);
  }
  AERIE_UNROLL
  for (int k = 0; k < kFusedWarpgroups; ++k)
    row_delta[k].finish(q.m.delta + (k * kMmaWarps + q.warp) * 16, kept, q.lane);
  named_barrier_arrive<kDeltaReady, kFusedThreads>();
}

// The warpgroup of keys, one item. sum: two columns of bias u's gradient are added to it.
template <typename T, int kDim, bool kPadded>
__device__ inline void fused_keys(const FusedBlock<T, kDim, kPadded>& q, float* sum) {
  const AttentionBackward& b = q.b;
  const Attention& a = q.a;
  const int lane = q.lane, warp = q.warp, t = lane % 4;
  const int length = q.item().length, end = ceil_div(length, kTile);
  if (warp == 0) q.find_item(q.after_turn(), q.item().item + int(gridDim.y), q.item().skipped);
  // Tiles may be written, and the next item's place is known.
  named_barrier_arrive<kTilesEmpty, kFusedThreads>();
  AERIE_UNROLL_BY(1)
  for (int jt = 0; jt < end; ++jt) {
    if (jt == 0) {
      cp_async_wait_all();  // for the queries
      fence_proxy_async<kDim>();
    }
    // Two columns of the warp's 16 keys, for bias u.
    uint32_t pairs[16];
    const int first = jt * kTile + warp * 16;
    const T* keys =
        static_cast<const T*>(a.k) + (q.first_row() + first) * a.stride + q.head * q.dim + lane * 2;
    AERIE_UNROLL
    for (int r = 0; r < 16; ++r, keys += a.stride) {
      pairs[r] = 0;
      if (first + r < length && (!kPadded || lane * 2 < q.dim))
        pairs[r] = *reinterpret_cast<const uint32_t*>(keys);
    }
    named_barrier_sync<kTilesFull, kFusedThreads>();
    FragmentC grad_k[kDim / 8], grad_v[kDim / 8], sums;
    const uint64_t all_ones = plain_smem_descriptor_at(
        q.base + unsigned(q.m.ones - q.m.queries) * unsigned(sizeof(T)) / 16 - kDescriptorLow);
    const auto add = [&]<bool kAdd>(int i, std::bool_constant<kAdd>) {
      const GroupTile<T> scores = q.group_tile(q.m.ds, i);
      group_trans<kDim, kAdd>(grad_k, scores, q.group_tile(q.m.queries, i), warp, lane);
      group_trans_sum<kAdd>(sums, scores, all_ones, warp, lane);
      group_trans<kDim, kAdd>(grad_v, q.group_tile(q.m.p, i), q.group_tile(q.m.grads, i), warp,
                              lane);
    };
    wgmma_fence<kDim>();
    add(0, std::false_type{});
    AERIE_UNROLL
    for (int i = 1; i < kFusedWarpgroups; ++i) add(i, std::true_type{});
    wgmma_commit<kDim>();
    wgmma_wait_all<kDim>();
    wgmma_fence_operand<kDim>(grad_k);
    wgmma_fence_operand<kDim>(grad_v);
    wgmma_fence_operand<kDim>(sums);
    named_barrier_arrive<kTilesEmpty, kFusedThreads>();
    AERIE_UNROLL
    for (int n = 0; n < kDim / 8; ++n) {
      const Pair u =
          load_pair<kPadded>(a.bias_u + q.head * q.dim + n * 8 + t * 2, n * 8 + t * 2, q.dim);
      AERIE_UNROLL
      for (int r = 0; r < 2; ++r) {
        grad_k[n].v[2 * r] += sums.v[2 * r] * u.low;
        grad_k[n].v[2 * r + 1] += sums.v[2 * r] * u.high;
      }
    }
    q.store_rows(b.grad_k, grad_k, jt, 1.0f);
    q.store_rows(b.grad_v, grad_v, jt, sqrtf(float(q.dim)));
    AERIE_UNROLL
    for (int r = 0; r < 16; ++r) {
      const float weight = __shfl_sync(kFullWarp, sums.v[r / 8 * 2], r % 8 * 4);
      sum[0] += weight * low_of<T>(pairs[r]);
      sum[1] += weight * high_of<T>(pairs[r]);
    }
    if (jt == 0 && q.exists(q.next())) q.prefetch_saved_p(q.next());
  }
  for (void* grad : {b.grad_k, b.grad_v})
    q.store_zeros(grad, q.first_row(), end * kTile, q.rows(), q.thread, kMmaThreads);
  if (!q.exists(q.next())) return;
  fused_delta(q, q.next());
  named_barrier_sync<kPositionsDone, kFusedThreads>();
  q.copy_queries(q.next());
}

template <typename T, int kDim, bool kPadded>
__global__ void __launch_bounds__(kFusedThreads, 1)
    attention_fused_backward_mma(AttentionBackward b) {
  static_assert(kDim / 8 == 32 / 4);
  AERIE_DYNAMIC_SHARED(memory);
  const Attention& a = b.forward;
  FusedBlock<T, kDim, kPadded> q(b, memory);
  const int number = int(threadIdx.x);
  if (number < 32) q.find_item(0, q.slot, 0);
  if (number >= 128 && number < 256) q.m.ones[number - 128] = from_float<T>(1.0f);
  if (number >= 256 && number < 264) q.m.zeros[number - 256] = T{};
  fence_proxy_async<kDim>();
  __syncthreads();
  float sum[2] = {};  // of bias u's gradient: a lane has two columns
  if (q.group < kFusedWarpgroups) {
    const int tiles = attention_tiles(a.frames);
    float totals[2][2] = {};  // of the lane's positions, in the group's two tiles of these
    FusedQueries<T> now;
    if (q.exists(q.item())) now.begin(q, q.item());
    bool first = true;
    for (; q.exists(q.item()); q.turn = q.after_turn(), first = false) {
      fused_queries(q, now, first);
      AERIE_UNROLL_BY(1)
      for (int k = 0; k < 2; ++k) {
        const int which = q.group + k * kFusedWarpgroups;
        if (which < kFusedWarpgroups - tiles || which >= kFusedWarpgroups + tiles) continue;
        float total[2] = {};
        q.sum_dr(which, total);
        AERIE_UNROLL
        for (int e = 0; e < 4; ++e)
          if (e / 2 == k) totals[e / 2][e % 2] += total[e % 2];
      }
      if (q.exists(q.next())) named_barrier_arrive<kPositionsDone, kFusedThreads>();
    }
    AERIE_UNROLL
    for (int k = 0; k < 2; ++k) {
      const int which = q.group + k * kFusedWarpgroups;
      if (which < kFusedWarpgroups - tiles || which >= kFusedWarpgroups + tiles) continue;
      if (q.lane % 4 != 0) continue;
      float* const out = fused_sums(b, q.slot, q.head, which) + q.warp * 16 + q.lane / 4;
      out[0] = totals[k][0];
      out[8] = totals[k][1];
    }
  } else {
    if (q.exists(q.item())) {
      fused_delta(q, q.item());
      q.copy_queries(q.item());
      q.prefetch_saved_p(q.item());
    }
    for (; q.exists(q.item()); q.turn = q.after_turn()) fused_keys(q, sum);
  }
  __syncthreads();
  if (q.item().skipped != 0) {
    for (int item = q.slot; item < a.batch; item += int(gridDim.y)) {
      if (attention_length(a, item) > 0) continue;
      for (void* grad : {b.grad_q, b.grad_k, b.grad_v})
        q.store_zeros(grad, attention_first(a, item), 0, rows_of(a.layout, item, a.frames), number,
                      kFusedThreads);
      const int tiles = attention_tiles(a.frames);
      for (int k = kFusedWarpgroups - tiles; k < kFusedWarpgroups + tiles; ++k)
        for (int e = number * 8; e < kTile * kDim; e += kFusedThreads * 8)
          store16(fused_part<T>(b, item, q.head, k) + e, {});
    }
  }
  float* const parts = reinterpret_cast<float*>(memory);  // of every warp of the warpgroup of keys
  if (q.group == kFusedWarpgroups) {
    AERIE_UNROLL
    for (int e = 0; e < 2; ++e) parts[q.warp * kDim + q.lane * 2 + e] = sum[e];
  }
  __syncthreads();
  if (number >= q.dim) return;
  float total = 0.0f;
  for (int w = 0; w < kMmaWarps; ++w) total += parts[w * kDim + number];
  b.partial[size_t(q.slot) * (a.heads * q.dim) + q.head * q.dim + number] = total;
}

}  // namespace aerie::kernels::AERIE_BACKEND
