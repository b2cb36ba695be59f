// The first stage's backward pass on tensor cores. A warp has 16 channels only, so that all it
// needs often (taps and their sums, sums of the first convolution) fits into its registers and
// there are four warps per scheduler; copies run a unit ahead. Included by subsampling.cu alone.
#pragma once

#include "aerie/kernels/features/ragged_walk.h"
#include "aerie/kernels/subsampling/first_tensor.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kBackThreads = 512;
constexpr int kBackWarps = kBackThreads / 32;
constexpr int kBackBlocks = 132;  // one for each SM
constexpr int kBackFrames = 4;    // of the output, a unit: what is in shared memory at a time
constexpr int kBackFeatures = 4 * kBackFrames + 1;
constexpr int kBackTiles = kBackFrames * kRun;
constexpr int kBackChannels = kBackWarps * 16;
constexpr int kBackStride = kBackChannels + 16;  // quads of lanes in different banks
constexpr int kBackColumns = kTensorBins + 1;    // the last one is zero
constexpr int kBackGrads = (kBackFrames + 1) * kBackColumns * kBackStride;
// A tile's operands, as tensor cores read them from shared memory: matrices of eight columns with
// eight values of 16 bits each (rows of the product), one register of a warp's lanes.
struct TileOperands {
  uint32_t windows[2][4][32];  // [upper and lower row of the middle][slots by four]
  uint32_t places[3][2][32];   // [low parts, high parts, tap 8 and ones][upper and lower row]
};
constexpr size_t kBackShared = kBackTiles * sizeof(TileOperands) +
                               2 * kBackGrads * sizeof(uint16_t) +
                               kBackFeatures * kPackedStride * sizeof(uint32_t);
static_assert(kBackShared <= 227 * 1024);

// Operands of the gradient of weights, from the same packed features as WindowMaker's: rows are the
// tile's places, columns high and low parts of taps 0 to 7; then of tap 8, and ones.
struct PlaceMaker {
  int own, last;
  uint32_t part, mask, constant;
  __device__ explicit PlaceMaker(int lane) {
    const int g = lane / 4, first = 4 * kRun * (lane % 4);
    own = first + g / 3 * kPackedStride + g % 3;
    last = first + 2 * kPackedStride + 2;
    part = g == 0 ? 0x5410 : 0x7632;
    mask = g < 2 ? ~0u : 0u;
    constant = g == 2 ? kOnes : 0u;
  }
  // w[0] and w[1]: columns of taps 0 to 7; w[2]: the others.
  __device__ Bits16 make(const uint32_t* from) const {
    const uint32_t a = from[own], b = from[own + 2];
    return {{both_high(a, b), both_low(a, b),
             (byte_perm(from[last], from[last + 2], part) & mask) | constant, 0u}};
  }
};

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
        cp_async16(tile + (frame * kBackColumns + i * kStep) * kBackStride,
                   from + i * kStep * a.channels, frame < rows);
    if (frame + 1 < rows) from += bins2 * a.channels;
  }
}

// One for numbers below zero, else zero.
__device__ inline float is_negative(float x) {
#ifdef __CUDACC__
  float out;
  asm("mul.sat.f32 %0, %1, %2;" : "=f"(out) : "f"(x), "f"(-3e38f));
  return out;
#else
  return x < 0.0f ? 1.0f : 0.0f;
#endif
}

__device__ inline FragmentB columns_at(const uint32_t (&rows)[2][32], int lane) {
  return {{rows[0][lane], rows[1][lane]}};
}

// c = weights * windows, of the upper and the lower row. `sums` are those of add_first_taps().
__device__ inline void convolve(const FirstWeights& weights, const TileOperands* tiles, int number,
                                int lane, FragmentC (&c)[2],
                                [[maybe_unused]] FragmentC (&sums)[3]) {
  if constexpr (kHaveWgmma) {
    [[maybe_unused]] const uint64_t windows =
        operand_at(tiles->windows, 128, 512) + number * (sizeof(TileOperands) >> 4);
    [[maybe_unused]] const FragmentA &a = weights.a[0], &b = weights.a[1];
    wgmma_fence<64>();
    AERIE_WGMMA_ASM(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7}, "
        "{%8,%9,%10,%11}, %12, 0, 1, 1, 0;"
        : AERIE_SUM(c[0]), AERIE_SUM(c[1])
        : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(windows));
    AERIE_WGMMA_ASM(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7}, "
        "{%8,%9,%10,%11}, %12, 1, 1, 1, 0;"
        : AERIE_SUM(c[0]), AERIE_SUM(c[1])
        : "r"(b.r[0]), "r"(b.r[1]), "r"(b.r[2]), "r"(b.r[3]), "l"(windows + (256 >> 4)));
    wgmma_commit<64>();
    wgmma_wait_all<64>();
    AERIE_WGMMA_ASM("" : AERIE_SUM(c[0]), AERIE_SUM(c[1])::"memory");
    AERIE_WGMMA_ASM("" : AERIE_SUM(sums[0]), AERIE_SUM(sums[1]), AERIE_SUM(sums[2])::"memory");
  } else {
    AERIE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const auto& slots = tiles[number].windows[half];
      c[half] = product(weights.a[0], {{slots[0][lane], slots[1][lane]}});
      mma<Bf16>(c[half], weights.a[1], {{slots[2][lane], slots[3][lane]}});
    }
  }
}

