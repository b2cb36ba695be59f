// The first stage's backward pass on tensor cores. Everything a warp needs often stands in its
// registers (taps and their sums, sums of the first convolution), which leaves room for two warps
// per scheduler; these are kept busy by copies that run a unit ahead and by products that run a
// tile ahead. Blocks stay on the device and share out the frames that count. Included by
// subsampling.cu alone.
#pragma once

#include "aerie/kernels/features/ragged_walk.h"
#include "aerie/kernels/subsampling/first_tensor.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kBackThreads = 256;
constexpr int kBackWarps = kBackThreads / 32;
constexpr int kBackBlocks = 132;  // one for each multiprocessor
constexpr int kBackFrames = 4;    // of the output, a unit: what is in shared memory at a time
constexpr int kBackFeatures = 4 * kBackFrames + 1;
constexpr int kBackTiles = kBackFrames * kRun;
constexpr int kBackChannels = kBackThreads;
constexpr int kBackStride = kBackChannels + 16;  // quads of lanes in different banks
constexpr int kBackColumns = kTensorBins + 1;    // the last one is zero
constexpr int kBackGrads = (kBackFrames + 1) * kBackColumns * kBackStride;
constexpr size_t kBackShared = kBackTiles * 32 * (3 * sizeof(Bits16) + sizeof(FragmentB)) +
                               2 * kBackGrads * sizeof(uint16_t) +
                               kBackFeatures * kPackedStride * sizeof(uint32_t);
static_assert(kBackShared <= 227 * 1024);

// Output frames of an item that count.
__device__ inline int live_frames(const SubsampleFirst& a, int item) {
  const int frames2 = strided(strided(a.frames)), length2 = strided(strided(a.lengths[item]));
  return length2 < frames2 ? length2 : frames2;
}

// Operands of the gradient of weights, from the same packed features as WindowMaker's: rows are the
// tile's places, columns high and low parts of taps 0 to 7; then of tap 8, and ones.
struct PlaceMaker {
  int g, own, last;
  __device__ explicit PlaceMaker(int lane) : g(lane / 4) {
    const int first = 4 * kRun * (lane % 4);
    own = first + g / 3 * kPackedStride + g % 3;
    last = first + 2 * kPackedStride + 2;
  }
  __device__ Bits16 make(const uint32_t* from) const {
    const uint32_t a = from[own], b = from[own + 2], c = from[last], d = from[last + 2];
    Bits16 out;
    out.w[0] = both_high(a, b);
    out.w[1] = both_low(a, b);
    out.w[2] = g == 0 ? both_high(c, d) : g == 1 ? both_low(c, d) : g == 2 ? kOnes : 0u;
    out.w[3] = 0;
    return out;
  }
};

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

// Features of a unit on their way to shared memory; zero outside the item. A warp has whole rows,
// and a thread splits the numbers that it has copied once they have arrived. What lies beside the
// bins is zero from the beginning.
constexpr int kBackWords = ceil_div(4 * kTensorBins, 32);  // of a row, per lane
template <typename Body>
__device__ inline void for_own_features(const SubsampleFirst& a, const Body& body) {
  const int lane = threadIdx.x % 32;
  AERIE_UNROLL
  for (int i = 0; i < ceil_div(kBackFeatures, kBackWarps); ++i) {
    const int row = int(threadIdx.x) / 32 + i * kBackWarps;
    if (row >= kBackFeatures) continue;
    AERIE_UNROLL
    for (int k = 0; k < kBackWords; ++k)
      if (lane + 32 * k < a.bins) body(row, lane + 32 * k);
  }
}
__device__ inline void copy_features(const SubsampleFirst& a, const RaggedWalk& unit,
                                     uint32_t* tile) {
  const int length = a.lengths[unit.item] < a.frames ? a.lengths[unit.item] : a.frames;
  const float* x = a.x + size_t(unit.item) * a.frames * a.bins;
  const int first = 4 * unit.at - 1;
  for_own_features(a, [&](int row, int f) {
    const bool there = first + row >= 0 && first + row < length;
    copy_word(tile + row * kPackedStride + 1 + f, x + (there ? (first + row) * a.bins : 0) + f,
              there);
  });
}
__device__ inline void split_features(const SubsampleFirst& a, uint32_t* tile) {
  for_own_features(a, [&](int row, int f) {
    uint32_t* at = tile + row * kPackedStride + 1 + f;
    float value;
    memcpy(&value, at, 4);
    *at = split_number(value);
  });
}

