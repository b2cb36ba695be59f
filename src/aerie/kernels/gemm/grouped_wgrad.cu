// A persistent kernel over the 128 x 128 tiles of all problems. A producer thread loads both
// operands in k tiles of 64 rows through a ring of stages (TMA); two consumer warpgroups
// (cooperative) run the main loop (wgmma) and write their accumulators from registers. K, the rows,
// is summed in order.
#include "aerie/kernels/cuda/warpgroup.h"
#include "aerie/kernels/device.h"
#include "aerie/kernels/gemm/grouped_wgrad.h"
#include "aerie/kernels/gemm/sm90_mainloop.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kTile = 128, kTileK = 64;
constexpr int kRowBytes = 128;                 // 64 values
constexpr int kBoxBytes = kTileK * kRowBytes;  // 64 x 64 values
constexpr int kStageBytes = 4 * kBoxBytes;     // two boxes of each operand
constexpr int kStages = 6;
constexpr int kConsumerThreads = 256, kThreads = kConsumerThreads + 32;
constexpr int kBarriers = kStages * kStageBytes;
constexpr int kSharedBytes = kBarriers + 16 * kStages + 1024;  // from a multiple of 1024 on

struct Problem {
  TensorMap grad, in;
  float* out;
  double* square_partials;
  int n;
  int end;  // tiles of this problem and those before
};

struct Arguments {
  Problem problems[GroupedWgrad::kMost];
  int k, tiles;
  bool accumulate;
};

struct TileCoord {
  const Problem* problem;
  int m, n;
  int number;  // in the problem
  __device__ __forceinline__ TileCoord(const Arguments& g, int tile) : problem(g.problems) {
    int begin = 0;
    for (; tile >= problem->end; ++problem) begin = problem->end;
    const int tiles_n = problem->n / kTile;
    number = tile - begin;
    m = number / tiles_n * kTile;
    n = number % tiles_n * kTile;
  }
};

template <typename T>
__global__ void __launch_bounds__(kThreads, 1)
    grouped_wgrad_kernel(const __grid_constant__ Arguments g) {
#ifdef AERIE_SM90A_CODE
  AERIE_DYNAMIC_SHARED_BYTES(raw);
  const uint32_t shared = (shared_address(raw) + 1023) / 1024 * 1024;
  const sm90::Ring ring = {shared, shared + kBarriers, shared + kBarriers + 8 * kStages};
  // The same in all lanes, and known to be: what follows from it needs one register per warp.
  const int warp = __shfl_sync(kFullWarp, int(threadIdx.x) / 32, 0);
  if (warp == 0 && elect_one()) {
    sm90::init_ring<kStages>(ring, kConsumerThreads / 32);
    fence_mbarrier_init();
  }
  __syncthreads();
  const int k_tiles = ceil_div(g.k, kTileK), lane = threadIdx.x % 32;
  if (warp == kConsumerThreads / 32) {
    if (!elect_one()) return;
    PipelineState<kStages> state{0, 1};
    for (int i = blockIdx.x; i < g.tiles; i += gridDim.x) {
      const TileCoord tile(g, i);
      sm90::produce<kStageBytes>(
          ring, state, k_tiles, [&](int k_tile, uint32_t to, uint32_t barrier) {
            const int row = k_tile * kTileK;
            tma_load_2d(to, &tile.problem->grad, tile.m, row, barrier);
            tma_load_2d(to + kBoxBytes, &tile.problem->grad, tile.m + 64, row, barrier);
            tma_load_2d(to + 2 * kBoxBytes, &tile.problem->in, tile.n, row, barrier);
            tma_load_2d(to + 3 * kBoxBytes, &tile.problem->in, tile.n + 64, row, barrier);
          });
    }
    return;
  }
  const int warpgroup = warp / 4;  // has 64 of a tile's M
  // Descriptors of the first stage: others lie at distances that can be added.
  const uint64_t a0 = smem_descriptor(shared + warpgroup * kBoxBytes, kBoxBytes),
                 b0 = smem_descriptor(shared + 2 * kBoxBytes, kBoxBytes);
  PipelineState<kStages> state{0, 0};
  for (int i = blockIdx.x; i < g.tiles; i += gridDim.x) {
    const TileCoord tile(g, i);
    float all[1][64];
    float(&sums)[64] = all[0];
    AERIE_UNROLL
    for (int j = 0; j < 64; ++j) sums[j] = 0.0f;
    sm90::consume<kStageBytes>(
        ring, state, k_tiles, lane, a0, b0, all,
        [&](int, uint64_t a, uint64_t b) {
          AERIE_UNROLL
          for (int k = 0; k < kTileK / 16; ++k)
            wgmma<T>(sums, a + k * kRowBytes, b + k * kRowBytes);
        },
        [] {});
    // Four lanes have 32 bytes of a row.
    const int row = tile.m + warpgroup * 64 + warp % 4 * 16 + lane / 4;
    const int n = tile.problem->n;
    float2* const out =
        reinterpret_cast<float2*>(tile.problem->out + size_t(row) * n + tile.n + lane % 4 * 2);
    const auto at = [&](int j) { return out + (j % 2 * 8 * n + j / 2 * 8) / 2; };
    constexpr int kAtOnce = 16;
    AERIE_UNROLL
    for (int first = 0; first < 32; first += kAtOnce) {
      if (g.accumulate) {
        float2 before[kAtOnce];
        AERIE_UNROLL
        for (int j = 0; j < kAtOnce; ++j) before[j] = *at(first + j);
        AERIE_UNROLL
        for (int j = 0; j < kAtOnce; ++j) {
          sums[2 * (first + j)] += before[j].x;
          sums[2 * (first + j) + 1] += before[j].y;
        }
      }
      AERIE_UNROLL
      for (int j = 0; j < kAtOnce; ++j)
        *at(first + j) = make_float2(sums[2 * (first + j)], sums[2 * (first + j) + 1]);
    }
    if (tile.problem->square_partials == nullptr) continue;
    float square = 0.0f;
    AERIE_UNROLL
    for (int j = 0; j < 64; ++j) square += sums[j] * sums[j];
    const double total = warp_sum(double(square));
    if (lane == 0) tile.problem->square_partials[tile.number * 8 + warp] = total;
  }
#else
  __trap();  // not launched where this is all there is
#endif
}

