// The first stage's forward pass on tensor cores. Included by subsampling.cu alone.
#pragma once

#include "aerie/kernels/features/ragged_walk.h"
#include "aerie/kernels/subsampling/first_tensor.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kTensorThreads = 512;
constexpr int kTensorWarps = kTensorThreads / 32;
constexpr int kTensorChannels = kTensorWarps * 16;
constexpr int kTensorBlocks = 132;                    // one for each SM
constexpr int kTensorFrames = 4;                      // of the output, a unit
constexpr int kTensorRows = 2 * kTensorFrames + 1;    // of the middle
constexpr int kTensorFeatures = 2 * kTensorRows + 1;  // rows of features
// Windows of a row of the middle: tiles, slots by four, lanes.
struct RowWindows {
  uint32_t v[kRun][4][32];
};
constexpr size_t kTensorShared =
    kTensorRows * sizeof(RowWindows) + kTensorFeatures * kPackedStride * sizeof(uint32_t);

// c = weights * windows of a row.
__device__ inline void convolve_row(const FirstWeights& weights, const RowWindows* rows, int number,
                                    int lane, FragmentC (&c)[kRun]) {
  static_assert(kRun == 5);
  if constexpr (kHaveWgmma) {
    [[maybe_unused]] const uint64_t windows =
        operand_at(rows->v, 128, 512) + number * (sizeof(RowWindows) >> 4);
    [[maybe_unused]] const FragmentA &a = weights.a[0], &b = weights.a[1];
    wgmma_fence<64>();
    AERIE_WGMMA_ASM(
        "wgmma.mma_async.sync.aligned.m64n40k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19}, "
        "{%20,%21,%22,%23}, %24, 0, 1, 1, 0;"
        : AERIE_SUM(c[0]), AERIE_SUM(c[1]), AERIE_SUM(c[2]), AERIE_SUM(c[3]), AERIE_SUM(c[4])
        : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(windows));
    AERIE_WGMMA_ASM(
        "wgmma.mma_async.sync.aligned.m64n40k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19}, "
        "{%20,%21,%22,%23}, %24, 1, 1, 1, 0;"
        : AERIE_SUM(c[0]), AERIE_SUM(c[1]), AERIE_SUM(c[2]), AERIE_SUM(c[3]), AERIE_SUM(c[4])
        : "r"(b.r[0]), "r"(b.r[1]), "r"(b.r[2]), "r"(b.r[3]), "l"(windows + (256 >> 4)));
    wgmma_commit<64>();
    wgmma_wait_all<64>();
    AERIE_WGMMA_ASM(""
                    : AERIE_SUM(c[0]), AERIE_SUM(c[1]), AERIE_SUM(c[2]), AERIE_SUM(c[3]),
                      AERIE_SUM(c[4])::"memory");
  } else {
    AERIE_UNROLL
    for (int j = 0; j < kRun; ++j) {
      const auto& slots = rows[number].v[j];
      c[j] = product(weights.a[0], {{slots[0][lane], slots[1][lane]}});
      mma<Bf16>(c[j], weights.a[1], {{slots[2][lane], slots[3][lane]}});
    }
  }
}

// Zeros to the frames that do not count, this block's share.
template <typename T>
__device__ inline void clear_padding(const SubsampleFirst& a) {
  const int frames2 = strided(strided(a.frames)), bins2 = strided(strided(a.bins));
  const auto padding_of = [&](int item) { return frames2 - live_frames(a, item); };
  const int c = blockIdx.x * kTensorChannels + threadIdx.x % 32 * 8;
  for (RaggedWalk walk = share_of(a.batch, padding_of, blockIdx.y, gridDim.y); walk.left > 0;
       walk.advance(1, padding_of)) {
    const size_t frame = size_t(walk.item) * frames2 + frames2 - walk.end + walk.at;
    if (c < a.channels)
      for (int bin = threadIdx.x / 32; bin < bins2; bin += kTensorWarps)
        *reinterpret_cast<Bits16*>(static_cast<T*>(a.out) + (frame * bins2 + bin) * a.channels +
                                   c) = Bits16{};
  }
}