// Gradients of a unit's frames and the next one, 16 bytes at a time; zero from the item's last
// frame on. Columns behind the bins are zero from the beginning.
template <typename T>
__device__ inline void copy_grads(const SubsampleFirstBackward& b, const RaggedWalk& unit,
                                  T* tile) {
  constexpr int kChunks = kBackChannels / 8, kStep = kBackThreads / kChunks;
  const SubsampleFirst& a = b.forward;
  const int frames2 = strided(strided(a.frames)), bins2 = strided(strided(a.bins));
  const int local = int(threadIdx.x) % kChunks * 8, first = int(threadIdx.x) / kChunks;
  const int channel = blockIdx.x * kBackChannels + local;
  if (channel >= a.channels) return;
  const int rows = unit.end - unit.at;  // that count
  const T* from = static_cast<const T*>(b.grad_out) +
                  ((size_t(unit.item) * frames2 + unit.at) * bins2 + first) * a.channels + channel;
  tile += first * kBackStride + local;
  AERIE_UNROLL
  for (int frame = 0; frame <= kBackFrames; ++frame) {
    AERIE_UNROLL
    for (int i = 0; i < ceil_div(kTensorBins, kStep); ++i)
      if (first + i * kStep < bins2)
        copy_async(tile + (frame * kBackColumns + i * kStep) * kBackStride,
                   from + i * kStep * a.channels, frame < rows);
    if (frame + 1 < rows) from += bins2 * a.channels;
  }
}

__device__ inline uint32_t bits_of(float x) {
  uint32_t out;
  memcpy(&out, &x, 4);
  return out;
}

// d_weight0 += gradients of a tile's middle, of which those count whose value the ReLU has let
// through, times the places. `negative` are the values in front of the ReLU with the other sign:
// the sign bit of those that count is set, which makes a mask for a pair of numbers in one step.
__device__ inline void add_first_taps(const Quad* d, const Middle* negative,
                                      const FragmentB* columns, FragmentC (*d_weight0)[3]) {
  AERIE_UNROLL
  for (int q = 0; q < 2; ++q) {
    FragmentA high, low;
    AERIE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int row = i / 2, c = 2 * q + i % 2;
      const float even = d[2 * row].v[c], odd = d[2 * row + 1].v[c];
      const uint32_t through =
          pick_bytes(bits_of(negative[row].even.v[c]), bits_of(negative[row].odd.v[c]), 0xffbb);
      const uint32_t both = pack<Bf16>(even, odd);
      high.r[i] = both & through;
      low.r[i] = pack<Bf16>(even - low_of<Bf16>(both), odd - high_of<Bf16>(both)) & through;
    }
    AERIE_UNROLL
    for (int n = 0; n < 3; ++n) mma<Bf16>(d_weight0[q][n], high, columns[n]);
    mma<Bf16>(d_weight0[q][0], low, columns[0]);
    mma<Bf16>(d_weight0[q][2], low, columns[2]);
  }
}

