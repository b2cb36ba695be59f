// A ring of stages between TMA and wgmma: `full` and `empty` mbarriers for each stage.
#pragma once

#include "aerie/kernels/cuda/launch.h"

namespace aerie::kernels::AERIE_BACKEND {

// Where a producer (phase 1 at first: stages are empty) or consumer (phase 0) is in it.
template <int kStages>
struct PipelineState {
  int stage = 0;
  uint32_t phase;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

}  // namespace aerie::kernels::AERIE_BACKEND
