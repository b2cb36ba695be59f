// 16-bit values in registers and memory: vectors of eight, pairs in a register, bytes of words.
#pragma once

#include <cmath>

#include "aerie/kernels/cuda/launch.h"

namespace aerie::kernels::AERIE_BACKEND {

template <typename T>
inline constexpr bool is_half = false;
template <>
inline constexpr bool is_half<Half> = true;

// Eight neighbouring values as floats. 16-bit types move as one 16-byte access, float as two.
struct alignas(16) Bits16 {
  uint32_t w[4];
};
struct Vec8 {
  float v[8];
};
struct alignas(16) Vec4 {
  float v[4];
};
__device__ inline Vec4 load4(const float* p) {
  return *reinterpret_cast<const Vec4*>(p);
}
__device__ inline void store4(float* p, const Vec4& x) {
  *reinterpret_cast<Vec4*>(p) = x;
}

__device__ inline Vec8 load8(const float* p) {
  Vec8 out;
  const Bits16 a = reinterpret_cast<const Bits16*>(p)[0];
  const Bits16 b = reinterpret_cast<const Bits16*>(p)[1];
  AERIE_UNROLL
  for (int i = 0; i < 4; ++i) {
    memcpy(&out.v[i], &a.w[i], 4);
    memcpy(&out.v[4 + i], &b.w[i], 4);
  }
  return out;
}
template <typename T>
__device__ inline Vec8 load8(const T* p) {
  Vec8 out;
  const Bits16 a = *reinterpret_cast<const Bits16*>(p);
  AERIE_UNROLL
  for (int i = 0; i < 4; ++i) {
    out.v[2 * i] = to_float(T{static_cast<uint16_t>(a.w[i] & 0xffffu)});
    out.v[2 * i + 1] = to_float(T{static_cast<uint16_t>(a.w[i] >> 16)});
  }
  return out;
}
// 16 bytes that nobody reads soon: they leave the cache first.
__device__ inline void store_evict_first(void* p, const Bits16& x) {
#ifdef __CUDACC__
  __stcs(reinterpret_cast<uint4*>(p), make_uint4(x.w[0], x.w[1], x.w[2], x.w[3]));
#else
  *static_cast<Bits16*>(p) = x;
#endif
}
__device__ inline void store8(float* p, const Vec8& x) {
  Bits16 a, b;
  AERIE_UNROLL
  for (int i = 0; i < 4; ++i) {
    memcpy(&a.w[i], &x.v[i], 4);
    memcpy(&b.w[i], &x.v[4 + i], 4);
  }
  reinterpret_cast<Bits16*>(p)[0] = a;
  reinterpret_cast<Bits16*>(p)[1] = b;
}
template <typename T>
__device__ inline uint32_t pack2(float low, float high) {
  return static_cast<uint32_t>(from_float<T>(low).bits) |
         (static_cast<uint32_t>(from_float<T>(high).bits) << 16);
}
template <typename T>
__device__ inline Bits16 pack8(const Vec8& x) {
  Bits16 a;
  AERIE_UNROLL
  for (int i = 0; i < 4; ++i) a.w[i] = pack2<T>(x.v[2 * i], x.v[2 * i + 1]);
  return a;
}
template <typename T>
__device__ inline void store8(T* p, const Vec8& x) {
  *reinterpret_cast<Bits16*>(p) = pack8<T>(x);
}

// Eight values as they lie in memory: half the registers of Vec8 for 16-bit types. In whole words:
// taking 16-bit ones apart is work that would wait for the load.
template <typename T>
struct alignas(16) Raw8 {
  uint32_t w[2 * sizeof(T)];
};
template <typename T>
__device__ inline Raw8<T> load_raw(const T* p) {
  Raw8<T> out;
  AERIE_UNROLL
  for (int i = 0; i < int(sizeof(T) / 2); ++i) {
    const Bits16 bits = reinterpret_cast<const Bits16*>(p)[i];
    AERIE_UNROLL
    for (int k = 0; k < 4; ++k) out.w[4 * i + k] = bits.w[k];
  }
  return out;
}
template <typename T>
__device__ inline Vec8 unpack(const Raw8<T>& raw) {
  Vec8 out;
  AERIE_UNROLL
  for (int i = 0; i < 4; ++i) {
    out.v[2 * i] = to_float(T{static_cast<uint16_t>(raw.w[i] & 0xffffu)});
    out.v[2 * i + 1] = to_float(T{static_cast<uint16_t>(raw.w[i] >> 16)});
  }
  return out;
}
__device__ inline Vec8 unpack(const Raw8<float>& raw) {
  Vec8 out;
  AERIE_UNROLL
  for (int k = 0; k < 8; ++k) memcpy(&out.v[k], &raw.w[k], 4);
  return out;
}

// Two values rounded into one register.
template <typename T>
__device__ inline uint32_t pack(float low, float high) {
#ifdef __CUDACC__
  uint32_t out;
  if constexpr (is_half<T>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  }
  return out;
#else
  return pack2<T>(low, high);
#endif
}
// The same, zero for negative ones.
template <typename T>
__device__ inline uint32_t pack_relu(float low, float high) {
#ifdef __CUDACC__
  uint32_t out;
  if constexpr (is_half<T>) {
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  }
  return out;
#else
  return pack2<T>(low > 0.0f ? low : 0.0f, high > 0.0f ? high : 0.0f);
#endif
}
// Whether its sign is set, also that of zero.
__device__ inline bool sign_of(float x) {
#ifdef __CUDACC__
  return __float_as_int(x) < 0;
#else
  return std::signbit(x);
#endif
}
template <typename T>
__device__ inline float low_of(uint32_t pair) {
  return to_float(T{uint16_t(pair)});
}
template <typename T>
__device__ inline float high_of(uint32_t pair) {
  return to_float(T{uint16_t(pair >> 16)});
}

// 16 bytes to device memory in one access; the compiler takes plain assignments apart.
__device__ inline void store16(void* to, const Bits16& m) {
#ifdef __CUDACC__
  asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(__cvta_generic_to_global(to)),
               "r"(m.w[0]), "r"(m.w[1]), "r"(m.w[2]), "r"(m.w[3])
               : "memory");
#else
  *static_cast<Bits16*>(to) = m;
#endif
}

// Eight bytes: four 16-bit values.
struct alignas(8) Bits8 {
  uint32_t w[2];
};

// Bytes of low (0 to 3) and high (4 to 7) picked by the four digits of selector, lowest first; with
// 8 added to a digit, the byte's sign in all its bits.
__device__ inline uint32_t byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
#ifdef __CUDACC__
  uint32_t out;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(low), "r"(high), "r"(selector));
  return out;
#else
  const uint64_t both = uint64_t(high) << 32 | low;
  uint32_t out = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const uint32_t digit = selector >> 4 * i & 15u,
                   byte = uint32_t(both >> (digit & 7u) * 8) & 255u;
    out |= (digit < 8 ? byte : (byte & 128u) != 0 ? 255u : 0u) << 8 * i;
  }
  return out;
#endif
}

}  // namespace aerie::kernels::AERIE_BACKEND
