// The kernels of persistent_gemm.h: persistent, warp-specialised, TMA and wgmma. A tile is 128 of N
// x 8*kGroups of M. wgmma's A is the weight (C^T = W A^T), so that wgmma's N, which may be any
// multiple of eight, is the GEMM's M, and tiles_m can be chosen to leave no partial wave.
//
// A producer thread loads both operands in k tiles of 64 through a ring of stages; two consumer
// warpgroups run the main loop, transpose accumulators into shared memory (stmatrix) and store them
// by TMA while the next tile is computed. Cooperative schedule: each warpgroup has 64 of N of every
// tile. Ping-pong (kPingPong): warpgroups alternate tiles, and one runs its main loop while the
// other is in its epilogue.
#pragma once

#include "aerie/kernels/cuda/cp_async.h"
#include "aerie/kernels/cuda/mbarrier.h"
#include "aerie/kernels/cuda/named_barrier.h"
#include "aerie/kernels/cuda/pdl.h"
#include "aerie/kernels/cuda/pipeline.h"
#include "aerie/kernels/cuda/tma.h"
#include "aerie/kernels/cuda/warpgroup.h"
#include "aerie/kernels/cuda/wgmma.h"
#include "aerie/kernels/device.h"
#include "aerie/kernels/gemm/persistent_gemm.h"
#include "aerie/kernels/gemm/sm90_mainloop.h"

namespace aerie::kernels::AERIE_BACKEND {

// Tiles of one type each, compiled apart.
int persistent_gemm_bf16(const Gemm& g, void* stream);
int persistent_gemm_half(const Gemm& g, void* stream);

struct GemmArguments {
  TensorMap weight, in, out;
  const void* bias;
  int n, k_tiles;
  int tiles_n, tiles_m;
  int raster;  // tiles_m that are begun before other tiles_n
  struct Prefetch {
    const unsigned char* data;
    uint32_t bytes, slice;  // slice: what a block prefetches with one k tile
  } prefetch[Gemm::kMaxPrefetches];
};

namespace persistent {

constexpr int kTileN = kGemmTileN, kTileK = kGemmTileK;
constexpr int kRowBytes = 128;               // kTileK values
constexpr int kPanelBytes = 64 * kRowBytes;  // 64 of N
constexpr int kWeightBytes = 2 * kPanelBytes;
constexpr int kConsumerThreads = 256;
// setmaxnreg works on warpgroups: where it is needed, the producer has one.
constexpr int threads(bool ping_pong) {
  return kConsumerThreads + (ping_pong ? 128 : 32);
}
constexpr int kMaxStages = 8;

// Shared memory: stages, tiles on their way out (panels of 64 of N), what a kernel has beside, and
// barriers.
template <int kGroups, int kOutPanels = 2, int kMoreBytes = 0, int kMoreBarrierBytes = 32>
struct Layout {
  static constexpr int kRows = 8 * kGroups;
  static constexpr int kStageBytes = kWeightBytes + kRows * kRowBytes;
  static constexpr int kOutBytes = kRows * 64 * 2;
  static constexpr int kBarrierBytes = 16 * kMaxStages + kMoreBarrierBytes;
  static constexpr int kRoom =
      227 * 1024 - 1024 - kBarrierBytes - kOutPanels * kOutBytes - kMoreBytes;
  static constexpr int kStages =
      kRoom / kStageBytes < kMaxStages ? kRoom / kStageBytes : kMaxStages;
  static constexpr int kOut = kStages * kStageBytes;
  static constexpr int kMore = kOut + kOutPanels * kOutBytes;
  static constexpr int kBarriers = kMore + kMoreBytes;
  static constexpr int kSharedBytes =
      kBarriers + kBarrierBytes + 1024;  // from a multiple of 1024 on
  static_assert(kStages >= 3);
};

// The tile scheduler's rasterisation: along M first, within `raster` tiles of it. What the SMs of a
// GPC read at a time is then a few tiles of either operand: blocks go to the GPCs in turn, and what
// several blocks of one read comes to it once.
template <int kRows>
struct TileCoord {
  int n, m;
  __device__ __forceinline__ TileCoord(const GemmArguments& g, int index) {
    const int begin = index / (g.raster * g.tiles_n) * g.raster;
    const int rows = g.tiles_m - begin < g.raster ? g.tiles_m - begin : g.raster;
    const int at = index - begin * g.tiles_n;
    n = at / rows * kTileN;
    m = (begin + at % rows) * kRows;
  }
};

// With a k tile: a slice of what later calls read, to L2.
__device__ __forceinline__ void prefetch_slice(const GemmArguments& g, uint32_t slice) {
  for (int a = 0; a < Gemm::kMaxPrefetches && g.prefetch[a].slice != 0; ++a) {
    const uint32_t from = slice * g.prefetch[a].slice;
    if (from < g.prefetch[a].bytes)
      bulk_prefetch_l2(g.prefetch[a].data + from, g.prefetch[a].slice);
  }
}

// Of the two of N that a lane has of a panel of 64.
struct Bias {
  float one = 0.0f, other = 0.0f;

