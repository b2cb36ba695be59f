// The kernels of even_product.h. A tile is 128 outputs (of the weight) x 8*kGroups rows (of the
// input): the product's first side is the weight, so that the side whose tile may be any multiple
// of eight is the rows, and a launch can be cut into as many tiles as fill the device evenly.
//
// A block stays on its multiprocessor and takes tiles in turn. One thread brings both operands in
// blocks of 64 of k through a ring of stages (TMA); two groups of four warps multiply (wgmma) and
// leave their results, turned around, in shared memory, from where they are copied (TMA) while the
// next tile is computed. Either both groups have 64 outputs of every tile each, or (kTurns) they
// take tiles in turns, and one of them multiplies while the other's results leave.
#pragma once

#include "aerie/kernels/cuda/cp_async.h"
#include "aerie/kernels/cuda/mbarrier.h"
#include "aerie/kernels/cuda/named_barrier.h"
#include "aerie/kernels/cuda/pdl.h"
#include "aerie/kernels/cuda/tma.h"
#include "aerie/kernels/cuda/warpgroup.h"
#include "aerie/kernels/cuda/wgmma.h"
#include "aerie/kernels/device.h"
#include "aerie/kernels/gemm/even_product.h"

namespace aerie::kernels::AERIE_BACKEND {

// Tiles of one type each, compiled apart.
int even_product_bf16(const Gemm& g, void* stream);
int even_product_half(const Gemm& g, void* stream);

struct EvenArguments {
  TensorMap weight, in, out;
  const void* bias;
  int outputs, steps;  // steps of 64 of k
  int across, down;    // tiles of outputs and rows
  int chunk;           // tiles of rows
  struct Ahead {
    const unsigned char* data;
    uint32_t bytes, slice;  // slice: of a step of a block
  } ahead[Gemm::kMostAhead];
};

namespace even {

constexpr int kOutputs = kEvenOutputs, kStep = kEvenStep;
constexpr int kRowBytes = 128;               // kStep values
constexpr int kPanelBytes = 64 * kRowBytes;  // of 64 outputs
constexpr int kWeightBytes = 2 * kPanelBytes;
constexpr int kMultiplying = 256;  // threads
// Registers move between groups of four warps: where that is needed, the one thread has a group.
constexpr int threads(bool turns) {
  return kMultiplying + (turns ? 128 : 32);
}
constexpr int kMostStages = 8;

template <int kGroups>
struct Layout {
  static constexpr int kRows = 8 * kGroups;
  static constexpr int kStageBytes = kWeightBytes + kRows * kRowBytes;
  static constexpr int kOutBytes = kRows * 64 * 2;  // of 64 outputs
  static constexpr int kBarrierBytes = 16 * kMostStages + 32;
  static constexpr int kRoom = 227 * 1024 - 1024 - kBarrierBytes - 2 * kOutBytes;
  static constexpr int kStages =
      kRoom / kStageBytes < kMostStages ? kRoom / kStageBytes : kMostStages;
  static constexpr int kOut = kStages * kStageBytes;
  static constexpr int kBarriers = kOut + 2 * kOutBytes;
  static constexpr int kSharedBytes =
      kBarriers + kBarrierBytes + 1024;  // from a multiple of 1024 on
  static_assert(kStages >= 3);
};

// Tiles in the order in which they are begun: rows first, within a chunk of them. What the blocks
// of a part of the device read at a time is then a few tiles of either operand: blocks go to the
// device's parts in turn, and what several blocks of one part read comes to it once.
template <int kRows>
struct Tile {
  int output, row;
  __device__ __forceinline__ Tile(const EvenArguments& g, int index) {
    const int begin = index / (g.chunk * g.across) * g.chunk;
    const int rows = g.down - begin < g.chunk ? g.down - begin : g.chunk;
    const int at = index - begin * g.across;
    output = at / rows * kOutputs;
    row = (begin + at % rows) * kRows;
  }
};

// The ring of stages as a producer or consumer walks it.
template <int kStages>
struct Place {
  int stage = 0;
  uint32_t phase;
  __device__ __forceinline__ void next() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// With a step: a slice of what others read.
__device__ __forceinline__ void bring_ahead(const EvenArguments& g, uint32_t slice) {
  for (int a = 0; a < Gemm::kMostAhead && g.ahead[a].slice != 0; ++a) {
    const uint32_t from = slice * g.ahead[a].slice;
    if (from < g.ahead[a].bytes) bulk_prefetch_l2(g.ahead[a].data + from, g.ahead[a].slice);
  }
}

// Of the two outputs that a lane has of 64.
struct Bias {
  float one = 0.0f, other = 0.0f;

