// The block's named barriers (bar.sync, bar.arrive); number 0 is __syncthreads.
#pragma once

#include "aerie/kernels/cuda/launch.h"

namespace aerie::kernels::AERIE_BACKEND {

// Barriers of some of a block's warps, numbered from 1 on: kThreads come to it, and go on at once
// or when all have come.
template <int kNumber, int kThreads>
__device__ inline void named_barrier_arrive() {
#ifdef __CUDACC__
  asm volatile("bar.arrive %0, %1;" ::"n"(kNumber), "n"(kThreads) : "memory");
#else
  emulation::named_barrier(kNumber, kThreads, false);
#endif
}
template <int kNumber, int kThreads>
__device__ inline void named_barrier_sync() {
#ifdef __CUDACC__
  asm volatile("bar.sync %0, %1;" ::"n"(kNumber), "n"(kThreads) : "memory");
#else
  emulation::named_barrier(kNumber, kThreads, true);
#endif
}

// Of a warpgroup: barrier 1 or 2.
__device__ __forceinline__ void warpgroup_sync(int number) {
  if (number == 1)
    named_barrier_sync<1, 128>();
  else
    named_barrier_sync<2, 128>();
}

// Barriers 3 and 4 in turn, of more threads than a warpgroup: those who only arrive do not wait.
template <int kThreads>
__device__ __forceinline__ void handoff_arrive(int number) {
  if (number % 2 == 0)
    named_barrier_arrive<3, kThreads>();
  else
    named_barrier_arrive<4, kThreads>();
}
template <int kThreads>
__device__ __forceinline__ void handoff_sync(int number) {
  if (number % 2 == 0)
    named_barrier_sync<3, kThreads>();
  else
    named_barrier_sync<4, kThreads>();
}

}  // namespace aerie::kernels::AERIE_BACKEND
