// The first stage on tensor cores, for 16-bit types and up to kTensorBins bins of the output:
// features -> conv 3x3/2 + ReLU -> depthwise 3x3/2. The way back is in first_tensor_backward.h.
// Included by subsampling.cu alone.
//
// The convolution from one channel is a product of weights (channels x taps) and windows (taps x
// places), whose result has a lane's channels and places where the depthwise convolution wants
// them. Features and weights keep float32's meaning: each is the sum of two bf16 numbers (16 bits
// of mantissa), and the taps' dimension, padded to 32, holds the products that matter:
//   slots 0 to 8    (high, low) of a window's values times (high, high) of the weights
//   slots 9 to 13   (high, high) of two values times (low, low) of their weights
//   slot 14         (1, 1) times (high, low) of the bias
// A slot is a pair of neighbouring rows, one register of an operand. Windows are made into operands
// once per block, in shared memory; all channels use them. A window that counts as zero is an
// operand of zeros, so that nothing is asked later.
//
// A warp owns 32 channels, lane (g, t) = (l / 4, l % 4) channels 4g to 4g + 3 and bins kRun * t to
// kRun * t + kRun - 1 of the output: of tile j, one pair of bins in the middle.
#pragma once

#include "aerie/kernels/attention/mma.h"
#include "aerie/kernels/subsampling/lanes.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kRun = 5;
constexpr int kTensorBins = 4 * kRun;
constexpr int kPackedStride = 4 * kTensorBins + 4;  // numbers of a row, from bin -1 on
using Quad = Lanes<4>;

// x as the sum of two bf16 numbers, the larger one in the lower half.
__device__ inline uint32_t split_number(float x) {
  return pack<Bf16>(x, x - low_of<Bf16>(pack<Bf16>(x, 0.0f)));
}
__device__ inline uint32_t both_high(uint32_t a, uint32_t b) {
  return pick_bytes(a, b, 0x5410);
}
__device__ inline uint32_t both_low(uint32_t a, uint32_t b) {
  return pick_bytes(a, b, 0x7632);
}
constexpr uint32_t kOnes = 0x3f803f80u;

// Features [first_row, first_row + kRows) of one item, split; zero outside the item. All loads of a
// thread are under way together.
template <int kBlock, int kRows>
__device__ inline void load_packed(const SubsampleFirst& a, int item, int first_row,
                                   uint32_t* tile) {
  constexpr int kCount = kRows * kPackedStride, kEach = (kCount + kBlock - 1) / kBlock;
  const int length = a.lengths[item] < a.frames ? a.lengths[item] : a.frames;
  const float* x = a.x + (size_t(item) * a.frames) * a.bins;
  float values[kEach];
  int t = first_row + int(threadIdx.x) / kPackedStride;
  int f = int(threadIdx.x) % kPackedStride - 1;
  AERIE_UNROLL
  for (int i = 0; i < kEach; ++i) {
    const bool there = t >= 0 && t < length && f >= 0 && f < a.bins;
    values[i] = there ? x[t * a.bins + f] : 0.0f;
    const bool around = f >= kPackedStride - 1 - kBlock % kPackedStride;
    f += kBlock % kPackedStride - (around ? kPackedStride : 0);
    t += kBlock / kPackedStride + (around ? 1 : 0);
  }
  AERIE_UNROLL
  for (int i = 0; i < kEach; ++i) {
    const int at = int(threadIdx.x) + i * kBlock;
    if (at < kCount) tile[at] = split_number(values[i]);
  }
}

// Taps of the six numbers that make a lane's four slots: two slots of one number, one of tap 8 or
// of two high parts, one of two high parts (or ones, or nothing).
struct SlotTaps {
  int k[6];
};
__device__ inline SlotTaps slot_taps(int t) {
  return {
      {t, 4 + t, t == 0 ? 8 : 2 * t - 2, t == 0 ? 8 : 2 * t - 1, t == 0 ? 6 : 8, t == 0 ? 7 : 8}};
}

// Makes the operands of the middle's tiles. Tile j of a row has its windows from packed feature
// 4 * j of the row's first line on; offsets are those of a lane.
struct WindowMaker {
  int t, offsets[6];
  __device__ explicit WindowMaker(int lane) : t(lane % 4) {
    const SlotTaps taps = slot_taps(t);
    AERIE_UNROLL
    for (int i = 0; i < 6; ++i)
      offsets[i] = 4 * kRun * (lane / 8) + 2 * (lane / 4 % 2) + taps.k[i] / 3 * kPackedStride +
                   taps.k[i] % 3;
  }
  __device__ Bits16 make(const uint32_t* from) const {
    Bits16 out;
    out.w[0] = from[offsets[0]];
    out.w[1] = from[offsets[1]];
    const uint32_t c = from[offsets[2]], d = from[offsets[3]];
    const uint32_t pair = both_high(from[offsets[4]], from[offsets[5]]);
    out.w[2] = t == 0 ? c : both_high(c, d);
    out.w[3] = t < 2 ? pair : t == 2 ? kOnes : 0u;
    return out;
  }
};

