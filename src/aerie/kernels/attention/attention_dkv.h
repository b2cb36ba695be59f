// The second half of backward on tensor cores, included by attention's .cu files alone: dK, dV and
// dR, which are sums over queries of the P and dS that attention_dq.h has left. A block takes 64
// keys of one item or 64 relative positions of a group of items. The last group that comes adds all
// groups.
//
// The biases' gradients need no sums of their own: that of u is the sum over keys of (sum over
// queries of dS) * key, that of v the same over positions.
#pragma once

#include "aerie/kernels/attention/attention_panels.h"

namespace aerie::kernels::AERIE_BACKEND {

// A block of 16 x 16 values, stored as A, the other way round.
__device__ inline FragmentA transposed(const Bits16& m) {
  return {{movmatrix_trans(m.w[0]), movmatrix_trans(m.w[2]), movmatrix_trans(m.w[1]),
           movmatrix_trans(m.w[3])}};
}

// Shared memory of the second kernel: three stages of Q or dO and of blocks of P or dS. Behind the
// last of them a stage takes the rows (keys or positions) whose sum is a bias's gradient, the next
// one serves that sum.
constexpr int kSumStages = 3;
template <typename T, int kDim>
struct SumStages {
  static constexpr int kCount = kSumStages, kSize = kTileSize<kDim> + kTile * kTile;
  T* memory;
  __device__ explicit SumStages(unsigned char* bytes) : memory(reinterpret_cast<T*>(bytes)) {}
  __device__ static int after(int stage, int more = 1) {
    return stage + more < kCount ? stage + more : stage + more - kCount;
  }
  __device__ T* tile(int stage) const { return memory + stage * kSize; }
  // Of this lane, for its warp's k-th 16 queries.
  __device__ Bits16* block(int stage, int k) const {
    return reinterpret_cast<Bits16*>(tile(stage) + kTileSize<kDim>) +
           (int(threadIdx.x) / 32 * (kTile / 16) + k) * 32 + threadIdx.x % 32;
  }
  __device__ float* weights() const { return reinterpret_cast<float*>(memory + kCount * kSize); }
  __device__ float* bias() const { return weights() + kTile; }
  template <bool kPadded>
  __device__ void copy_bias(const float* from, [[maybe_unused]] int dim) const {
    if (threadIdx.x < kDim / 4)
      cp_async16(bias() + threadIdx.x * 4, from + threadIdx.x * 4,
                 !kPadded || int(threadIdx.x) * 4 < dim);
  }
  __device__ Pair bias_of(int n, int t) const {
    return *reinterpret_cast<const Pair*>(bias() + n * 8 + t * 2);
  }
};
template <int kDim>
constexpr size_t sum_shared() {
  return sizeof(uint16_t) * kSumStages * (kTileSize<kDim> + kTile * kTile) +
         sizeof(float) * (kTile + kDim);
}

// One step: the oldest stage's tile times its blocks, transposed. fetch(stage) starts to fill the
// one that is free then; with_sums: sums of the blocks over queries as well.
template <typename T, int kDim, typename Fetch>
__device__ inline void sum_step(FragmentC* grad, FragmentC& sums, const SumStages<T, kDim>& stages,
                                int stage, int lane, bool with_sums, Fetch fetch) {
  cp_async_wait<kSumStages - 2>();
  fence_proxy_async<64>();
  __syncthreads();
  FragmentA d[kTile / 16];
  AERIE_UNROLL
  for (int k = 0; k < kTile / 16; ++k) d[k] = transposed(*stages.block(stage, k));
  wgmma_fence<64>();
  panel_columns<kDim>(grad, d, stages.tile(stage), lane);
  wgmma_commit<64>();
  fetch(stages.after(stage, kSumStages - 1));
  if (with_sums) {
    AERIE_UNROLL
    for (int k = 0; k < kTile / 16; ++k) mma<T>(sums, d[k], ones<T>());
  }
  wgmma_wait_all<64>();
  panel_ready<kDim>(grad);
}

// out[0, dim) = sum over the tile's 64 rows of weight * row; all threads, behind the last
// use of the stages. `sums` are a warp's weights: row g, row g + 8.
template <typename T, int kDim>
__device__ inline void sum_rows(float* out, const SumStages<T, kDim>& stages, int stage,
                                float sum_upper, float sum_lower, int warp, int lane, int dim) {
  constexpr int kPieces = kDim / 8, kParts = kMmaThreads / kPieces;
  float* partial = reinterpret_cast<float*>(stages.tile(stages.after(stage)));
  if (lane % 4 == 0) {
    stages.weights()[warp * 16 + lane / 4] = sum_upper;
    stages.weights()[warp * 16 + lane / 4 + 8] = sum_lower;
  }
  __syncthreads();
  const int piece = threadIdx.x % kPieces, part = threadIdx.x / kPieces;
  Vec8 sum = {};
  for (int row = part; row < kTile; row += kParts) {
    const Vec8 more =
        load8(stages.tile(stage) + piece / 8 * kPanelSize + row * 64 + (piece % 8 ^ row % 8) * 8);
    AERIE_UNROLL
    for (int k = 0; k < 8; ++k) sum.v[k] += stages.weights()[row] * more.v[k];
  }
  store8(partial + part * kDim + piece * 8, sum);
  __syncthreads();
  static_assert(kDim <= kMmaThreads);
  if (threadIdx.x < unsigned(dim)) {
    float total = 0.0f;
    AERIE_UNROLL
    for (int p = 0; p < kParts; ++p) total += partial[p * kDim + threadIdx.x];
    out[threadIdx.x] = total;
  }
}

// Gradients of 64 keys, or of their values.
template <typename T, int kDim, bool kPadded>
__device__ inline void dkv_tile(const AttentionBackward& b, const SumStages<T, kDim>& stages,
                                int jt, int head, int item, bool of_v) {
  const Attention& a = b.forward;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = lane % 4;
  const int length = attention_length(a, item), item_rows = rows_of(a.layout, item, a.frames);
  const int dim = head_dim<kDim, kPadded>(a), dense = a.heads * dim;
  const size_t first_row = attention_first(a, item);
  const size_t base = first_row * a.stride + size_t(head) * dim;
  // Query tiles that see this one follow each other.
  int it = 0, end = 0;
  if (jt * kTile < length) {
    const auto sees = [&](int tile) {
      const KeyTiles seen = tiles_of(a, length, tile);
      return jt >= seen.first && jt < seen.end;
    };
    end = ceil_div(length, kTile);
    if (a.chunk > 0 || a.left >= 0 || a.right >= 0) {
      while (it < end && !sees(it)) ++it;
      while (it < end && !sees(end - 1)) --end;
    }
  }
  const T* const rows = of_v ? static_cast<const T*>(b.grad_out) + first_row * dense + head * dim
                             : static_cast<const T*>(a.q) + base;
  const int blocks = attention_blocks(a.frames);
  const T* const from = static_cast<const T*>(of_v ? b.p : b.ds) +
                        attention_block_at(a, item, head, 0, blocks) +
                        size_t(jt * (kTile / 16) + warp) * 256 + size_t(lane) * 8;
  const auto fetch_rows = [&](int stage, int number) {
    if (number < end)
      copy_panels<kDim, kPadded>(stages.tile(stage), rows, number * kTile, length,
                                 of_v ? dense : a.stride, dim);
  };
  int next = it;
  const auto fetch_blocks = [&](int stage) {
    if (next < end) {
      AERIE_UNROLL
      for (int k = 0; k < kTile / 16; ++k)
        cp_async16(stages.block(stage, k),
                   from + size_t(next * (kTile / 16) + k) * (size_t(blocks) * 256),
                   next * kTile + k * 16 < length);
    } else if (next == end && !of_v) {
      copy_panels<kDim, kPadded>(stages.tile(stage), static_cast<const T*>(a.k) + base, jt * kTile,
                                 length, a.stride, dim);
      stages.template copy_bias<kPadded>(a.bias_u + head * dim, dim);
    }
    ++next;
    cp_async_commit();
  };
  const auto fetch = [&](int stage) {
    fetch_rows(stage, next);
    fetch_blocks(stage);
  };
  // The rows are none of the first kernel's results.
  for (int i = 0; i < kSumStages - 1; ++i) fetch_rows(i, it + i);
  griddepcontrol_wait();
  for (int i = 0; i < kSumStages - 1; ++i) fetch_blocks(i);
  FragmentC grad[kDim / 8] = {}, sums = {};
  int stage = 0;
  for (; it < end; ++it, stage = stages.after(stage))
    sum_step<T, kDim>(grad, sums, stages, stage, lane, !of_v, fetch);
  cp_async_wait_all();
  __syncthreads();
  const float kept = a.dropout.threshold != 0 ? a.dropout.scale : 1.0f;
  FragmentA result[kDim / 16];
  AERIE_UNROLL
  for (int n = 0; n < kDim / 8; ++n) {
    const Pair u = of_v ? Pair{} : stages.bias_of(n, t);
    AERIE_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float low = grad[n].v[2 * r], high = grad[n].v[2 * r + 1], sum = sums.v[2 * r];
      result[n / 2].r[n % 2 * 2 + r] =
          of_v ? pack<T>(low * kept, high * kept) : pack<T>(low + sum * u.low, high + sum * u.high);
    }
  }
  const int first = jt * kTile + warp * 16;
  write_rows<kDim, kPadded>(static_cast<T*>(of_v ? b.grad_v : b.grad_k) +
                                (first_row + first) * b.grad_stride + size_t(head) * dim,
                            result, stages.tile(stages.after(stage, 2)), item_rows - first,
                            b.grad_stride, warp, lane, dim);
  if (of_v) return;
  float* out = b.partial + size_t(item * attention_tiles(a.frames) + jt) * dense + head * dim;
  sum_rows<T, kDim>(out, stages, stage, sums.v[0], sums.v[2], warp, lane, dim);
}

