// Copies to shared memory that a thread does not wait for (cp.async; the emulation makes them at
// once), and prefetches to L2.
#pragma once

#include "aerie/kernels/cuda/launch.h"

namespace aerie::kernels::AERIE_BACKEND {

// 16 bytes from device to shared memory, zeros unless `inside`; `from` is valid either way.
__device__ inline void cp_async16(void* to, const void* from, bool inside) {
#ifdef __CUDACC__
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(inside ? 16 : 0)
               : "memory");
#else
  if (inside) {
    memcpy(to, from, 16);
  } else {
    memset(to, 0, 16);
  }
#endif
}
// The same with 8 bytes.
__device__ inline void cp_async8(void* to, const void* from, bool inside) {
#ifdef __CUDACC__
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(to))),
               "l"(from), "r"(inside ? 8 : 0)
               : "memory");
#else
  if (inside) {
    memcpy(to, from, 8);
  } else {
    memset(to, 0, 8);
  }
#endif
}
// Waits for all copies of this thread; a barrier makes those of the others visible.
__device__ inline void cp_async_wait_all() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
// Ends a group of copies; waits for all but the last kGroups of them.
__device__ inline void cp_async_commit() {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int kGroups>
__device__ inline void cp_async_wait() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
#endif
}

// Brings a line of device memory into the device's cache.
__device__ inline void prefetch_l2([[maybe_unused]] const void* from) {
#ifdef __CUDACC__
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(from)));
#endif
}

// The same for many, by one thread: bytes and address are multiples of 16.
__device__ inline void prefetch_l2_range([[maybe_unused]] const void* from,
                                         [[maybe_unused]] size_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)),
               "r"(unsigned(bytes)));
#endif
}

// For kernels of compute capability 9.0 alone.
__device__ __forceinline__ void bulk_prefetch_l2([[maybe_unused]] const void* from,
                                                 [[maybe_unused]] uint32_t bytes) {
#ifdef __CUDACC__
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

}  // namespace aerie::kernels::AERIE_BACKEND