// The weights' side. Tile q holds channels 4g + 2q in row g and 4g + 2q + 1 in row g + 8.
struct FirstWeights {
  FragmentA a[2][2];  // [tile of channels][half of the slots]
};
template <bool kNegative>
__device__ inline FirstWeights load_weights(const SubsampleFirst& a, int channel, int lane) {
  constexpr float kSign = kNegative ? -1.0f : 1.0f;
  const int t = lane % 4;
  const SlotTaps taps = slot_taps(t);
  FirstWeights out;
  AERIE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int q = i / 2, row = i % 2;
    const bool inside = channel + i < a.channels;
    uint32_t w[6];
    AERIE_UNROLL
    for (int k = 0; k < 6; ++k)
      w[k] = split_number(inside ? kSign * a.weight0[(channel + i) * 9 + taps.k[k]] : 0.0f);
    const uint32_t bias = split_number(inside ? kSign * a.bias0[channel + i] : 0.0f);
    out.a[q][0].r[row] = both_high(w[0], w[0]);
    out.a[q][0].r[2 + row] = both_high(w[1], w[1]);
    out.a[q][1].r[row] = t == 0 ? both_high(w[2], w[2]) : both_low(w[2], w[3]);
    out.a[q][1].r[2 + row] = t == 0   ? both_low(w[4], w[5])
                             : t == 1 ? both_low(w[4], 0u)
                             : t == 2 ? bias
                                      : 0u;
  }
  return out;
}

// C = A * B
__device__ inline FragmentC product(const FragmentA& a, const FragmentB& b) {
  FragmentC c = {};
#ifdef __CUDACC__
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%10,%10,%10};"
      : "=f"(c.v[0]), "=f"(c.v[1]), "=f"(c.v[2]), "=f"(c.v[3])
      : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]), "f"(0.0f));
#else
  mma<Bf16>(c, a, b);
#endif
  return c;
}

// conv0 + bias of a tile: the lane's four channels at an even bin of the middle and the next.
struct Middle {
  Quad even, odd;
};
__device__ inline Middle convolved(const FirstWeights& weights, const Bits16& window) {
  Middle out;
  AERIE_UNROLL
  for (int q = 0; q < 2; ++q) {
    FragmentC c = product(weights.a[q][0], {{window.w[0], window.w[1]}});
    mma<Bf16>(c, weights.a[q][1], {{window.w[2], window.w[3]}});
    out.even.v[2 * q] = c.v[0];
    out.odd.v[2 * q] = c.v[1];
    out.even.v[2 * q + 1] = c.v[2];
    out.odd.v[2 * q + 1] = c.v[3];
  }
  return out;
}
// The same behind the ReLU.
__device__ inline Middle middle_of(const FirstWeights& weights, const Bits16& window) {
  const Middle c = convolved(weights, window);
  return {positive(c.even), positive(c.odd)};
}

constexpr int kTensorThreads = 256;
constexpr int kTensorFrames = 12;                     // of the output, per block
constexpr int kTensorRows = 2 * kTensorFrames + 1;    // of the middle
constexpr int kTensorFeatures = 2 * kTensorRows + 1;  // rows of features
constexpr size_t kTensorShared =
    kTensorRows * kRun * 32 * sizeof(Bits16) + kTensorFeatures * kPackedStride * sizeof(uint32_t);

