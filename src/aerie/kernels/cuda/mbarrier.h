// mbarriers (compute capability 9.0): 8 bytes of shared memory that count arrivals and the bytes of
// TMA loads. A phase ends when all have come; a wait names the parity of the phase it waits for, so
// that a thread may only wait for the phase that has not ended or for the one before: every thread
// that waits at an mbarrier must wait for each of its phases in turn, or have another reason not to
// be two of them behind.
#pragma once

#include "aerie/kernels/cuda/shared_memory.h"

namespace aerie::kernels::AERIE_BACKEND {

__device__ __forceinline__ void mbarrier_init(SharedAddress barrier, int arrivals) {
#ifdef __CUDACC__
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
#else
  emulation::mbarrier_init(barrier, arrivals);
#endif
}
// Makes the initialisation visible to the async proxy.
__device__ __forceinline__ void fence_mbarrier_init() {
#ifdef __CUDACC__
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ __forceinline__ void mbarrier_arrive_expect_tx(SharedAddress barrier, uint32_t bytes) {
#ifdef __CUDACC__
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
#else
  emulation::mbarrier_arrive(barrier, bytes);
#endif
}
__device__ __forceinline__ void mbarrier_arrive(SharedAddress barrier) {
#ifdef __CUDACC__
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
#else
  emulation::mbarrier_arrive(barrier, 0);
#endif
}
// Until the phase of this parity has ended.
__device__ __forceinline__ void mbarrier_wait(SharedAddress barrier, uint32_t parity) {
#ifdef __CUDACC__
  uint32_t done = 0;
  while (done == 0)
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
#else
  emulation::mbarrier_wait(barrier, parity);
#endif
}

}  // namespace aerie::kernels::AERIE_BACKEND
