// The main loop of every sm_90a GEMM here: a producer thread fills the stages of a ring by TMA,
// consumer warps multiply them by wgmma and hand them back. What is loaded and multiplied, and in
// which order tiles come (tile scheduler) and leave (epilogue), is the kernel's.
#pragma once

#include "aerie/kernels/cuda/mbarrier.h"
#include "aerie/kernels/cuda/pipeline.h"
#include "aerie/kernels/cuda/tma.h"
#include "aerie/kernels/cuda/wgmma.h"
#include "aerie/kernels/device.h"

namespace aerie::kernels::AERIE_BACKEND::sm90 {

// Barriers of the stages: 8 bytes each.
struct Ring {
  uint32_t stages, full, empty;  // addresses
};

template <int kStages>
__device__ __forceinline__ void init_ring(const Ring& ring, int consumer_warps) {
  for (int s = 0; s < kStages; ++s) {
    mbarrier_init(ring.full + 8 * s, 1);
    mbarrier_init(ring.empty + 8 * s, consumer_warps);
  }
}

// A tile's k tiles: load(k_tile, address of the stage, its barrier) brings kStageBytes.
template <int kStageBytes, int kStages, typename Load>
__device__ __forceinline__ void produce(const Ring& ring, PipelineState<kStages>& state,
                                        int k_tiles, const Load& load) {
  for (int k_tile = 0; k_tile < k_tiles; ++k_tile, state.advance()) {
    const uint32_t to = ring.stages + state.stage * kStageBytes,
                   barrier = ring.full + 8 * state.stage;
    mbarrier_wait(ring.empty + 8 * state.stage, state.phase);
    mbarrier_arrive_expect_tx(barrier, kStageBytes);
    load(k_tile, to, barrier);
  }
}

// A tile's accumulators: multiply(k_tile, a, b) issues the wgmma of a stage; a0 and b0 are the
// descriptors of the first. issued() runs when all of them are. A stage is handed back when the
// wgmma of the next are issued.
template <int kStageBytes, int kStages, int kPanels, int kValues, typename Multiply,
          typename Issued>
__device__ __forceinline__ void consume(const Ring& ring, PipelineState<kStages>& state,
                                        int k_tiles, int lane, uint64_t a0, uint64_t b0,
                                        float (&accumulators)[kPanels][kValues],
                                        const Multiply& multiply, const Issued& issued) {
  const auto fence_operands = [&] {
    AERIE_UNROLL
    for (int p = 0; p < kPanels; ++p) wgmma_fence_operand(accumulators[p]);
  };
  int last = 0;
  for (int k_tile = 0; k_tile < k_tiles; ++k_tile, state.advance()) {
    const uint64_t a = a0 + uint32_t(state.stage * (kStageBytes / 16)),
                   b = b0 + uint32_t(state.stage * (kStageBytes / 16));
    mbarrier_wait(ring.full + 8 * state.stage, state.phase);
    fence_operands();
    wgmma_fence();
    multiply(k_tile, a, b);
    wgmma_commit();
    wgmma_wait<1>();
    fence_operands();
    if (k_tile > 0 && lane == 0) mbarrier_arrive(ring.empty + 8 * last);
    last = state.stage;
  }
  issued();
  wgmma_wait<0>();
  fence_operands();
  if (lane == 0) mbarrier_arrive(ring.empty + 8 * last);
}

}  // namespace aerie::kernels::AERIE_BACKEND::sm90