  template <typename T>
  __device__ __forceinline__ void load(const EvenArguments& g, int output) {
    const T* const bias = static_cast<const T*>(g.bias);
    one = output < g.outputs ? to_float(bias[output]) : 0.0f;
    other = output + 8 < g.outputs ? to_float(bias[output + 8]) : 0.0f;
  }
  template <int kSums>
  __device__ __forceinline__ void add_to(float (&sums)[kSums]) const {
    AERIE_UNROLL
    for (int i = 0; i < kSums; ++i) sums[i] += i % 4 < 2 ? one : other;
  }
};

// Writes 64 outputs of a tile's results, turned around, to where `to` points for this lane
// (stmatrix_trans()).
template <typename T, int kSums>
__device__ __forceinline__ void leave(const float (&sums)[kSums], uint32_t to) {
  AERIE_UNROLL
  for (int i = 0; i < kSums; i += 8) {
    const uint32_t a = pack<T>(sums[i], sums[i + 1]), b = pack<T>(sums[i + 2], sums[i + 3]);
    if (i + 4 < kSums)
      stmatrix_trans(to + i * 256, a, b, pack<T>(sums[i + 4], sums[i + 5]),
                     pack<T>(sums[i + 6], sums[i + 7]));
    else
      stmatrix_trans(to + i * 256, a, b);
  }
}

// kSide: the weight is (k, outputs) instead of (outputs, k).
template <typename T, int kSide, int kGroups, bool kTurns>
__global__ void __launch_bounds__(threads(kTurns), 1)
    even_product_kernel(const __grid_constant__ EvenArguments g) {
#ifdef AERIE_SM90A_CODE
  using L = Layout<kGroups>;
  constexpr int kPanels = kTurns ? 2 : 1;  // of 64 outputs that a group of warps has of a tile
  AERIE_DYNAMIC_SHARED_BYTES(raw);
  const uint32_t shared = (shared_address(raw) + 1023) / 1024 * 1024;
  const uint32_t full = shared + L::kBarriers, empty = full + 8 * L::kStages;
  const uint32_t turn = full + 16 * kMostStages, copied = turn + 16;
  // The same in all lanes, and known to be: what follows from it needs one register per warp.
  const int warp = __shfl_sync(kFullWarp, int(threadIdx.x) / 32, 0);
  if (warp == 0 && elect_one()) {
    for (int s = 0; s < L::kStages; ++s) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, kTurns ? 4 : 8);
    }
    mbarrier_init(turn, 4);
    mbarrier_init(turn + 8, 4);
    mbarrier_init(copied, 1);
    if (kTurns) mbarrier_init(copied + 8, 1);
    fence_mbarrier_init();
  }
  if (warp == kMultiplying / 32 && elect_one()) {
    prefetch_tensormap(&g.weight);
    prefetch_tensormap(&g.in);
    prefetch_tensormap(&g.out);
  }
  __syncthreads();
  griddepcontrol_wait();
  const int tiles = g.across * g.down, lane = threadIdx.x % 32;
  if (warp >= kMultiplying / 32) {
    if (kTurns) warpgroup_reg_dealloc<40>();
    if (warp > kMultiplying / 32 || !elect_one()) return;
    Place<L::kStages> place{0, 1};
    uint32_t slice = blockIdx.x;
    for (int i = blockIdx.x; i < tiles; i += gridDim.x) {
      const Tile<L::kRows> tile(g, i);
      for (int step = 0; step < g.steps; ++step, place.next()) {
        const uint32_t to = shared + place.stage * L::kStageBytes, barrier = full + 8 * place.stage;
        mbarrier_wait(empty + 8 * place.stage, place.phase);
        mbarrier_arrive_expect_tx(barrier, L::kStageBytes);
        tma_load_2d(to + kWeightBytes, &g.in, step * kStep, tile.row, barrier);
        AERIE_UNROLL
        for (int half = 0; half < 2; ++half)
          tma_load_2d(to + half * kPanelBytes, &g.weight,
                      kSide ? tile.output + half * 64 : step * kStep,
                      kSide ? step * kStep : tile.output + half * 64, barrier);
        bring_ahead(g, slice);
        slice += gridDim.x;
      }
    }
    return;
  }
  if (kTurns) warpgroup_reg_alloc<232>();
  const int group = warp / 4, part = warp % 4;
  const bool leader = threadIdx.x % 128 == 0;
  const int panel = kTurns ? 0 : group;
  const uint32_t out = shared + L::kOut + panel * L::kOutBytes;
  // Where this lane's row of four 8 x 8 results begins.
  const uint32_t to =
      out + lane / 16 * 1024 + lane % 8 * kRowBytes + ((part * 2 + lane / 8 % 2) ^ (lane % 8)) * 16;
  // Of the first stage: others lie at distances that can be added.
  const uint64_t a0 = smem_descriptor(shared + panel * kPanelBytes, 16),
                 b0 = smem_descriptor(shared + kWeightBytes, 16);
  Place<L::kStages> place{0, 0};
  for (int i = blockIdx.x, count = 0; i < tiles; i += gridDim.x, ++count) {
    const Tile<L::kRows> tile(g, i);
    if (kTurns && count % 2 != group) continue;
    // Asked for while this group waits anyway.
    Bias bias[kPanels];
    if (g.bias != nullptr) {
      AERIE_UNROLL
      for (int p = 0; p < kPanels; ++p)
        bias[p].template load<T>(g, tile.output + (panel + p) * 64 + part * 16 + lane / 4);
    }
    if (kTurns) {
      const int before = count * g.steps;
      place.stage = before % L::kStages;
      place.phase = before / L::kStages % 2;
      // The other group has all it multiplies under way.
      mbarrier_wait(turn + 8 * group, (count / 2 + group + 1) % 2);
    }
    float sums[kPanels][4 * kGroups];
    int last = 0;
    for (int step = 0; step < g.steps; ++step, place.next()) {
      const uint64_t a = a0 + uint32_t(place.stage * (L::kStageBytes / 16)),
                     b = b0 + uint32_t(place.stage * (L::kStageBytes / 16));
      mbarrier_wait(full + 8 * place.stage, place.phase);
      AERIE_UNROLL
      for (int p = 0; p < kPanels; ++p) wgmma_fence_operand(sums[p]);
      wgmma_fence();
      AERIE_UNROLL
      for (int k = 0; k < kStep / 16; ++k) AERIE_UNROLL
      for (int p = 0; p < kPanels; ++p)
        wgmma<T, kSide>(sums[p], a + (p * kPanelBytes + k * (kSide ? 16 * kRowBytes : 32)) / 16,
                        b + k * 2, k == 0 ? step : 1);
      wgmma_commit();
      wgmma_wait<1>();
      AERIE_UNROLL
      for (int p = 0; p < kPanels; ++p) wgmma_fence_operand(sums[p]);
      if (step > 0 && lane == 0) mbarrier_arrive(empty + 8 * last);
      last = place.stage;
    }
    if (kTurns && lane == 0) mbarrier_arrive(turn + 8 * (1 - group));
    wgmma_wait<0>();
    AERIE_UNROLL
    for (int p = 0; p < kPanels; ++p) wgmma_fence_operand(sums[p]);
    if (lane == 0) mbarrier_arrive(empty + 8 * last);
    if (kTurns) {
      // The other group's results of the tile before have left. A barrier for each group's stores:
      // whoever waits at one waits for each of its phases in turn, and can be no two of them
      // behind, however short k is.
      mbarrier_wait(copied + 8 * (1 - group), ((count + 1) / 2 + 1) % 2);
    } else {
      if (leader) tma_store_wait_read();
      warpgroup_sync(1 + group);
    }
    AERIE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      if (g.bias != nullptr) bias[p].add_to(sums[p]);
      leave<T>(sums[p], to + p * L::kOutBytes);
    }
    fence_proxy_async();
    warpgroup_sync(1 + group);
    if (leader) {
      AERIE_UNROLL
      for (int p = 0; p < kPanels; ++p)
        if (tile.output + (panel + p) * 64 < g.outputs)
          tma_store_2d(&g.out, tile.output + (panel + p) * 64, tile.row, out + p * L::kOutBytes);
      tma_store_commit();
      if (kTurns) {
        tma_store_wait_read();
        mbarrier_arrive(copied + 8 * group);
      }
    }
  }
  if (!kTurns && leader) tma_store_wait_read();
#else
  __trap();  // not launched where this is all there is
#endif
}

