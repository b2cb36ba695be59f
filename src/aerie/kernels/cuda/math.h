// Functions by the device's approximations.
#pragma once

#include <cmath>

#include "aerie/kernels/cuda/launch.h"

namespace aerie::kernels::AERIE_BACKEND {

// The device's approximation: off by the last place or two, and without branches.
__device__ inline float fast_sqrt(float x) {
#ifdef __CUDA_ARCH__
  float out;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
#else
  return sqrtf(x);
#endif
}

__device__ inline float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}
// For values that are rounded to T: the device's approximations (relative errors below 1e-6 where
// it matters) where T has 16 bits.
template <typename T>
__device__ inline float sigmoid_for(float x) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 2) {
    float out;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x * -1.4426950408889634f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(1.0f + out));
    return out;
  }
#endif
  return sigmoid(x);
}

__device__ inline float fast_exp2(float x) {
#ifdef __CUDACC__
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
#else
  return exp2f(x);
#endif
}

// The same number, of which the compiler knows nothing: what is derived from it is computed anew
// instead of being kept in registers.
__device__ inline int launder(int x) {
#ifdef __CUDACC__
  asm volatile("" : "+r"(x));
#endif
  return x;
}

}  // namespace aerie::kernels::AERIE_BACKEND