// sums += gradients of a tile's middle, of which those count whose value the ReLU has let through,
// times the places. `negative` are the values in front of the ReLU with the other sign.
__device__ inline void add_first_taps(const Pair* d, const FragmentC* negative,
                                      const TileOperands* tiles, int number, int lane,
                                      FragmentC (&sums)[3]) {
  FragmentA high, low;
  AERIE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int row = i / 2, c = i % 2;
    const float even = d[2 * row].v[c] * is_negative(negative[row].v[2 * c]);
    const float odd = d[2 * row + 1].v[c] * is_negative(negative[row].v[2 * c + 1]);
    high.r[i] = pack<Bf16>(even, odd);
    low.r[i] = pack<Bf16>(even - low_of<Bf16>(high.r[i]), odd - high_of<Bf16>(high.r[i]));
  }
  if constexpr (kHaveWgmma) {
    [[maybe_unused]] const uint64_t places =
        operand_at(tiles->places, 128, 256) + number * (sizeof(TileOperands) >> 4);
    wgmma_fence<64>();
    AERIE_WGMMA_ASM(
        "wgmma.mma_async.sync.aligned.m64n24k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11}, {%12,%13,%14,%15}, %16, 1, 1, 1, 0;"
        : AERIE_SUM(sums[0]), AERIE_SUM(sums[1]), AERIE_SUM(sums[2])
        : "r"(high.r[0]), "r"(high.r[1]), "r"(high.r[2]), "r"(high.r[3]), "l"(places));
    AERIE_WGMMA_ASM(
        "wgmma.mma_async.sync.aligned.m64n24k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11}, {%12,%13,%14,%15}, %16, 1, 1, 1, 0;"
        : AERIE_SUM(sums[0]), AERIE_SUM(sums[1]), AERIE_SUM(sums[2])
        : "r"(low.r[0]), "r"(low.r[1]), "r"(low.r[2]), "r"(low.r[3]), "l"(places));
    wgmma_commit<64>();
  } else {
    AERIE_UNROLL
    for (int n = 0; n < 3; ++n) mma<Bf16>(sums[n], high, columns_at(tiles[number].places[n], lane));
    for (int n = 1; n < 3; ++n) mma<Bf16>(sums[n], low, columns_at(tiles[number].places[n], lane));
  }
}

