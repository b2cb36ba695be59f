// Addresses in shared memory as instructions take them.
#pragma once

#include "aerie/kernels/cuda/launch.h"

namespace aerie::kernels::AERIE_BACKEND {

// Where something is in shared memory, in bytes.
using SharedAddress = uint32_t;
__device__ inline SharedAddress shared_address(const void* p) {
#ifdef __CUDACC__
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
#else
  return emulation::shared_address(p);
#endif
}

// A word behind an address.
__device__ inline void store_word(SharedAddress address, unsigned number, uint32_t word) {
#ifdef __CUDACC__
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address + 4 * number), "r"(word) : "memory");
#else
  memcpy(emulation::shared_pointer(address + 4 * number, 4), &word, 4);
#endif
}

__device__ __forceinline__ void store_shared_u16(SharedAddress to, uint32_t value) {
#ifdef __CUDACC__
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(uint16_t(value)) : "memory");
#else
  const uint16_t half = uint16_t(value);
  memcpy(emulation::shared_pointer(to, 2), &half, 2);
#endif
}
__device__ __forceinline__ uint32_t load_shared_u32(SharedAddress from) {
  uint32_t out;
#ifdef __CUDACC__
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(out) : "r"(from));
#else
  memcpy(&out, emulation::shared_pointer(from, 4), 4);
#endif
  return out;
}

}  // namespace aerie::kernels::AERIE_BACKEND
