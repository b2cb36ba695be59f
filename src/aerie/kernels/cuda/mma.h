// Tensor-core steps of one warp: C (16x8, float32) += A (16x16) * B (16x8), A and B bf16 or fp16,
// and how their operands come from shared memory. Lane l holds, with g = l / 4
// and t = l % 4:
//   8x8 matrix: row g, columns 2t, 2t+1                                 (1 register of two values)
//   A: rows g, g+8, columns 2t, 2t+1, then the same with columns + 8    (4 registers)
//   B: rows 2t, 2t+1 of column g, then rows + 8                         (2 registers)
//   C: row g columns 2t, 2t+1, row g+8 columns 2t, 2t+1                 (4 floats)
// Every instruction has a twin for the emulation.
#pragma once

#include "aerie/kernels/cuda/packing.h"
#include "aerie/kernels/cuda/shared_memory.h"

namespace aerie::kernels::AERIE_BACKEND {

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

// Four 8x8 matrices from shared memory: lane l names the 16 bytes of row l % 8 of matrix l / 8.
// Transposed, a lane gets rows 2t, 2t+1 of column g instead.
template <bool kTransposed>
__device__ inline Bits16 ldmatrix_x4(SharedAddress address) {
#ifdef __CUDACC__
  Bits16 out;
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
  const emulation::Slot* slots =
      emulation::exchange("ldmatrix", emulation::shared_pointer(address, 16), 16);
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
__device__ inline uint32_t movmatrix_trans(uint32_t pair) {
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

// A warp's 16x16 values to shared memory: lane l names the 16 bytes for row l % 8 of matrix l / 8.
__device__ inline void stmatrix_x4(SharedAddress address, const FragmentA& a) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
               "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3])
               : "memory");
#else
  // Row g of matrix q: its address is lane 8q + g's, and it is held by lanes 4g to 4g + 3.
  AERIE_UNROLL
  for (int q = 0; q < 4; ++q) {
    const unsigned lane = threadIdx.x % 32;
    const SharedAddress row = __shfl_sync(kFullWarp, address, int(8 * q + lane / 4));
    store_word(row, lane % 4, a.r[q]);
  }
#endif
}

#ifndef __CUDACC__
// Lane l writes row l % 8 of matrix l / 8, which lanes 4c + l % 8 / 2 have in column c.
template <int kMatrices>
inline void emulate_stmatrix_trans(SharedAddress to, const uint32_t (&a)[kMatrices]) {
  const emulation::Slot* slots = emulation::exchange("stmatrix", a, sizeof(a));
  const unsigned lane = emulation::lane_index(), row = lane % 8;
  if (lane >= 8 * kMatrices) return;
  uint16_t out[8];
  for (unsigned c = 0; c < 8; ++c)
    memcpy(&out[c], slots[4 * c + row / 2].bytes + lane / 8 * 4 + row % 2 * 2, 2);
  memcpy(emulation::shared_pointer(to, 16), out, 16);
  emulation::note_shared_write(to, 16);
}
template <int kMatrices>
inline void emulate_ldmatrix_trans(SharedAddress from, uint32_t (&a)[kMatrices]) {
  const unsigned lane = emulation::lane_index(), g = lane / 4, t = lane % 4;
  unsigned char none[16] = {};
  const void* const mine = lane < 8 * kMatrices ? emulation::shared_pointer(from, 16) : none;
  const emulation::Slot* slots = emulation::exchange("ldmatrix", mine, 16);
  for (unsigned q = 0; q < kMatrices; ++q) {
    uint16_t low, high;
    memcpy(&low, slots[q * 8 + 2 * t].bytes + g * 2, 2);
    memcpy(&high, slots[q * 8 + 2 * t + 1].bytes + g * 2, 2);
    a[q] = low | uint32_t(high) << 16;
  }
}
#endif

// 8 x 8 accumulators of a warp, laid out as of wgmma, written transposed: lane i has the address of
// row i % 8 of matrix i / 8.
__device__ __forceinline__ void stmatrix_trans(SharedAddress to, uint32_t a, uint32_t b, uint32_t c,
                                               uint32_t d) {
#ifdef __CUDACC__
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
#else
  emulate_stmatrix_trans(to, {a, b, c, d});
#endif
}
__device__ __forceinline__ void stmatrix_trans(SharedAddress to, uint32_t a, uint32_t b) {
#ifdef __CUDACC__
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(a),
               "r"(b)
               : "memory");
#else
  emulate_stmatrix_trans(to, {a, b});
#endif
}

// And read back.
__device__ __forceinline__ void ldmatrix_trans(SharedAddress from, uint32_t& a, uint32_t& b,
                                               uint32_t& c, uint32_t& d) {
#ifdef __CUDACC__
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
               : "r"(from)
               : "memory");
#else
  uint32_t out[4];
  emulate_ldmatrix_trans(from, out);
  a = out[0];
  b = out[1];
  c = out[2];
  d = out[3];
#endif
}
__device__ __forceinline__ void ldmatrix_trans(SharedAddress from, uint32_t& a, uint32_t& b) {
#ifdef __CUDACC__
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(a), "=r"(b)
               : "r"(from)
               : "memory");
#else
  uint32_t out[2];
  emulate_ldmatrix_trans(from, out);
  a = out[0];
  b = out[1];
#endif
}

}  // namespace aerie::kernels::AERIE_BACKEND
