// What the convolution's kernels share. A warp owns a strip of frames of 64 channels, a lane two
// neighbouring ones, and walks along time with everything in registers: the pointwise part is done
// once per value (and per tap of overlap with the next strip), nothing of the convolution itself
// goes through shared memory. The eight warps of a block take neighbouring strips, whose overlap
// they find in the cache, and add their sums at the end. Included by gated_conv.cu alone.
#pragma once

#include <type_traits>

#include "aerie/kernels/conv/gated_conv.h"
#include "aerie/kernels/device.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kCols = 64;
constexpr int kShortStrip = kConvRows / kWarps;  // frames of a warp
constexpr int kLongStrip = 2 * kShortStrip;
static_assert(kShortStrip * kWarps == kConvRows);

struct Pair {
  float x, y;
};
// Two neighbouring values as they stand in memory.
template <typename T>
struct alignas(2 * sizeof(T)) RawPair {
  uint32_t w[sizeof(T) / 2];
};
__device__ inline Pair unpack(const RawPair<float>& raw) {
  Pair out;
  memcpy(&out.x, &raw.w[0], 4);
  memcpy(&out.y, &raw.w[1], 4);
  return out;
}
template <typename T>
__device__ inline Pair unpack(const RawPair<T>& raw) {
  return {to_float(T{uint16_t(raw.w[0] & 0xffffu)}), to_float(T{uint16_t(raw.w[0] >> 16)})};
}
template <typename T>
__device__ inline RawPair<T> load_raw_pair(const T* p) {
  return *reinterpret_cast<const RawPair<T>*>(p);
}
// The same where addresses are computed one by one: an instruction of its own, or the compiler
// makes one piece of code of this and of loads at constant distances.
template <typename T>
__device__ inline RawPair<T> load_scattered_pair(const T* p) {
#ifdef __CUDA_ARCH__
  RawPair<T> out;
  if constexpr (sizeof(T) == 2) {
    asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(out.w[0]) : "l"(p));
  } else {
    asm volatile("ld.global.nc.v2.b32 {%0,%1}, [%2];" : "=r"(out.w[0]), "=r"(out.w[1]) : "l"(p));
  }
  return out;
#else
  return load_raw_pair(p);
#endif
}
__device__ inline Pair load_pair(const float* p) {
  return unpack(load_raw_pair(p));
}
template <typename T>
__device__ inline RawPair<T> pack_pair(Pair value) {
  RawPair<T> raw;
  if constexpr (sizeof(T) == 2) {
    raw.w[0] = pack<T>(value.x, value.y);
  } else {
    memcpy(&raw.w[0], &value.x, 4);
    memcpy(&raw.w[1], &value.y, 4);
  }
  return raw;
}
template <typename T>
__device__ inline void store_pair(T* p, Pair value) {
  *reinterpret_cast<RawPair<T>*>(p) = pack_pair<T>(value);
}
// sum += a * b
__device__ inline void add_product(Pair& sum, const Pair& a, const Pair& b) {
  sum.x += a.x * b.x;
  sum.y += a.y * b.y;
}
__device__ inline void add(Pair& sum, const Pair& a) {
  sum.x += a.x;
  sum.y += a.y;
}
__device__ inline Pair pair_or_zero(const float* p, int at) {
  return p != nullptr ? load_pair(p + at) : Pair{0.0f, 0.0f};
}

// sigmoid(x + bias)
struct GateBias {
  float bias, scaled;
  __device__ explicit GateBias(float value) : bias(value), scaled(value * -1.4426950408889634f) {}
};
template <typename T>
__device__ inline float gate_of(float x, const GateBias& b) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 2) {
    float out;
    asm("rcp.approx.ftz.f32 %0, %1;"
        : "=f"(out)
        : "f"(1.0f + fast_exp2(fmaf(x, -1.4426950408889634f, b.scaled))));
    return out;
  }
#endif
  return sigmoid_for<T>(x + b.bias);
}

// What a warp works on. The number of the warp comes from lane 0, so that the compiler knows it to
// be the same in all lanes and does the arithmetic of frames once for all.
struct Strip {
  int item, begin, warp, lane;
  int first_row, rows;  // of the item
  int column;           // of this lane
  bool inside;          // whether that channel exists
  int read;             // the column, or one that exists
};
template <int kStrip>
__device__ inline Strip strip_of(const GatedConv& a) {
  constexpr int kRows = kStrip * kWarps;
  const int tiles = (a.frames + kRows - 1) / kRows;
  Strip s;
  s.warp = __shfl_sync(kFullWarp, int(threadIdx.x) / 32, 0);
  s.lane = int(threadIdx.x) % 32;
  s.item = int(blockIdx.y) / tiles;
  s.begin = int(blockIdx.y) % tiles * kRows + s.warp * kStrip;
  s.first_row = first_row(a.layout, s.item, a.frames);
  s.rows = rows_of(a.layout, s.item, a.frames);
  s.column = int(blockIdx.x) * kCols + s.lane * 2;
  s.inside = s.column < a.channels;
  s.read = s.inside ? s.column : 0;
  return s;
}
// A row that exists, for loads whose value is not used otherwise.
__device__ inline int existing(int t, int rows) {
  t = t < rows ? t : rows - 1;
  return t > 0 ? t : 0;
}

// The block's weights as (taps, kCols) in shared memory: read from device memory in order, where a
// thread's own would be scattered. Asked for first, put down when everything else is under way; to
// be followed by a barrier.
template <int kTaps>
struct BlockWeights {
  static constexpr int kEach = (kTaps * kCols + kThreads - 1) / kThreads;
  float values[kEach];
  __device__ explicit BlockWeights(const GatedConv& a) {
    const int first = int(blockIdx.x) * kCols * kTaps, all = a.channels * kTaps;
    AERIE_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const int at = int(threadIdx.x) + i * kThreads;
      values[i] = at < kTaps * kCols && first + at < all ? a.weight[first + at] : 0.0f;
    }
  }
  __device__ void put(float* weights) const {
    AERIE_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const int at = int(threadIdx.x) + i * kThreads;
      if (at < kTaps * kCols) weights[at % kTaps * kCols + at / kTaps] = values[i];
    }
  }
};

}  // namespace
}  // namespace aerie::kernels::AERIE_BACKEND