template <typename T>
__global__ void __launch_bounds__(kBackThreads, 1) first_backward_tensor(SubsampleFirstBackward b) {
  AERIE_DYNAMIC_SHARED(memory);
  Bits16* windows = reinterpret_cast<Bits16*>(memory);  // (tiles, two rows, lanes)
  Bits16* places = windows + 2 * kBackTiles * 32;       // (tiles, lanes): taps 0 to 7
  FragmentB* last_columns = reinterpret_cast<FragmentB*>(places + kBackTiles * 32);  // 8 and ones
  T* grads_tile = reinterpret_cast<T*>(last_columns + kBackTiles * 32);       // two of (frames + 1,
  uint32_t* tile = reinterpret_cast<uint32_t*>(grads_tile + 2 * kBackGrads);  // columns, stride)
  const SubsampleFirst& a = b.forward;
  const int bins1 = strided(a.bins);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = lane % 4;
  const int local = warp * 32 + lane / 4 * 4, c = blockIdx.x * kBackChannels + local;
  const bool mine = c < a.channels, warp_mine = c - lane / 4 * 4 < a.channels;
  const auto frames_of = [&](int item) { return live_frames(a, item); };
  RaggedWalk unit = share_of(a.batch, frames_of, blockIdx.y, gridDim.y);
  for (int i = threadIdx.x; i < kBackFeatures * kPackedStride; i += kBackThreads) tile[i] = 0;
  for (int i = warp; i < 2 * (kBackFrames + 1) * kBackColumns; i += kBackWarps)
    if (i % kBackColumns >= strided(bins1))
      for (int k = lane; k < kBackStride; k += 32) grads_tile[i * kBackStride + k] = T{};
  __syncthreads();
  if (unit.left > 0) {
    copy_features(a, unit, tile);
    copy_grads(b, unit, grads_tile);
  }
  const FirstWeights weights = load_weights<true>(a, c, lane);
  Taps<4> weight1 = {};
  if (mine) weight1 = load_taps<4>(a.weight1, c);
  const WindowMaker windows_of(lane);
  const PlaceMaker places_of(lane);
  Taps<4> d_weight1 = {};
  Quad d_bias1 = {};
  FragmentC d_weight0[2][3] = {};  // [tile of channels][high parts, low parts, tap 8 and bias]

  for (int turn = 0; unit.left > 0; turn ^= 1) {
    const int begin = unit.at, length1 = strided(a.lengths[unit.item]);
    const int count = unit.ahead(kBackFrames);
    copy_wait();
    split_features(a, tile);
    __syncthreads();  // and the last unit's operands have been used
    AERIE_UNROLL_BY(1)
    for (int i = warp; i < 2 * kBackTiles; i += kBackWarps) {
      const int number = i / 2, half = i % 2, o = number / kRun, j = number % kRun;
      const bool counts =
          2 * (kRun * (lane / 8) + j) + lane / 4 % 2 < bins1 && 2 * (begin + o) + half < length1;
      const uint32_t* from = tile + (4 * o + 2 * half) * kPackedStride + 4 * j;
      const Bits16 window = windows_of.make(from), place = places_of.make(from);
      windows[i * 32 + lane] = counts ? window : Bits16{};
      // Registers of an operand side by side.
      uint32_t* to = places[number * 32 + lane].w + half;
      to[0] = place.w[0];
      to[2] = place.w[1];
      last_columns[number * 32 + lane].r[half] = place.w[2];
    }
    __syncthreads();
    unit.advance(count, frames_of);
    if (unit.left > 0) {
      copy_features(a, unit, tile);
      copy_grads(b, unit, grads_tile + (turn ^ 1) * kBackGrads);
    }
    if (!warp_mine) continue;
    const Bits16* window = windows + lane;
    const Bits16* place = places + lane;
    const FragmentB* rest = last_columns + lane;
    const T* grad = grads_tile + turn * kBackGrads + kRun * t * kBackStride + local;
    Middle now[2] = {convolved(weights, window[0]), convolved(weights, window[32])};
    AERIE_UNROLL_BY(1)
    for (int m = 0; m < count; ++m) {
      const T* below = grad + kBackColumns * kBackStride;
      Quad grads[4];
      grads[1] = load_lanes<4>(grad);
      grads[3] = load_lanes<4>(below);
      AERIE_UNROLL
      for (int j = 0; j < kRun; ++j) {
        // A tile ahead; behind the last one, of something that nobody looks at.
        const Middle next[2] = {convolved(weights, window[(j + 1) * 2 * 32]),
                                convolved(weights, window[(j + 1) * 2 * 32 + 32])};
        grads[0] = grads[1];
        grads[2] = grads[3];
        grads[1] = load_lanes<4>(grad + (j + 1) * kBackStride);
        grads[3] = load_lanes<4>(below + (j + 1) * kBackStride);
        add(d_bias1, grads[0]);
        const auto value = [](Quad x) {
          AERIE_UNROLL
          for (int i = 0; i < 4; ++i) x.v[i] = fmaxf(-x.v[i], 0.0f);
          return x;
        };
        const Quad d[4] = {depthwise_sums<0>(grads, value(now[0].even), weight1, d_weight1),
                           depthwise_sums<1>(grads, value(now[0].odd), weight1, d_weight1),
                           depthwise_sums<2>(grads, value(now[1].even), weight1, d_weight1),
                           depthwise_sums<3>(grads, value(now[1].odd), weight1, d_weight1)};
        const Bits16 sides = place[j * 32];
        const FragmentB columns[3] = {
            {{sides.w[0], sides.w[1]}}, {{sides.w[2], sides.w[3]}}, rest[j * 32]};
        add_first_taps(d, now, columns, d_weight0);
        now[0] = next[0];
        now[1] = next[1];
      }
      window += kRun * 2 * 32;
      place += kRun * 32;
      rest += kRun * 32;
      grad = below;
    }
  }
  if (!warp_mine) return;
  // Lanes of a quad have other bins of the same channels.
  const auto over_bins = [&](Quad value) {
    AERIE_UNROLL
    for (int i = 0; i < 4; ++i) {
      value.v[i] += __shfl_xor_sync(kFullWarp, value.v[i], 1);
      value.v[i] += __shfl_xor_sync(kFullWarp, value.v[i], 2);
    }
    return value;
  };
  float* partial = b.partial + size_t(blockIdx.y) * kSections * a.channels + c;
  AERIE_UNROLL
  for (int k = 0; k < 9; ++k) {
    const Quad total = over_bins(d_weight1.v[k]);
    if (mine && t == 0) store_lanes(partial + size_t(kTaps1 + k) * a.channels, total);
  }
  const Quad total = over_bins(d_bias1);
  if (!mine) return;
  if (t == 0) store_lanes(partial + size_t(kBias1) * a.channels, total);
  AERIE_UNROLL
  for (int q = 0; q < 2; ++q) AERIE_UNROLL
  for (int i = 0; i < 2; ++i) {
    float* own = partial + 2 * q + i;
    AERIE_UNROLL
    for (int k = 0; k < 2; ++k)
      own[size_t(2 * t + k) * a.channels] =
          d_weight0[q][0].v[2 * i + k] + d_weight0[q][1].v[2 * i + k];
    const FragmentC& last = d_weight0[q][2];
    if (t == 0) own[size_t(8) * a.channels] = last.v[2 * i] + last.v[2 * i + 1];
    if (t == 1) own[size_t(kBias0) * a.channels] = last.v[2 * i];
  }
}

}  // namespace
}  // namespace aerie::kernels::AERIE_BACKEND
