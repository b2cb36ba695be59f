// The first stage on tensor cores, for 16-bit types and up to kTensorBins bins of the output:
// features -> conv 3x3/2 + ReLU -> depthwise 3x3/2. Here is what forward and backward share;
// included by subsampling.cu alone.
//
// The convolution from one channel is a GEMM of weights (channels x taps) and windows (taps x
// places), whose result has a lane's channels and places where the depthwise convolution wants
// them. Features and weights keep float32's meaning: each is the sum of two bf16 numbers (16 bits
// of mantissa), and the taps' dimension, padded to 32, holds the products that matter:
//   slots 0 to 8    (high, low) of a window's values times (high, high) of the weights
//   slots 9 to 13   (high, high) of two values times (low, low) of their weights
//   slot 14         (1, 1) times (high, low) of the bias
// A slot is a pair of neighbouring rows, one register of an operand. Windows are made into operands
// once per block, in shared memory; all channels use them. A window that counts as zero is an
// operand of zeros, so that nothing is asked later. Blocks stay on the device and share out the
// frames that count; while they compute, the features of what follows are on their way.
//
// A warp owns 16 channels, lane (g, t) = (l / 4, l % 4) channels 2g and 2g + 1 and bins kRun * t to
// kRun * t + kRun - 1 of the output: of tile j, one pair of bins in the middle.
//
// A scheduler is busy for one cycle with arithmetic of float32, for two with logic, comparisons and
// conversions, for six with mma(). Hence wgmma where the device has it, and ReLUs and masks that
// are sums and products.
#pragma once

#include "aerie/kernels/cuda/cp_async.h"
#include "aerie/kernels/cuda/wgmma.h"
#include "aerie/kernels/subsampling/lanes.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kRun = 5;
constexpr int kTensorBins = 4 * kRun;
constexpr int kPackedStride = 4 * kTensorBins + 4;  // numbers of a row, from bin -1 on
using Pair = Lanes<2>;

// Output frames of an item that count.
__device__ inline int live_frames(const SubsampleFirst& a, int item) {
  const int frames2 = strided(strided(a.frames)), length2 = strided(strided(a.lengths[item]));
  return length2 < frames2 ? length2 : frames2;
}

// A number that all lanes have, which the compiler is to know: operands of wgmma are named by
// registers of the warp.
__device__ inline int uniform(int x) {
  return __shfl_sync(kFullWarp, x, 0);
}

// x as the sum of two bf16 numbers, the larger one in the lower half.
__device__ inline uint32_t split_number(float x) {
  return pack<Bf16>(x, x - low_of<Bf16>(pack<Bf16>(x, 0.0f)));
}
__device__ inline uint32_t both_high(uint32_t a, uint32_t b) {
  return byte_perm(a, b, 0x5410);
}
__device__ inline uint32_t both_low(uint32_t a, uint32_t b) {
  return byte_perm(a, b, 0x7632);
}
constexpr uint32_t kOnes = 0x3f803f80u;

// Four bytes from device to shared memory, zeros unless `inside`; `from` is valid either way.
__device__ inline void copy_word(uint32_t* to, const float* from, bool inside) {
#ifdef __CUDACC__
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(inside ? 4 : 0)
               : "memory");
#else
  *to = 0;
  if (inside) memcpy(to, from, 4);
#endif
}

// kRows neighbouring rows of features in shared memory, split. A warp has whole rows, and a thread
// splits the numbers that it has copied itself, once they have arrived.
template <int kThreads, int kRows>
struct FeatureTile {
  static constexpr int kNumbers = kRows * kPackedStride;
  uint32_t* numbers;

  // Before anything else, and a barrier behind it: what lies beside the bins stays zero.
  __device__ void clear() const {
    for (int i = threadIdx.x; i < kNumbers; i += kThreads) numbers[i] = 0;
  }
  // Rows from `first` of the item on; zero outside the item.
  __device__ void copy(const SubsampleFirst& a, int item, int first) const {
    const int length = a.lengths[item] < a.frames ? a.lengths[item] : a.frames;
    const float* x = a.x + size_t(item) * a.frames * a.bins;
    for_own(a, [&](int row, int f) {
      const bool there = first + row >= 0 && first + row < length;
      copy_word(numbers + row * kPackedStride + 1 + f, x + (there ? (first + row) * a.bins : 0) + f,
                there);
    });
  }
  __device__ void split(const SubsampleFirst& a) const {
    for_own(a, [&](int row, int f) {
      uint32_t* at = numbers + row * kPackedStride + 1 + f;
      float value;
      memcpy(&value, at, 4);
      *at = split_number(value);
    });
  }