// Whether this block is the last of `count` to come; what they wrote before is visible to it then.
__device__ inline bool last_of(uint32_t* counter, unsigned count, float* shared) {
  unsigned* const before = reinterpret_cast<unsigned*>(shared);
#ifdef __CUDACC__
  __threadfence();
#endif
  __syncthreads();
  if (threadIdx.x == 0) {
#ifdef __CUDACC__
    *before = atomicAdd(counter, 1u);
    __threadfence();
#else
    *before = (*counter)++;
#endif
  }
  __syncthreads();
  return *before + 1 == count;
}
// What other blocks of this kernel have written.
__device__ inline Vec4 load4_again(const float* p) {
#ifdef __CUDACC__
  const float4 a = __ldcg(reinterpret_cast<const float4*>(p));
  return {{a.x, a.y, a.z, a.w}};
#else
  return *reinterpret_cast<const Vec4*>(p);
#endif
}
__device__ inline Vec8 load8_again(const float* p) {
  const Vec4 a = load4_again(p), b = load4_again(p + 4);
  return {{a.v[0], a.v[1], a.v[2], a.v[3], b.v[0], b.v[1], b.v[2], b.v[3]}};
}

// The groups' dR of 64 positions of a padded head, in pieces of four columns.
template <typename T>
__device__ inline void add_dr_groups(const AttentionBackward& b, int first, int head, int groups) {
  const Attention& a = b.forward;
  const int positions = 2 * a.frames - 1, pieces = a.dim / 4, dense = a.heads * a.dim;
  for (int e = int(threadIdx.x); e < kTile * pieces; e += kMmaThreads) {
    const int row = first + e / pieces, column = head * a.dim + e % pieces * 4;
    if (row < 0 || row >= positions) continue;
    Vec4 sum = {};
    AERIE_UNROLL_BY(4)
    for (int other = 0; other < groups; ++other) {
      const Vec4 more =
          load4_again(b.r_partial + (size_t(other) * positions + row) * dense + column);
      AERIE_UNROLL
      for (int k = 0; k < 4; ++k) sum.v[k] += more.v[k];
    }
    *reinterpret_cast<Bits8*>(static_cast<T*>(b.grad_r) + size_t(row) * b.grad_r_stride +
                              column) = {
        {pack<T>(sum.v[0], sum.v[1]), pack<T>(sum.v[2], sum.v[3])}};
  }
}