  template <typename T>
  __device__ __forceinline__ void load(const GemmArguments& g, int output) {
    const T* const bias = static_cast<const T*>(g.bias);
    one = output < g.n ? to_float(bias[output]) : 0.0f;
    other = output + 8 < g.n ? to_float(bias[output + 8]) : 0.0f;
  }
  template <int kSums>
  __device__ __forceinline__ void add_to(float (&sums)[kSums]) const {
    AERIE_UNROLL
    for (int i = 0; i < kSums; ++i) sums[i] += i % 4 < 2 ? one : other;
  }
};

// Writes a panel's accumulators, transposed, to where `to` points for this lane (stmatrix_trans()).
template <typename T, int kSums>
__device__ __forceinline__ void epilogue_store(const float (&sums)[kSums], uint32_t to) {
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

// A stage: 128 of the weight's N, then the tile's M.
template <int kMnMajor>
__device__ __forceinline__ void load_operands(const GemmArguments& g, int n, int m, int k_tile,
                                              uint32_t to, uint32_t barrier) {
  tma_load_2d(to + kWeightBytes, &g.in, k_tile * kTileK, m, barrier);
  AERIE_UNROLL
  for (int half = 0; half < 2; ++half)
    tma_load_2d(to + half * kPanelBytes, &g.weight, kMnMajor ? n + half * 64 : k_tile * kTileK,
                kMnMajor ? k_tile * kTileK : n + half * 64, barrier);
}
template <typename T, int kMnMajor, int kPanels, int kSums>
__device__ __forceinline__ void multiply_panels(float (&sums)[kPanels][kSums], uint64_t a,
                                                uint64_t b, int k_tile) {
  AERIE_UNROLL
  for (int k = 0; k < kTileK / 16; ++k) AERIE_UNROLL
  for (int p = 0; p < kPanels; ++p)
    wgmma<T, kMnMajor>(sums[p], a + (p * kPanelBytes + k * (kMnMajor ? 16 * kRowBytes : 32)) / 16,
                       b + k * 2, k == 0 ? k_tile : 1);
}

// kMnMajor: the weight is (K, N) instead of (N, K).
template <typename T, int kMnMajor, int kGroups, bool kPingPong>
__global__ void __launch_bounds__(threads(kPingPong), 1)
    persistent_gemm_kernel(const __grid_constant__ GemmArguments g) {
#ifdef AERIE_SM90A_CODE
  using L = Layout<kGroups>;
  constexpr int kPanels = kPingPong ? 2 : 1;  // of 64 of N that a warpgroup has of a tile
  AERIE_DYNAMIC_SHARED_BYTES(raw);
  const uint32_t shared = (shared_address(raw) + 1023) / 1024 * 1024;
  const uint32_t full = shared + L::kBarriers;
  const sm90::Ring ring = {shared, full, full + 8 * L::kStages};
  const uint32_t order = full + 16 * kMaxStages, stored = order + 16;
  // The same in all lanes, and known to be: what follows from it needs one register per warp.
  const int warp = __shfl_sync(kFullWarp, int(threadIdx.x) / 32, 0);
  if (warp == 0 && elect_one()) {
    sm90::init_ring<L::kStages>(ring, kPingPong ? 4 : 8);
    mbarrier_init(order, 4);
    mbarrier_init(order + 8, 4);
    mbarrier_init(stored, 1);
    if (kPingPong) mbarrier_init(stored + 8, 1);
    fence_mbarrier_init();
  }
  if (warp == kConsumerThreads / 32 && elect_one()) {
    prefetch_tensormap(&g.weight);
    prefetch_tensormap(&g.in);
    prefetch_tensormap(&g.out);
  }
  __syncthreads();
  griddepcontrol_wait();
  const int tiles = g.tiles_n * g.tiles_m, lane = threadIdx.x % 32;
  if (warp >= kConsumerThreads / 32) {
    if (kPingPong) warpgroup_reg_dealloc<40>();
    if (warp > kConsumerThreads / 32 || !elect_one()) return;
    PipelineState<L::kStages> state{0, 1};
    uint32_t slice = blockIdx.x;
    for (int i = blockIdx.x; i < tiles; i += gridDim.x) {
      const TileCoord<L::kRows> tile(g, i);
      sm90::produce<L::kStageBytes>(
          ring, state, g.k_tiles, [&](int k_tile, uint32_t to, uint32_t barrier) {
            load_operands<kMnMajor>(g, tile.n, tile.m, k_tile, to, barrier);
            prefetch_slice(g, slice);
            slice += gridDim.x;
          });
    }
    return;
  }
  if (kPingPong) warpgroup_reg_alloc<232>();
  const int warpgroup = warp / 4, part = warp % 4;
  const bool leader = threadIdx.x % 128 == 0;
  const int panel = kPingPong ? 0 : warpgroup;
  const uint32_t out = shared + L::kOut + panel * L::kOutBytes;
  // Where this lane's row of four 8 x 8 matrices begins.
  const uint32_t to =
      out + lane / 16 * 1024 + lane % 8 * kRowBytes + ((part * 2 + lane / 8 % 2) ^ (lane % 8)) * 16;
  // Descriptors of the first stage: others lie at distances that can be added.
  const uint64_t a0 = smem_descriptor(shared + panel * kPanelBytes, 16),
                 b0 = smem_descriptor(shared + kWeightBytes, 16);
  PipelineState<L::kStages> state{0, 0};
  for (int i = blockIdx.x, count = 0; i < tiles; i += gridDim.x, ++count) {
    const TileCoord<L::kRows> tile(g, i);
    if (kPingPong && count % 2 != warpgroup) continue;
    // Asked for while this warpgroup waits anyway.
    Bias bias[kPanels];
    if (g.bias != nullptr) {
      AERIE_UNROLL
      for (int p = 0; p < kPanels; ++p)
        bias[p].template load<T>(g, tile.n + (panel + p) * 64 + part * 16 + lane / 4);
    }
    if (kPingPong) {
      const int before = count * g.k_tiles;
      state.stage = before % L::kStages;
      state.phase = before / L::kStages % 2;
      // The other warpgroup has issued all wgmma of its tile.
      mbarrier_wait(order + 8 * warpgroup, (count / 2 + warpgroup + 1) % 2);
    }
    float sums[kPanels][4 * kGroups];
    sm90::consume<L::kStageBytes>(
        ring, state, g.k_tiles, lane, a0, b0, sums,
        [&](int k_tile, uint64_t a_at, uint64_t b_at) {
          multiply_panels<T, kMnMajor>(sums, a_at, b_at, k_tile);
        },
        [&] {
          if (kPingPong && lane == 0) mbarrier_arrive(order + 8 * (1 - warpgroup));
        });
    if (kPingPong) {
      // The other warpgroup's epilogue store of the tile before has been read. A barrier for each
      // warpgroup's stores: who waits at one waits for each of its phases in turn, and can be no
      // two of them behind, however short K is.
      mbarrier_wait(stored + 8 * (1 - warpgroup), ((count + 1) / 2 + 1) % 2);
    } else {
      if (leader) tma_store_wait_read();
      warpgroup_sync(1 + warpgroup);
    }
    AERIE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      if (g.bias != nullptr) bias[p].add_to(sums[p]);
      epilogue_store<T>(sums[p], to + p * L::kOutBytes);
    }
    fence_proxy_async();
    warpgroup_sync(1 + warpgroup);
    if (leader) {
      AERIE_UNROLL
      for (int p = 0; p < kPanels; ++p)
        if (tile.n + (panel + p) * 64 < g.n)
          tma_store_2d(&g.out, tile.n + (panel + p) * 64, tile.m, out + p * L::kOutBytes);
      tma_store_commit();
      if (kPingPong) {
        tma_store_wait_read();
        mbarrier_arrive(stored + 8 * warpgroup);
      }
    }
  }
  if (!kPingPong && leader) tma_store_wait_read();
#else
  __trap();  // not launched where this is all there is
#endif
}

inline void split_prefetch(GemmArguments& a, const Gemm& g) {
  const size_t slices = size_t(a.tiles_n) * a.tiles_m * a.k_tiles;
  for (int i = 0; i < Gemm::kMaxPrefetches; ++i) {
    const bool aligned = reinterpret_cast<uintptr_t>(g.prefetch[i].data) % 16 == 0;
    const size_t bytes = aligned ? g.prefetch[i].bytes / 16 * 16 : 0;
    // The last slice may not reach behind the end.
    const size_t slice = (bytes / slices + 1 + 127) / 128 * 128;
    a.prefetch[i] = {static_cast<const unsigned char*>(g.prefetch[i].data),
                     uint32_t(bytes / slice * slice), bytes < slice ? 0 : uint32_t(slice)};
  }
}

// A persistent block for each SM.
inline LaunchShape persistent_grid(int tiles, int block, int shared_bytes) {
  return {dim3(unsigned(tiles < sm90_count() ? tiles : sm90_count())), dim3(unsigned(block)),
          size_t(shared_bytes)};
}

// Operands and tiles, kRows of M each; false: TMA does not take them.
template <int kMnMajor, int kRows>
bool set_arguments(GemmArguments& a, const Gemm& g) {
  if (!make_tensor_map(a.weight, g.dtype, g.b, kMnMajor ? g.k : g.n, kMnMajor ? g.n : g.k, g.ldb,
                       64) ||
      !make_tensor_map(a.in, g.dtype, g.a, g.m, g.k, g.lda, kRows) ||
      !make_tensor_map(a.out, g.dtype, g.c, g.m, g.n, g.ldc, kRows))
    return false;
  a.bias = g.bias;
  a.n = g.n;
  a.k_tiles = ceil_div(g.k, kTileK);
  a.tiles_n = ceil_div(g.n, kTileN);
  a.tiles_m = ceil_div(g.m, kRows);
  a.raster = a.tiles_m < kRasterTilesM ? a.tiles_m : kRasterTilesM;
  split_prefetch(a, g);
  return true;
}

template <typename T, int kMnMajor, int kRows, bool kPingPong>
int start(const Gemm& g, void* stream) {
  GemmArguments a;
  if (!set_arguments<kMnMajor, kRows>(a, g)) return kUnsupported;
  return launch_pdl(
      stream,
      persistent_grid(a.tiles_n * a.tiles_m, threads(kPingPong), Layout<kRows / 8>::kSharedBytes),
      PdlBlocks::kGpcsInTurn, persistent_gemm_kernel<T, kMnMajor, kRows / 8, kPingPong>, a);
}

// With the tile that g names.
template <typename T>
int start(const Gemm& g, void* stream) {
  const bool ping_pong = g.tile.ping_pong;
#define AERIE_GEMM_CASE(n)                                                                        \
  if (g.tile.m == n) {                                                                            \
    if constexpr (n <= kMaxPingPongM)                                                             \
      if (ping_pong)                                                                              \
        return g.transpose_b ? start<T, 0, n, true>(g, stream) : start<T, 1, n, true>(g, stream); \
    if (!ping_pong)                                                                               \
      return g.transpose_b ? start<T, 0, n, false>(g, stream) : start<T, 1, n, false>(g, stream); \
  }
  AERIE_GEMM_TILE_M(AERIE_GEMM_CASE)
#undef AERIE_GEMM_CASE
  return kUnsupported;
}

}  // namespace persistent
}  // namespace aerie::kernels::AERIE_BACKEND