 private:
  template <typename Body>
  __device__ void for_own(const SubsampleFirst& a, const Body& body) const {
    constexpr int kWarps = kThreads / 32;
    const int lane = threadIdx.x % 32;
    AERIE_UNROLL
    for (int i = 0; i < ceil_div(kRows, kWarps); ++i) {
      const int row = int(threadIdx.x) / 32 + i * kWarps;
      if (row >= kRows) continue;
      AERIE_UNROLL
      for (int k = 0; k < ceil_div(4 * kTensorBins, 32); ++k)
        if (lane + 32 * k < a.bins) body(row, lane + 32 * k);
    }
  }
};

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
// 4 * j of the row's first line on; offsets are those of a lane. What lanes do differently stands
// in selectors and masks.
struct WindowMaker {
  int offsets[6];
  uint32_t third, pair_mask, constant;
  __device__ explicit WindowMaker(int lane) {
    const int t = lane % 4;
    const SlotTaps taps = slot_taps(t);
    AERIE_UNROLL
    for (int i = 0; i < 6; ++i)
      offsets[i] = 4 * kRun * (lane / 8) + 2 * (lane / 4 % 2) + taps.k[i] / 3 * kPackedStride +
                   taps.k[i] % 3;
    third = t == 0 ? 0x3210 : 0x5410;  // one number, or both high parts
    pair_mask = t < 2 ? ~0u : 0u;
    constant = t == 2 ? kOnes : 0u;
  }
  __device__ Bits16 make(const uint32_t* from) const {
    Bits16 out;
    out.w[0] = from[offsets[0]];
    out.w[1] = from[offsets[1]];
    out.w[2] = byte_perm(from[offsets[2]], from[offsets[3]], third);
    out.w[3] = (both_high(from[offsets[4]], from[offsets[5]]) & pair_mask) | constant;
    return out;
  }
};

// The weights' side, of `channel`, a lane's first one, in row g and the next one in row g + 8.
struct FirstWeights {
  FragmentA a[2];  // [half of the slots]
};
template <bool kNegative>
__device__ inline FirstWeights load_weights(const SubsampleFirst& a, int channel, int lane) {
  constexpr float kSign = kNegative ? -1.0f : 1.0f;
  const int t = lane % 4;
  const SlotTaps taps = slot_taps(t);
  FirstWeights out;
  AERIE_UNROLL
  for (int row = 0; row < 2; ++row) {
    const bool inside = channel + row < a.channels;
    uint32_t w[6];
    AERIE_UNROLL
    for (int k = 0; k < 6; ++k)
      w[k] = split_number(inside ? kSign * a.weight0[(channel + row) * 9 + taps.k[k]] : 0.0f);
    const uint32_t bias = split_number(inside ? kSign * a.bias0[channel + row] : 0.0f);
    out.a[0].r[row] = both_high(w[0], w[0]);
    out.a[0].r[2 + row] = both_high(w[1], w[1]);
    out.a[1].r[row] = t == 0 ? both_high(w[2], w[2]) : both_low(w[2], w[3]);
    out.a[1].r[2 + row] = t == 0   ? both_low(w[4], w[5])
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

// For wgmma, whose operands are matrices of eight columns with eight values of 16 bits each: what a
// register of all lanes holds, one lane behind the other.
// Matrices at `first`: `rows` bytes from one to the next eight rows, `columns` to the next columns.
__device__ inline uint64_t operand_at([[maybe_unused]] const void* first,
                                      [[maybe_unused]] unsigned rows,
                                      [[maybe_unused]] unsigned columns) {
#ifdef __CUDACC__
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(first));
  return uint64_t((address & 0x3ffffu) >> 4) | uint64_t(rows >> 4) << 16 |
         uint64_t(columns >> 4) << 32;
#else
  return 0;
#endif
}

}  // namespace
}  // namespace aerie::kernels::AERIE_BACKEND
