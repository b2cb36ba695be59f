// Tensor-core steps of one warp: C (16x8, float32) += A (16x16, bf16) * B (16x8, bf16), and how
// their operands come from shared memory. Lane l holds, with g = l / 4 and t = l % 4:
//   A: rows g, g+8, columns 2t, 2t+1, then the same with columns + 8    (4 registers of two values)
//   B: rows 2t, 2t+1 of column g, then rows + 8                         (2 registers)
//   C: row g columns 2t, 2t+1, row g+8 columns 2t, 2t+1                 (4 floats)
#pragma once

#include "aerie/kernels/device.h"

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

__device__ inline void mma(FragmentC& c, const FragmentA& a, const FragmentB& b) {
#ifdef __CUDACC__
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c.v[0]), "+f"(c.v[1]), "+f"(c.v[2]), "+f"(c.v[3])
      : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]));
#else
  struct Operands {
    uint32_t a[4], b[2];
  } mine = {{a.r[0], a.r[1], a.r[2], a.r[3]}, {b.r[0], b.r[1]}};
  const emulation::Slot* slots = emulation::exchange("mma", &mine, sizeof(mine));
  const auto value = [](uint32_t pair, unsigned half) {
    return bf16_bits_to_float(uint16_t(half != 0 ? pair >> 16 : pair));
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

__device__ inline uint32_t load_pair(const Bf16* p) {
  return *reinterpret_cast<const uint32_t*>(p);
}
__device__ inline uint32_t pair_of(Bf16 low, Bf16 high) {
  return uint32_t(low.bits) | (uint32_t(high.bits) << 16);
}

// A from m[row][k]; `m` points at its upper left value.
__device__ inline FragmentA load_a(const Bf16* m, int stride, int lane) {
  const Bf16* p = m + (lane / 4) * stride + lane % 4 * 2;
  return {
      {load_pair(p), load_pair(p + 8 * stride), load_pair(p + 8), load_pair(p + 8 * stride + 8)}};
}
// A from m[k][row].
__device__ inline FragmentA load_a_transposed(const Bf16* m, int stride, int lane) {
#ifdef __CUDACC__
  FragmentA out;
  const Bf16* p = m + ((lane / 16) * 8 + lane % 8) * stride + (lane / 8 % 2) * 8;
  const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(p));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out.r[0]), "=r"(out.r[1]), "=r"(out.r[2]), "=r"(out.r[3])
               : "r"(address)
               : "memory");
  return out;
#else
  const int g = lane / 4, t = lane % 4;
  const auto at = [&](int k, int row) {
    return pair_of(m[k * stride + row], m[(k + 1) * stride + row]);
  };
  return {{at(2 * t, g), at(2 * t, g + 8), at(2 * t + 8, g), at(2 * t + 8, g + 8)}};
#endif
}
// B from m[column][k].
__device__ inline FragmentB load_b(const Bf16* m, int stride, int lane) {
  const Bf16* p = m + (lane / 4) * stride + lane % 4 * 2;
  return {{load_pair(p), load_pair(p + 8)}};
}
// B from m[k][column].
__device__ inline FragmentB load_b_transposed(const Bf16* m, int stride, int lane) {
#ifdef __CUDACC__
  FragmentB out;
  const unsigned address =
      static_cast<unsigned>(__cvta_generic_to_shared(m + (lane % 16) * stride));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
               : "=r"(out.r[0]), "=r"(out.r[1])
               : "r"(address)
               : "memory");
  return out;
#else
  const int g = lane / 4, t = lane % 4;
  const auto at = [&](int k) { return pair_of(m[k * stride + g], m[(k + 1) * stride + g]); };
  return {{at(2 * t), at(2 * t + 8)}};
#endif
}
// Two neighbouring C tiles (16x16) as A.
__device__ inline FragmentA as_a(const FragmentC& left, const FragmentC& right) {
  return {{pack2<Bf16>(left.v[0], left.v[1]), pack2<Bf16>(left.v[2], left.v[3]),
           pack2<Bf16>(right.v[0], right.v[1]), pack2<Bf16>(right.v[2], right.v[3])}};
}

}  // namespace aerie::kernels::AERIE_BACKEND
