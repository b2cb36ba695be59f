// Tensor-core steps of one warp: C (16x8, float32) += A (16x16) * B (16x8), A and B bf16 or fp16,
// how their operands come from shared memory, and how rows get there. Lane l holds, with g = l / 4
// and t = l % 4:
//   8x8 matrix: row g, columns 2t, 2t+1                                 (1 register of two values)
//   A: rows g, g+8, columns 2t, 2t+1, then the same with columns + 8    (4 registers)
//   B: rows 2t, 2t+1 of column g, then rows + 8                         (2 registers)
//   C: row g columns 2t, 2t+1, row g+8 columns 2t, 2t+1                 (4 floats)
// Every instruction has a twin for the emulation; there copies happen at once.
#pragma once

#include "aerie/kernels/device.h"

namespace aerie::kernels::AERIE_BACKEND {

template <typename T>
constexpr bool is_half = false;
template <>
constexpr bool is_half<Half> = true;

struct FragmentA {
  uint32_t r[4];
};
struct FragmentB {
  uint32_t r[2];
};
struct FragmentC {
  float v[4];
};

template <typename T>
__device__ inline void mma(FragmentC& c, const FragmentA& a, const FragmentB& b) {
#ifdef __CUDACC__
  if constexpr (is_half<T>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c.v[0]), "+f"(c.v[1]), "+f"(c.v[2]), "+f"(c.v[3])
        : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c.v[0]), "+f"(c.v[1]), "+f"(c.v[2]), "+f"(c.v[3])
        : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]));
  }
#else
  struct Operands {
    uint32_t a[4], b[2];
  } mine = {{a.r[0], a.r[1], a.r[2], a.r[3]}, {b.r[0], b.r[1]}};
  const emulation::Slot* slots = emulation::exchange("mma", &mine, sizeof(mine));
  const auto value = [](uint32_t pair, unsigned half) {
    return to_float(T{uint16_t(half != 0 ? pair >> 16 : pair)});
  };
  const unsigned lane = emulation::lane_index(), g = lane / 4, t = lane % 4;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = g + (i / 2) * 8, column = 2 * t + i % 2;
    for (unsigned k = 0; k < 16; ++k) {
      Operands left, right;
      memcpy(&left, slots[row % 8 * 4 + k % 8 / 2].bytes, sizeof(left));
      memcpy(&right, slots[column * 4 + k % 8 / 2].bytes, sizeof(right));
      c.v[i] += value(left.a[row / 8 + k / 8 * 2], k % 2) * value(right.b[k / 8], k % 2);
    }
  }
#endif
}

// Four 8x8 matrices from shared memory: lane l points at the 16 bytes of row l % 8 of matrix l / 8.
// Transposed, a lane gets rows 2t, 2t+1 of column g instead.
template <bool kTransposed, typename T>
__device__ inline Bits16 load_matrices(const T* row) {
#ifdef __CUDACC__
  Bits16 out;
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out.w[0]), "=r"(out.w[1]), "=r"(out.w[2]), "=r"(out.w[3])
                 : "r"(address));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out.w[0]), "=r"(out.w[1]), "=r"(out.w[2]), "=r"(out.w[3])
                 : "r"(address));
  }
  return out;
#else
  const emulation::Slot* slots = emulation::exchange("ldmatrix", row, 16);
  const unsigned lane = emulation::lane_index(), g = lane / 4, t = lane % 4;
  const auto at = [&](unsigned matrix, unsigned r, unsigned column) {
    uint16_t bits;
    memcpy(&bits, slots[matrix * 8 + r].bytes + column * 2, 2);
    return uint32_t(bits);
  };
  Bits16 out;
  for (unsigned q = 0; q < 4; ++q)
    out.w[q] = kTransposed ? at(q, 2 * t, g) | at(q, 2 * t + 1, g) << 16
                           : at(q, g, 2 * t) | at(q, g, 2 * t + 1) << 16;
  return out;
#endif
}

// An 8x8 matrix transposed.
__device__ inline uint32_t transpose_matrix(uint32_t pair) {
#ifdef __CUDACC__
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
#else
  const emulation::Slot* slots = emulation::exchange("movmatrix", &pair, sizeof(pair));
  const unsigned lane = emulation::lane_index(), g = lane / 4, t = lane % 4;
  const auto at = [&](unsigned r) {
    uint16_t bits;
    memcpy(&bits, slots[r * 4 + g / 2].bytes + g % 2 * 2, 2);
    return uint32_t(bits);
  };
  return at(2 * t) | at(2 * t + 1) << 16;
#endif
}

// Bytes of low (0 to 3) and high (4 to 7) picked by the four digits of selector, lowest first; with
// 8 added to a digit, the byte's sign in all its bits.
__device__ inline uint32_t pick_bytes(uint32_t low, uint32_t high, uint32_t selector) {
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

// 16 bytes from device to shared memory, zeros unless `inside`; `from` is valid either way.
__device__ inline void copy_async(void* to, const void* from, bool inside) {
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
// Waits for all copies of this thread; a barrier makes those of the others visible.
__device__ inline void copy_wait() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
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

__device__ inline float fast_exp2(float x) {
#ifdef __CUDACC__
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
#else
  return exp2f(x);
#endif
}

}  // namespace aerie::kernels::AERIE_BACKEND