// Sum-of-squares partials of a gradient that gemm made, which is still in L2: a block for as much
// as a tile.
__global__ void __launch_bounds__(256)
    sum_of_squares_kernel(const float* values, double* partials) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float* from = values + size_t(blockIdx.x) * kTile * kTile + warp * (kTile * kTile / 8);
  float sum = 0.0f;
  AERIE_UNROLL_BY(4)
  for (int i = lane * 8; i < kTile * kTile / 8; i += 256) {
    const Vec8 x = load8(from + i);
    AERIE_UNROLL
    for (int k = 0; k < 8; ++k) sum += x.v[k] * x.v[k];
  }
  const double total = warp_sum(double(sum));
  if (lane == 0) partials[size_t(blockIdx.x) * 8 + warp] = total;
}

}  // namespace

int weight_gradients(const GroupedWgrad& a, void* stream) {
#ifdef AERIE_HAVE_SM90A
  constexpr bool kBuilt = true;
#else
  constexpr bool kBuilt = false;
#endif
  if (!kBuilt || a.dtype == Dtype::kF32 || a.k <= 0 || a.count <= 0 ||
      a.count > GroupedWgrad::kMost || sm90_count() == 0)
    return kUnsupported;
  const auto tiles = [](const WgradProblem& p) { return p.m / kTile * (p.n / kTile); };
  Arguments g = {};
  g.k = a.k;
  g.accumulate = a.accumulate;
  int count = 0;
  for (int i = 0; i < a.count; ++i) {
    const WgradProblem& p = a.problems[i];
    Problem& problem = g.problems[count];
    if (p.m <= 0 || p.n <= 0 || p.m % kTile != 0 || p.n % kTile != 0 ||
        reinterpret_cast<uintptr_t>(p.out) % 8 != 0 ||
        !make_tensor_map(problem.grad, a.dtype, p.grad, a.k, p.m, p.grad_stride, kTileK) ||
        !make_tensor_map(problem.in, a.dtype, p.in, a.k, p.n, p.n, kTileK))
      return kUnsupported;
    if (a.share <= 1 && tiles(p) >= sm90_count()) continue;
    g.tiles += tiles(p);
    problem.out = p.out;
    problem.square_partials = p.square_partials;
    problem.n = p.n;
    problem.end = g.tiles;
    ++count;
  }
  for (int i = 0; i < a.count; ++i) {
    const WgradProblem& p = a.problems[i];
    if (a.share > 1 || tiles(p) < sm90_count()) continue;
    AERIE_TRY(gemm(gemm_of(a, p), stream));
    if (p.square_partials != nullptr)
      AERIE_TRY(launch(stream, {dim3(unsigned(tiles(p))), dim3(256)}, sum_of_squares_kernel, p.out,
                       p.square_partials));
  }
  if (count == 0) return kOk;
  const int blocks = a.share > 1 ? ceil_div(sm90_count(), a.share) : sm90_count();
  const LaunchShape shape = {dim3(unsigned(g.tiles < blocks ? g.tiles : blocks)), dim3(kThreads),
                             size_t(kSharedBytes)};
  return a.dtype == Dtype::kBF16 ? launch(stream, shape, grouped_wgrad_kernel<Bf16>, g)
                                 : launch(stream, shape, grouped_wgrad_kernel<Half>, g);
}

}  // namespace aerie::kernels::AERIE_BACKEND