template <typename T>
__global__ void __launch_bounds__(kTensorThreads, 1) first_forward_tensor(SubsampleFirst a) {
  AERIE_DYNAMIC_SHARED(memory);
  RowWindows* windows = reinterpret_cast<RowWindows*>(memory);
  const FeatureTile<kTensorThreads, kTensorFeatures> tile = {
      reinterpret_cast<uint32_t*>(windows + kTensorRows)};
  const int frames2 = strided(strided(a.frames)), bins1 = strided(a.bins), bins2 = strided(bins1);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = lane % 4;
  const int first_channel = blockIdx.x * kTensorChannels + warp * 16;
  const int c = first_channel + lane / 4 * 2;
  const int bin = kRun * t;  // the first of this lane
  const bool mine = c < a.channels;
  const int bins = !mine || bin >= bins2 ? 0 : bins2 - bin < kRun ? bins2 - bin : kRun;
  const auto frames_of = [&](int item) { return live_frames(a, item); };
  RaggedWalk unit = share_of(a.batch, frames_of, blockIdx.y, gridDim.y);
  tile.clear();
  __syncthreads();
  if (unit.left > 0) tile.copy(a, unit.item, 4 * unit.at - 3);
  clear_padding<T>(a);
  const FirstWeights weights = load_weights<false>(a, c, lane);
  Taps<2> weight1 = {};
  Pair bias1 = {};
  if (mine) {
    weight1 = load_taps<2>(a.weight1, c);
    bias1 = load_lanes<2>(a.bias1 + c);
  }
  AERIE_UNROLL
  for (int k = 0; k < 9; ++k) AERIE_UNROLL
  for (int i = 0; i < 2; ++i) weight1.v[k].v[i] *= 0.5f;
  const WindowMaker windows_of(lane);
  const size_t stride = size_t(bins2) * a.channels;
  // Middle row r is frame 2 begin - 1 + r, which output r / 2 reads with the first row of taps if r
  // is even, and output (r - 1) / 2 with the second or third. `next` is what output 0 of the next
  // unit has from row 0 when a unit has been computed.
  Pair sums[kRun], next[kRun];
  FragmentC middle[kRun] = {};  // in front of the ReLU; row g is the lane's first channel
  // Twice the value behind the ReLU.
  const auto value = [&](int j, int odd) {
    const float one = middle[j].v[odd], two = middle[j].v[2 + odd];
    return Pair{{one + fabsf(one), two + fabsf(two)}};
  };
  // The bin before a lane's first one is the last of its neighbour.
  const auto neighbour = [&](const Pair& last) {
    Pair from;
    AERIE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const float given = __shfl_up_sync(kFullWarp, last.v[i], 1);
      from.v[i] = t > 0 ? given : 0.0f;
    }
    return from;
  };
  bool fresh = true;  // row 0 has not been computed
  while (uniform(unit.left) > 0) {
    const int item = unit.item, begin = unit.at, count = uniform(unit.ahead(kTensorFrames));
    const int length1 = strided(a.lengths[item]);
    cp_async_wait_all();
    tile.split(a);
    __syncthreads();  // and the last unit's windows have been used
    AERIE_UNROLL_BY(1)
    for (int r = warp + (fresh ? 0 : 1); r < kTensorRows; r += kTensorWarps) {
      const int t1 = 2 * begin - 1 + r;
      AERIE_UNROLL
      for (int j = 0; j < kRun; ++j) {
        const bool counts =
            t1 >= 0 && t1 < length1 && 2 * (kRun * (lane / 8) + j) + lane / 4 % 2 < bins1;
        const Bits16 made = windows_of.make(tile.numbers + 2 * r * kPackedStride + 4 * j);
        AERIE_UNROLL
        for (int q = 0; q < 4; ++q) windows[r].v[j][q][lane] = counts ? made.w[q] : 0u;
      }
    }
    fence_proxy_async<64>();
    __syncthreads();
    const bool was_fresh = fresh;
    unit.advance(count, frames_of);
    fresh = unit.item != item;
    if (unit.left > 0) tile.copy(a, unit.item, 4 * unit.at - 3);
    if (!kHaveWgmma && first_channel >= a.channels) continue;  // the whole warp
    if (was_fresh) {
      convolve_row(weights, windows, 0, lane, middle);
      Pair before = neighbour(value(kRun - 1, 1));
      AERIE_UNROLL
      for (int j = 0; j < kRun; ++j) {
        next[j] = bias1;
        add_product(next[j], weight1.v[0], before);
        add_product(next[j], weight1.v[1], value(j, 0));
        before = value(j, 1);
        add_product(next[j], weight1.v[2], before);
      }
    }
    T* out =
        static_cast<T*>(a.out) + ((size_t(item) * frames2 + begin) * bins2 + bin) * a.channels + c;
    AERIE_UNROLL_BY(1)
    for (int o = 0; o < count; ++o) {
      convolve_row(weights, windows, 2 * o + 1, lane, middle);
      Pair before = neighbour(value(kRun - 1, 1));
      AERIE_UNROLL
      for (int j = 0; j < kRun; ++j) {
        const Pair even = value(j, 0), odd = value(j, 1);
        sums[j] = next[j];
        add_product(sums[j], weight1.v[3], before);
        add_product(sums[j], weight1.v[4], even);
        add_product(sums[j], weight1.v[5], odd);
        before = odd;
      }
      convolve_row(weights, windows, 2 * o + 2, lane, middle);
      before = neighbour(value(kRun - 1, 1));
      AERIE_UNROLL
      for (int j = 0; j < kRun; ++j) {
        const Pair even = value(j, 0), odd = value(j, 1);
        next[j] = bias1;
        add_product(sums[j], weight1.v[6], before);
        add_product(next[j], weight1.v[0], before);
        add_product(sums[j], weight1.v[7], even);
        add_product(next[j], weight1.v[1], even);
        add_product(sums[j], weight1.v[8], odd);
        add_product(next[j], weight1.v[2], odd);
        before = odd;
      }
      AERIE_UNROLL
      for (int j = 0; j < kRun; ++j)
        if (j < bins) store_lanes(out + j * a.channels, sums[j]);
      out += stride;
    }
  }
}

}  // namespace
}  // namespace aerie::kernels::AERIE_BACKEND