// dR of the 64 relative positions (key - query) from 64 * dt on, of one group of items.
template <typename T, int kDim, bool kPadded>
__device__ inline void dr_tile(const AttentionBackward& b, const SumStages<T, kDim>& stages,
                               int number, int head, int group) {
  const Attention& a = b.forward;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int dim = head_dim<kDim, kPadded>(a), dense = a.heads * dim;
  const int dt = number - attention_tiles(a.frames);
  const int groups = attention_groups(a);
  const int positions = 2 * a.frames - 1, first = a.frames - 1 + dt * kTile;
  // Pairs (item, query tile) that meet these positions, one after the other; last items first. What
  // is to be known of items is asked for 32 at a time, a lane for each.
  struct Step {
    int number, item, it, length;
    KeyTiles seen;
  };
  const int items = ceil_div(a.batch - group, groups);
  const auto item_of = [&](int at) { return group + (items - 1 - at) * groups; };
  int lengths = 0, firsts = 0;
  const auto ask = [&](int from) {
    if (from + lane >= items) return;
    lengths = attention_length(a, item_of(from + lane));
    firsts = int(attention_first(a, item_of(from + lane)));
  };
  const auto advance = [&](Step& s) {
    while (s.number < items) {
      if (++s.it * kTile < s.length) {
        s.seen = tiles_of(a, s.length, s.it);
        if (s.it + dt + 1 >= s.seen.first && s.it + dt < s.seen.end) return;
        continue;
      }
      if (++s.number >= items) return;
      if (s.number % 32 == 0) ask(s.number);
      s.item = item_of(s.number);
      s.length = __shfl_sync(kFullWarp, lengths, s.number % 32);
      s.it = -1;
    }
  };
  const int blocks = attention_blocks(a.frames);
  ask(0);
  griddepcontrol_wait();
  Step next = {-1, 0, 0, 0, {}};
  advance(next);
  int steps = 0;  // begun
  bool all = false;
  const auto fetch = [&](int stage) {
    if (next.number < items) {
      const size_t first_row = size_t(__shfl_sync(kFullWarp, firsts, next.number % 32));
      copy_panels<kDim, kPadded>(
          stages.tile(stage),
          static_cast<const T*>(a.q) + first_row * a.stride + size_t(head) * dim, next.it * kTile,
          next.length, a.stride, dim);
      const int column = (next.it + dt) * (kTile / 16) + warp + 1;
      const T* from = static_cast<const T*>(b.ds_shifted) +
                      attention_block_at(a, next.item, head, next.it * (kTile / 16), blocks + 1) +
                      ptrdiff_t(column) * 256 + lane * 8;
      AERIE_UNROLL
      for (int k = 0; k < kTile / 16; ++k)
        cp_async16(stages.block(stage, k), from + ptrdiff_t(k) * (blocks + 2) * 256,
                   next.it * kTile + k * 16 < next.length &&
                       column + k >= next.seen.first * (kTile / 16) &&
                       column + k <= next.seen.end * (kTile / 16));
      advance(next);
      ++steps;
    } else if (!all) {
      copy_panels<kDim, kPadded>(stages.tile(stage),
                                 static_cast<const T*>(a.r) + size_t(head) * dim, first, positions,
                                 a.r_stride, dim);
      stages.template copy_bias<kPadded>(a.bias_v + head * dim, dim);
      all = true;
    }
    cp_async_commit();
  };
  for (int i = 0; i < kSumStages - 1; ++i) fetch(i);
  FragmentC grad_r[kDim / 8] = {}, sums = {};
  int stage = 0;
  for (int step = 0; step < steps; ++step, stage = stages.after(stage))
    sum_step<T, kDim>(grad_r, sums, stages, stage, lane, true, fetch);
  cp_async_wait_all();
  __syncthreads();
  AERIE_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int row = first + warp * 16 + g + r * 8;
    if (row < 0 || row >= positions) continue;
    float* out = b.r_partial + (size_t(group) * positions + row) * dense + head * dim + 2 * t;
    AERIE_UNROLL
    for (int n = 0; n < kDim / 8; ++n) {
      if (kPadded && n * 8 + 2 * t >= dim) continue;
      const Pair v = stages.bias_of(n, t);
      *reinterpret_cast<Pair*>(out + n * 8) = {grad_r[n].v[2 * r] + sums.v[2 * r] * v.low,
                                               grad_r[n].v[2 * r + 1] + sums.v[2 * r] * v.high};
    }
  }
  float* out =
      b.partial +
      size_t(a.batch * attention_tiles(a.frames) + group * 2 * attention_tiles(a.frames) + number) *
          dense +
      head * dim;
  sum_rows<T, kDim>(out, stages, stage, sums.v[0], sums.v[2], warp, lane, dim);

  // The last group to come adds all of them, in their order whichever it is.
  if (!last_of(attention_counters(b, head, number), unsigned(groups), stages.weights())) return;
  if constexpr (kPadded) {
    add_dr_groups<T>(b, first, head, groups);
  } else {
    constexpr int kPieces = kDim / 8;
    AERIE_UNROLL_BY(2)
    for (int e = int(threadIdx.x); e < kTile * kPieces; e += kMmaThreads) {
      const int row = first + e / kPieces, column = head * dim + e % kPieces * 8;
      if (row < 0 || row >= positions) continue;
      Vec8 sum = {};
      AERIE_UNROLL_BY(4)
      for (int other = 0; other < groups; ++other) {
        const Vec8 more =
            load8_again(b.r_partial + (size_t(other) * positions + row) * dense + column);
        AERIE_UNROLL
        for (int k = 0; k < 8; ++k) sum.v[k] += more.v[k];
      }
      store8(static_cast<T*>(b.grad_r) + size_t(row) * b.grad_r_stride + column, sum);
    }
  }
}

