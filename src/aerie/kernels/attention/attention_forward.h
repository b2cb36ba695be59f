// Forward on tensor cores, included by attention's .cu files alone.
#pragma once

#include "aerie/kernels/attention/attention_mma.h"

namespace aerie::kernels::AERIE_BACKEND {

// Where forward leaves a warp's unnormalised P for backward, 16 queries from i on.
template <typename T>
struct SavedP {
  T* blocks;        // the lane's 16 bytes of every block of 16 keys
  float* tile_max;  // of the lane's upper row
  int tile_max_stride;
  __device__ SavedP(const Attention& a, int item, int head, int i, int lane)
      : blocks(AERIE_PART_OF(
            static_cast<T*>(a.saved_p),
            attention_block_at(a, item, head, i / 16, attention_blocks(a.frames)) + lane * 8)),
        tile_max(AERIE_PART_OF(a.tile_max, attention_tile_max_at(a, item, head, 0, i + lane / 4))),
        tile_max_stride(attention_blocks(a.frames) * 16) {}
  __device__ T* tile(int jt) const { return blocks + jt * (kTile / 16 * 256); }
};

template <typename T, int kDim, bool kPadded, bool kDropout, bool kSave>
__global__ void __launch_bounds__(kMmaThreads, kQueryBlocks<kDim>)
    attention_forward_mma(Attention a) {
  AERIE_DYNAMIC_SHARED(memory);
  // The biases need no length: they are on their way first.
  const int dim = head_dim<kDim, kPadded>(a), column = int(blockIdx.y) * dim;
  const Bias<kDim, kPadded> bias_u(a.bias_u + column, int(threadIdx.x % 32), dim);
  const Bias<kDim, kPadded> bias_v(a.bias_v + column, int(threadIdx.x % 32), dim);
  QueryBlock<T, kDim, kPadded> q(a, memory);
  const int lane = q.lane, g = lane / 4, t = lane % 4;
  const RelShift rel_shift = rel_shift_of(lane);
  FragmentA q_u[kDim / 16], q_v[kDim / 16];
  FragmentC o[kDim / 8] = {};
  float running_max[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
  // Starts with what comes first, queries and positions; otherwise with everything.
  constexpr bool kEarly = QueryBlock<T, kDim, kPadded>::kOneOfValues;
  const bool exists = q.i < q.length;  // any of the warp's queries
  const SavedP<T> saved(a, q.item, q.head, q.i, lane);
  // Decisions wait where they stay for backward, or in front of the lane's saved P of the tile.
  const bool keeps = kDropout && a.keep != nullptr, waits = keeps || (kDropout && kSave);
  uint32_t* const kept = keeps   ? a.keep + attention_keep_at(a, q.item, q.head, q.i / 16, 0) + lane
                         : kSave ? reinterpret_cast<uint32_t*>(saved.blocks)
                                 : nullptr;
  const int kept_tile = keeps ? 32 : kTile / 16 * 256 / 2;  // words
  KeepDraw draws;
  if constexpr (kDropout) draws = KeepDraw(a.dropout, q.item, q.head, q.i, lane);
  const auto draw = [&](int jt) {
    draws.draw(jt);
    return draws.finish(lane);
  };
  if (q.jt < q.tiles.end) {
    q.copy(q.queries, static_cast<const T*>(a.q) + q.base_of(a), q.it * kTile, q.length, a.stride);
    q.copy_first(a);
    if (kEarly) {
      q.copy_values(a);
      // While they are under way: decisions need none of them.
      if (waits && exists) {
        AERIE_UNROLL_BY(1)
        for (int jt = q.jt; jt < q.tiles.end; ++jt) kept[jt * kept_tile] = draw(jt);
      }
      cp_async_wait<2>();
    } else {
      cp_async_wait_all();
    }
    __syncthreads();
    load_queries<kDim>(q_v, q.queries, q.warp, lane);
    bias_u.template add<T>(q_u, q_v);
    bias_v.template add<T>(q_v, q_v);
    if (kUsesWgmma<kDim>) store_queries<kDim>(q.queries, q_u, q.warp, lane);
    if (!kEarly) __syncthreads();
  }
  const KeyRange seen[2] = {keys_of(a, q.length, q.i + g), keys_of(a, q.length, q.i + g + 8)};
  const float scale = kLog2E / sqrtf(float(dim));
  for (bool first = true; q.jt < q.tiles.end; q.advance(), first = false) {
    if (!first && kEarly) q.copy_values(a);
    if (!first || !kEarly) q.copy_next(a);
    if (!kEarly && !exists) continue;
    uint32_t keep = ~0u;
    if (kEarly && waits && exists) keep = kept[q.jt * kept_tile];
    FragmentC scores[kTile / 8] = {};
    if (exists) {
      PositionTerm<T, kDim> position(q_v, q.current_band(), rel_shift, lane);
      AERIE_UNROLL
      for (int n = 0; n < kTile / 8; ++n) scores[n] = position.scores(n);
    }
    if (first && kEarly) {
      cp_async_wait<1>();
      fence_proxy_async<kDim>();
      __syncthreads();
      q.copy_next(a);
    }
    wgmma_fence<kDim>();
    if constexpr (kUsesWgmma<kDim>) {
      group_rows<kDim>(scores, q.queries, q.current(q.keys), q.warp, lane);
    } else {
      group_rows<kDim>(scores, q_u, q.current(q.keys), lane);
    }
    wgmma_commit<kDim>();
    if constexpr (kEarly) {
      if (kDropout && !waits && exists) keep = draw(q.jt);
    } else if (kDropout) {
      keep = draw(q.jt);
      if (keeps) kept[q.jt * kept_tile] = keep;
    }
    wgmma_wait_all<kDim>();
    wgmma_fence_operand<kDim>(scores);
    FragmentA p[kTile / 16] = {};
    if (exists) {
      if (q.needs_mask()) mask_tile(scores, seen, q.jt, lane);
      float rescale[2], tile_max[2];
      AERIE_UNROLL
      for (int r = 0; r < 2; ++r) {
        float top = running_max[r];
        AERIE_UNROLL
        for (int n = 0; n < kTile / 8; ++n)
          top = fmaxf(top, fmaxf(scores[n].v[2 * r], scores[n].v[2 * r + 1]));
        top = quad_max(top);
        tile_max[r] = top > -INFINITY ? top * scale : 0.0f;  // a row without keys so far
        rescale[r] = fast_exp2(running_max[r] * scale - tile_max[r]);
        running_max[r] = top;
        sum[r] *= rescale[r];
      }
      if (kSave && t == 0) {
        AERIE_UNROLL
        for (int r = 0; r < 2; ++r)
          saved.tile_max[q.jt * saved.tile_max_stride + r * 8] = tile_max[r];
      }
      AERIE_UNROLL
      for (int n = 0; n < kDim / 8; ++n) AERIE_UNROLL
      for (int e = 0; e < 4; ++e) o[n].v[e] *= rescale[e / 2];
      AERIE_UNROLL
      for (int k = 0; k < kTile / 16; ++k) {
        AERIE_UNROLL
        for (int n = 2 * k; n < 2 * k + 2; ++n) AERIE_UNROLL
        for (int e = 0; e < 4; ++e) {
          const float weight = fast_exp2(scores[n].v[e] * scale - tile_max[e / 2]);
          sum[e / 2] += weight;
          scores[n].v[e] = weight;
        }
        Bits16 signed_p;
        AERIE_UNROLL
        for (int r = 0; r < 4; ++r) {
          const int n = 2 * k + r / 2;
          const uint32_t pair = pack<T>(scores[n].v[r % 2 * 2], scores[n].v[r % 2 * 2 + 1]);
          const uint32_t mask = kDropout ? pair_mask(keep, n, r % 2) : ~0u;
          p[k].r[r] = pair & mask;
          signed_p.w[r] = pair | (~mask & 0x80008000u);
        }
        if (kSave) store_evict_first(saved.tile(q.jt) + k * 256, signed_p);
      }
    }
    if (kEarly) {
      cp_async_wait<1>();
      fence_proxy_async<kDim>();
      __syncthreads();
    }
    wgmma_fence<kDim>();
    group_columns<kDim>(o, p, kEarly ? q.values : q.current(q.values), lane);
    wgmma_commit<kDim>();
    wgmma_wait_all<kDim>();
    wgmma_fence_operand<kDim>(o);
  }
  const int rows = rows_of(a.layout, q.item, a.frames);
  const float dropped = kDropout ? a.dropout.scale : 1.0f;
  AERIE_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = q.i + g + r * 8;
    const float total = quad_sum(sum[r]);
    if (row >= a.frames) continue;
    const bool valid = row < q.length && total > 0.0f;
    if (t == 0)
      a.lse[head_of(a, q.item, q.head) * a.frames + row] =
          valid ? running_max[r] * (scale / kLog2E) + logf(total) : 0.0f;
    if (row >= rows) continue;
    const float factor = valid ? dropped / total : 0.0f;
    T* out = static_cast<T*>(a.out) + (q.first_row + row) * a.heads * dim + q.head * dim + 2 * t;
    AERIE_UNROLL
    for (int n = 0; n < kDim / 8; ++n) {
      if (kPadded && n * 8 + 2 * t >= dim) continue;
      *reinterpret_cast<uint32_t*>(out + n * 8) =
          valid ? pack<T>(o[n].v[2 * r] * factor, o[n].v[2 * r + 1] * factor) : 0u;
    }
  }
}

}  // namespace aerie::kernels::AERIE_BACKEND
