// Warps and warpgroups (four warps) of compute capability 9.0: one elected lane, registers moved
// between warpgroups.
#pragma once

#include "aerie/kernels/cuda/launch.h"

namespace aerie::kernels::AERIE_BACKEND {

// True in one lane of a warp. Where control depends on this and on values that are known to be the
// same in all lanes, operands of TMA and wgmma need no loop over lanes that might differ.
__device__ __forceinline__ bool elect_one() {
#ifdef __CUDACC__
  uint32_t out;
  asm volatile(
      "{\n.reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(out));
  return out != 0;
#else
  emulation::exchange("elect", nullptr, 0);
  return emulation::lane_index() == (emulation::order() == emulation::Order::kReverse ? 31u : 0u);
#endif
}

// setmaxnreg: registers move between warpgroups, to kCount per thread.
template <int kCount>
__device__ __forceinline__ void warpgroup_reg_alloc() {
#ifdef __CUDACC__
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
#else
  emulation::exchange("setmaxnreg", nullptr, 0);
#endif
}
template <int kCount>
__device__ __forceinline__ void warpgroup_reg_dealloc() {
#ifdef __CUDACC__
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
#else
  emulation::exchange("setmaxnreg", nullptr, 0);
#endif
}

}  // namespace aerie::kernels::AERIE_BACKEND