template <int kDim>
constexpr int kSumBlocks = kDim == 64 ? 4 : 3;
inline dim3 sum_grid(const Attention& a) {
  return dim3(unsigned(2 * attention_tiles(a.frames)), unsigned(a.heads),
              unsigned(a.batch + attention_groups(a)));
}
// Of how many items P and dS are likely to be in L2, where not all are.
__device__ inline int cached_items(const Attention& a) {
  const int side = attention_blocks(a.frames) * 16;
  const float item = 6.0f * float(side) * float(side) * float(a.heads);  // bytes of P and dS
  return item * float(a.batch) < 48e6f ? 0 : int(32e6f / item);
}
template <typename T, int kDim, bool kPadded>
__global__ void __launch_bounds__(kMmaThreads, kSumBlocks<kDim>)
    attention_dkv_mma(AttentionBackward b) {
  AERIE_DYNAMIC_SHARED(memory);
  const SumStages<T, kDim> stages(memory);
  const Attention& a = b.forward;
  const int count = attention_tiles(a.frames), tile = int(blockIdx.x), head = int(blockIdx.y);
  // Last items first, whose P and dS may still be in L2. Of those that are, the keys; then the
  // positions, which take longest; then all other keys.
  const int ahead = cached_items(a), groups = attention_groups(a), z = int(blockIdx.z);
  if (z >= ahead && z < ahead + groups) {
    dr_tile<T, kDim, kPadded>(b, stages, tile, head, z - ahead);
    return;
  }
  const int item = a.batch - 1 - (z < ahead ? z : z - groups);
  dkv_tile<T, kDim, kPadded>(b, stages, tile < count ? tile : tile - count, head, item,
                             tile >= count);
}

}  // namespace aerie::kernels::AERIE_BACKEND