template <typename T>
__global__ void __launch_bounds__(kTensorThreads, 2) first_forward_tensor(SubsampleFirst a) {
  AERIE_DYNAMIC_SHARED(memory);
  Bits16* windows = reinterpret_cast<Bits16*>(memory);  // (rows, kRun, lanes)
  uint32_t* tile = reinterpret_cast<uint32_t*>(windows + kTensorRows * kRun * 32);
  const int item = blockIdx.z, begin = blockIdx.y * kTensorFrames;
  const int frames2 = strided(strided(a.frames)), bins1 = strided(a.bins), bins2 = strided(bins1);
  const int length1 = strided(a.lengths[item]), length2 = strided(length1);
  const int lane = threadIdx.x % 32, t = lane % 4;
  const int first_channel = (blockIdx.x * (kTensorThreads / 32) + threadIdx.x / 32) * 32;
  const int c = first_channel + lane / 4 * 4;
  const int bin = kRun * t;  // the first of this lane
  const bool mine = c < a.channels;
  const int bins = !mine || bin >= bins2 ? 0 : bins2 - bin < kRun ? bins2 - bin : kRun;
  const auto frames_below = [&](int end) {
    const int rest = (end < frames2 ? end : frames2) - begin;
    return rest < 0 ? 0 : rest < kTensorFrames ? rest : kTensorFrames;
  };
  const int live = frames_below(length2), all = frames_below(frames2);
  T* out =
      static_cast<T*>(a.out) + ((size_t(item) * frames2 + begin) * bins2 + bin) * a.channels + c;
  const size_t stride = size_t(bins2) * a.channels;
  const auto put = [&](T* to, const Quad* values) {
    AERIE_UNROLL
    for (int j = 0; j < kRun; ++j)
      if (j < bins) store_lanes(to + j * a.channels, values[j]);
  };
  for (int o = live; o < all; ++o) {
    const Quad none[kRun] = {};
    put(out + o * stride, none);
  }
  if (live == 0) return;  // the whole block
  // Asked for before the windows are made, to be there behind them.
  const FirstWeights weights = load_weights<false>(a, c, lane);
  Taps<4> weight1 = {};
  Quad bias1 = {};
  if (mine) {
    weight1 = load_taps<4>(a.weight1, c);
    bias1 = load_lanes<4>(a.bias1 + c);
  }
  load_packed<kTensorThreads, kTensorFeatures>(a, item, begin * 4 - 3, tile);
  __syncthreads();
  const WindowMaker windows_of(lane);
  for (int i = threadIdx.x / 32; i < kTensorRows * kRun; i += kTensorThreads / 32) {
    const int r = i / kRun, j = i % kRun, t1 = 2 * begin - 1 + r;
    const bool counts =
        t1 >= 0 && t1 < length1 && 2 * (kRun * (lane / 8) + j) + lane / 4 % 2 < bins1;
    const Bits16 made = windows_of.make(tile + 2 * r * kPackedStride + 4 * j);
    windows[i * 32 + lane] = counts ? made : Bits16{};
  }
  __syncthreads();
  if (first_channel >= a.channels) return;  // the whole warp
  // Middle row r is frame 2 begin - 1 + r, which output r / 2 reads with the first row of taps if r
  // is even, and output (r - 1) / 2 with the second or third.
  Quad sums[kRun], next[kRun];
  const auto add_row = [&](Quad* to, int kt, int j, const Middle& m, const Quad& before) {
    if (j > 0) add_product(to[j], weight1.v[kt * 3], before);
    add_product(to[j], weight1.v[kt * 3 + 1], m.even);
    add_product(to[j], weight1.v[kt * 3 + 2], m.odd);
  };
  // The bin before a lane's first one is the last of its neighbour.
  const auto neighbour = [&](const Quad& last) {
    Quad from;
    AERIE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float value = __shfl_up_sync(kFullWarp, last.v[i], 1);
      from.v[i] = t > 0 ? value : 0.0f;
    }
    return from;
  };
  const Bits16* row = windows + lane;
  {
    Quad before = {};
    AERIE_UNROLL
    for (int j = 0; j < kRun; ++j) {
      const Middle m = middle_of(weights, row[j * 32]);
      next[j] = bias1;
      add_row(next, 0, j, m, before);
      before = m.odd;
    }
    add_product(next[0], weight1.v[0], neighbour(before));
  }
  AERIE_UNROLL_BY(1)
  for (int o = 0; o < live; ++o) {
    row += kRun * 32;
    Quad before = {};
    AERIE_UNROLL
    for (int j = 0; j < kRun; ++j) {
      sums[j] = next[j];
      next[j] = bias1;
      const Middle m = middle_of(weights, row[j * 32]);
      add_row(sums, 1, j, m, before);
      before = m.odd;
    }
    add_product(sums[0], weight1.v[3], neighbour(before));
    row += kRun * 32;
    AERIE_UNROLL
    for (int j = 0; j < kRun; ++j) {
      const Middle m = middle_of(weights, row[j * 32]);
      add_row(sums, 2, j, m, before);
      add_row(next, 0, j, m, before);
      before = m.odd;
    }
    const Quad from = neighbour(before);
    add_product(sums[0], weight1.v[6], from);
    add_product(next[0], weight1.v[0], from);
    put(out, sums);
    out += stride;
  }
}

}  // namespace
}  // namespace aerie::kernels::AERIE_BACKEND