inline void slice_ahead(EvenArguments& a, const Gemm& g) {
  const size_t slices = size_t(a.across) * a.down * a.steps;
  for (int i = 0; i < Gemm::kMostAhead; ++i) {
    const bool aligned = reinterpret_cast<uintptr_t>(g.ahead[i].data) % 16 == 0;
    const size_t bytes = aligned ? g.ahead[i].bytes / 16 * 16 : 0;
    // The last slice may not reach behind the end.
    const size_t slice = (bytes / slices + 1 + 127) / 128 * 128;
    a.ahead[i] = {static_cast<const unsigned char*>(g.ahead[i].data),
                  uint32_t(bytes / slice * slice), bytes < slice ? 0 : uint32_t(slice)};
  }
}

// Blocks that stay, one for each multiprocessor.
inline LaunchShape even_shape(int tiles, int block, int shared_bytes) {
  return {dim3(unsigned(tiles < sm90_count() ? tiles : sm90_count())), dim3(unsigned(block)),
          size_t(shared_bytes)};
}

template <typename T, int kSide, int kRows, bool kTurns>
int start(const Gemm& g, void* stream) {
  using L = Layout<kRows / 8>;
  EvenArguments a;
  if (!make_tensor_map(a.weight, g.dtype, g.b, kSide ? g.k : g.n, kSide ? g.n : g.k, g.ldb, 64) ||
      !make_tensor_map(a.in, g.dtype, g.a, g.m, g.k, g.lda, kRows) ||
      !make_tensor_map(a.out, g.dtype, g.c, g.m, g.n, g.ldc, kRows))
    return kUnsupported;
  a.bias = g.bias;
  a.outputs = g.n;
  a.steps = ceil_div(g.k, kStep);
  a.across = ceil_div(g.n, kOutputs);
  a.down = ceil_div(g.m, kRows);
  a.chunk = a.down < kEvenChunk ? a.down : kEvenChunk;
  slice_ahead(a, g);
  return launch_pdl(stream, even_shape(a.across * a.down, threads(kTurns), L::kSharedBytes),
                    even_product_kernel<T, kSide, kRows / 8, kTurns>, a);
}

// With the tile that g names.
template <typename T>
int start(const Gemm& g, void* stream) {
  const bool turns = g.tile.turns;
#define AERIE_EVEN_CASE(n)                                                                        \
  if (g.tile.rows == n) {                                                                         \
    if constexpr (n <= kEvenTurnRows)                                                             \
      if (turns)                                                                                  \
        return g.transpose_b ? start<T, 0, n, true>(g, stream) : start<T, 1, n, true>(g, stream); \
    if (!turns)                                                                                   \
      return g.transpose_b ? start<T, 0, n, false>(g, stream) : start<T, 1, n, false>(g, stream); \
  }
  AERIE_EVEN_ROWS(AERIE_EVEN_CASE)
#undef AERIE_EVEN_CASE
  return kUnsupported;
}

}  // namespace even
}  // namespace aerie::kernels::AERIE_BACKEND