template <typename T>
__global__ void __launch_bounds__(kBackThreads, 1) first_backward_tensor(SubsampleFirstBackward b) {
  AERIE_DYNAMIC_SHARED(memory);
  TileOperands* tiles = reinterpret_cast<TileOperands*>(memory);
  T* grads_tile = reinterpret_cast<T*>(tiles + kBackTiles);  // two of (frames + 1, columns, stride)
  const FeatureTile<kBackThreads, kBackFeatures> tile = {
      reinterpret_cast<uint32_t*>(grads_tile + 2 * kBackGrads)};
  const SubsampleFirst& a = b.forward;
  const int bins1 = strided(a.bins);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = lane % 4;
  const int local = warp * 16 + lane / 4 * 2, c = blockIdx.x * kBackChannels + local;
  const bool mine = c < a.channels;
  // wgmma must not be under way in some branch.
  const bool group_mine = kHaveWgmma || c - lane / 4 * 2 < a.channels;
  const auto frames_of = [&](int item) { return live_frames(a, item); };
  RaggedWalk unit = share_of(a.batch, frames_of, blockIdx.y, gridDim.y);
  tile.clear();
  for (int i = threadIdx.x / 32; i < 2 * (kBackFrames + 1) * kBackColumns; i += kBackWarps)
    if (i % kBackColumns >= strided(bins1))
      for (int k = lane; k < kBackStride; k += 32) grads_tile[i * kBackStride + k] = T{};
  __syncthreads();
  if (unit.left > 0) {
    tile.copy(a, unit.item, 4 * unit.at - 1);
    copy_grads(b, unit, grads_tile);
  }
  const FirstWeights weights = load_weights<true>(a, c, lane);
  Taps<2> weight1 = {};
  if (mine) weight1 = load_taps<2>(a.weight1, c);
  const WindowMaker windows_of(lane);
  const PlaceMaker places_of(lane);
  Taps<2> d_weight1 = {};  // twice their value
  Pair d_bias1 = {};
  FragmentC d_weight0[3] = {};  // from places[0] to places[2]

  for (int turn = 0; uniform(unit.left) > 0; turn ^= 1) {
    const int begin = unit.at, length1 = strided(a.lengths[unit.item]);
    const int count = uniform(unit.ahead(kBackFrames));
    cp_async_wait_all();
    tile.split(a);
    __syncthreads();  // and the last unit's operands have been used
    // A warp makes three or two tiles of one row of the middle.
    AERIE_UNROLL_BY(1)
    for (int i = warp; i < 4 * kBackFrames; i += kBackWarps) {
      const int row = i / 2, first = i % 2 * 3, half = row % 2;
      const bool there = 2 * begin + row < length1;
      const uint32_t* from = tile.numbers + 2 * row * kPackedStride + 4 * first;
      TileOperands* to = tiles + row / 2 * kRun + first;
      AERIE_UNROLL
      for (int j = 0; j < 3; ++j) {
        if (first + j >= kRun) continue;
        const bool counts = there && 2 * (kRun * (lane / 8) + first + j) + lane / 4 % 2 < bins1;
        const Bits16 window = windows_of.make(from + 4 * j), columns = places_of.make(from + 4 * j);
        AERIE_UNROLL
        for (int q = 0; q < 4; ++q) to[j].windows[half][q][lane] = counts ? window.w[q] : 0u;
        to[j].places[0][half][lane] = columns.w[1];
        to[j].places[1][half][lane] = columns.w[0];
        to[j].places[2][half][lane] = columns.w[2];
      }
    }
    fence_proxy_async<64>();
    __syncthreads();
    unit.advance(count, frames_of);
    if (unit.left > 0) {
      tile.copy(a, unit.item, 4 * unit.at - 1);
      copy_grads(b, unit, grads_tile + (turn ^ 1) * kBackGrads);
    }
    if (!group_mine) continue;
    const T* grad = grads_tile + turn * kBackGrads + kRun * t * kBackStride + local;
    AERIE_UNROLL_BY(1)
    for (int m = 0; m < count; ++m) {
      const T* below = grad + kBackColumns * kBackStride;
      Pair grads[4];
      grads[1] = load_lanes<2>(grad);
      grads[3] = load_lanes<2>(below);
      AERIE_UNROLL
      for (int j = 0; j < kRun; ++j) {
        FragmentC negative[2];
        convolve(weights, tiles, m * kRun + j, lane, negative, d_weight0);
        grads[0] = grads[1];
        grads[2] = grads[3];
        grads[1] = load_lanes<2>(grad + (j + 1) * kBackStride);
        grads[3] = load_lanes<2>(below + (j + 1) * kBackStride);
        add(d_bias1, grads[0]);
        // Twice the value behind the ReLU, of the upper or lower row at the even or odd bin.
        const auto value = [&](int row, int odd) {
          const float one = negative[row].v[odd], two = negative[row].v[2 + odd];
          return Pair{{fabsf(one) - one, fabsf(two) - two}};
        };
        const Pair d[4] = {depthwise_sums<0>(grads, value(0, 0), weight1, d_weight1),
                           depthwise_sums<1>(grads, value(0, 1), weight1, d_weight1),
                           depthwise_sums<2>(grads, value(1, 0), weight1, d_weight1),
                           depthwise_sums<3>(grads, value(1, 1), weight1, d_weight1)};
        add_first_taps(d, negative, tiles, m * kRun + j, lane, d_weight0);
      }
      grad = below;
    }
  }
  if (!group_mine) return;
  wgmma_wait_all<64>();
  AERIE_WGMMA_ASM(""
                  : AERIE_SUM(d_weight0[0]), AERIE_SUM(d_weight0[1]),
                    AERIE_SUM(d_weight0[2])::"memory");
  // Lanes of a quad have other bins of the same channels.
  const auto over_bins = [&](Pair value) {
    AERIE_UNROLL
    for (int i = 0; i < 2; ++i) {
      value.v[i] += __shfl_xor_sync(kFullWarp, value.v[i], 1);
      value.v[i] += __shfl_xor_sync(kFullWarp, value.v[i], 2);
    }
    return value;
  };
  float* partial = b.partial + size_t(blockIdx.y) * kSections * a.channels + c;
  AERIE_UNROLL
  for (int k = 0; k < 9; ++k) {
    Pair total = over_bins(d_weight1.v[k]);
    AERIE_UNROLL
    for (int i = 0; i < 2; ++i) total.v[i] *= 0.5f;
    if (mine && t == 0) store_lanes(partial + size_t(kTaps1 + k) * a.channels, total);
  }
  const Pair total = over_bins(d_bias1);
  if (!mine) return;
  if (t == 0) store_lanes(partial + size_t(kBias1) * a.channels, total);
  AERIE_UNROLL
  for (int i = 0; i < 2; ++i) {
    AERIE_UNROLL
    for (int k = 0; k < 2; ++k)
      partial[size_t(2 * t + k) * a.channels + i] =
          d_weight0[0].v[2 * i + k] + d_weight0[1].v[2 * i + k];
    const FragmentC& last = d_weight0[2];
    if (t == 0) partial[size_t(8) * a.channels + i] = last.v[2 * i] + last.v[2 * i + 1];
    if (t == 1) partial[size_t(kBias0) * a.channels + i] = last.v[2 * i];
  }
}

}  // namespace
}  // namespace aerie::kernels::AERIE_BACKEND
