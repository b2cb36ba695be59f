// CUDA under nvcc, its emulation under the host compiler: macros, launches, what the device is.
#pragma once

#ifdef __CUDACC__
#include <cuda_runtime.h>
#define AERIE_BACKEND cuda
#define AERIE_UNROLL _Pragma("unroll")
#define AERIE_PRAGMA(text) _Pragma(#text)
#define AERIE_UNROLL_BY(n) AERIE_PRAGMA(unroll n)
// Shared memory of a block. AERIE_SHARED(type, name, count) declares a pointer-like array. Dynamic
// memory begins as swizzled operands of wgmma must.
#define AERIE_SHARED(type, name, count) __shared__ __align__(16) type name[count]
#define AERIE_DYNAMIC_SHARED(name) extern __shared__ __align__(1024) unsigned char name[]
// The same, aligned by the kernel itself.
#define AERIE_DYNAMIC_SHARED_BYTES(name) extern __shared__ unsigned char name[]
#else
#include "aerie/kernels/emulation/emulation.h"
#include "aerie/kernels/emulation/sm90.h"
#define AERIE_BACKEND emulated
#define AERIE_UNROLL
#define AERIE_UNROLL_BY(n)
#define AERIE_SHARED(type, name, count)  \
  static const char name##_tag = 0;      \
  type* const name = static_cast<type*>( \
      ::aerie::kernels::emulation::block_shared(&name##_tag, sizeof(type) * (count)))
#define AERIE_DYNAMIC_SHARED(name) \
  unsigned char* const name =      \
      static_cast<unsigned char*>(::aerie::kernels::emulation::dynamic_shared())
#define AERIE_DYNAMIC_SHARED_BYTES(name) AERIE_DYNAMIC_SHARED(name)
#endif
// Where code of a kernel for sm_90a is compiled.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC__)
#define AERIE_SM90A_CODE 1
#endif

#include "aerie/kernels/per_device.h"
#include "aerie/kernels/types.h"

namespace aerie::kernels::AERIE_BACKEND {

constexpr unsigned kFullWarp = 0xffffffffu;

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
};

// Starts a kernel; arguments are converted to its parameter types.
#ifdef __CUDACC__
template <typename... Params, typename... Given>
int launch(void* stream, LaunchShape shape, void (*kernel)(Params...), const Given&... given) {
  if (shape.shared_bytes > 48 * 1024) {
    const cudaError_t error =
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, int(shape.shared_bytes));
    if (error != cudaSuccess) return int(error);
  }
  kernel<<<shape.grid, shape.block, shape.shared_bytes, static_cast<cudaStream_t>(stream)>>>(
      given...);
  return int(cudaGetLastError());
}
#else
template <typename... Params, typename... Given>
int launch(void*, LaunchShape shape, void (*kernel)(Params...), const Given&... given) {
  auto body = [&] { kernel(given...); };
  emulation::run_grid(
      shape.grid, shape.block, shape.shared_bytes,
      [](void* context) { (*static_cast<decltype(body)*>(context))(); }, &body);
  return kOk;
}
#endif

#define AERIE_TRY(call)                   \
  do {                                    \
    const int try_code = (call);          \
    if (try_code != kOk) return try_code; \
  } while (false)

#ifdef __CUDACC__
// The device that launches go to; -1 where there is none.
inline int current_device() {
  int device = 0;
  return cudaGetDevice(&device) == cudaSuccess ? device : -1;
}
// 0 where it cannot be told.
inline int device_attribute(cudaDeviceAttr attribute, int device) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess ? value : 0;
}
// Of the current device: 9 on Hopper.
inline int compute_major() {
  static PerDevice majors;
  const int device = current_device();
  return majors.get(device,
                    [&] { return device_attribute(cudaDevAttrComputeCapabilityMajor, device); });
}
#endif

// array + index, of an array that may not be there, and then is not used. A macro: a function
// changes the machine code.
#ifdef __CUDACC__
#define AERIE_PART_OF(array, ...) ((array) + __VA_ARGS__)
#else
#define AERIE_PART_OF(array, ...) ((array) != nullptr ? (array) + __VA_ARGS__ : nullptr)
#endif

// Of the current device; the emulation has a few.
inline int sm_count() {
#ifdef __CUDACC__
  static PerDevice counts;
  const int device = current_device();
  return counts.get(device, [&] {
    const int found = device_attribute(cudaDevAttrMultiProcessorCount, device);
    return found > 0 ? found : 1;
  });
#else
  return 4;
#endif
}

template <typename A, typename B>
__host__ __device__ constexpr A ceil_div(A a, B b) {
  return static_cast<A>((a + b - 1) / b);
}

}  // namespace aerie::kernels::AERIE_BACKEND
