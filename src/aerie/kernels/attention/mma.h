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
inline constexpr bool is_half = false;
template <>
inline constexpr bool is_half<Half> = true;

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

// Where something is in shared memory, in bytes.
#ifdef __CUDACC__
using SharedAddress = uint32_t;
__device__ inline SharedAddress shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
#else
using SharedAddress = const unsigned char*;
inline SharedAddress shared_address(const void* p) {
  return static_cast<const unsigned char*>(p);
}
#endif

// A word behind an address.
__device__ inline void store_word(SharedAddress address, unsigned number, uint32_t word) {
#ifdef __CUDACC__
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address + 4 * number), "r"(word) : "memory");
#else
  memcpy(const_cast<unsigned char*>(address) + 4 * number, &word, 4);
#endif
}

// Four 8x8 matrices from shared memory: lane l names the 16 bytes of row l % 8 of matrix l / 8.
// Transposed, a lane gets rows 2t, 2t+1 of column g instead.
template <bool kTransposed>
__device__ inline Bits16 load_matrices(SharedAddress address) {
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
  const emulation::Slot* slots = emulation::exchange("ldmatrix", address, 16);
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
// The same with 8 bytes.
__device__ inline void copy_async8(void* to, const void* from, bool inside) {
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
__device__ inline void copy_wait() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
// Ends a group of copies; waits for all but the last kGroups of them.
__device__ inline void copy_commit() {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int kGroups>
__device__ inline void copy_wait_but() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
#endif
}

// Brings a line of device memory into the device's cache.
__device__ inline void prefetch([[maybe_unused]] const void* from) {
#ifdef __CUDACC__
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(from)));
#endif
}

// The same for many, by one thread: bytes and address are multiples of 16.
__device__ inline void prefetch_range([[maybe_unused]] const void* from,
                                      [[maybe_unused]] size_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)),
               "r"(unsigned(bytes)));
#endif
}

// Products of a whole block of four warps, which read B (and A) straight from shared memory while
// other work goes on: where the device has them (sm_90a) and rows are 64 values long. A tile is
// 64 rows of 128 bytes whose 16-byte pieces are exchanged as copy_tile does; it begins at a
// multiple of 1024 bytes. Every warp of the block takes part in all of them:
//   group_begin(), any number of group_mma(), group_commit(), ..., group_wait()
// and between begin and wait nothing else touches the registers involved. What is named here does
// nothing elsewhere; see group_rows() in attention_mma.h.
template <int kDim>
constexpr bool kGrouped = kDim == 64;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr bool kGroupProducts = true;
#define AERIE_GROUP_ASM(...) asm volatile(__VA_ARGS__)
#else
constexpr bool kGroupProducts = false;
#define AERIE_GROUP_ASM(...) static_cast<void>(0)
#endif
#define AERIE_GROUP_C                                                                      \
  "+f"(c[0].v[0]), "+f"(c[0].v[1]), "+f"(c[0].v[2]), "+f"(c[0].v[3]), "+f"(c[1].v[0]),     \
      "+f"(c[1].v[1]), "+f"(c[1].v[2]), "+f"(c[1].v[3]), "+f"(c[2].v[0]), "+f"(c[2].v[1]), \
      "+f"(c[2].v[2]), "+f"(c[2].v[3]), "+f"(c[3].v[0]), "+f"(c[3].v[1]), "+f"(c[3].v[2]), \
      "+f"(c[3].v[3]), "+f"(c[4].v[0]), "+f"(c[4].v[1]), "+f"(c[4].v[2]), "+f"(c[4].v[3]), \
      "+f"(c[5].v[0]), "+f"(c[5].v[1]), "+f"(c[5].v[2]), "+f"(c[5].v[3]), "+f"(c[6].v[0]), \
      "+f"(c[6].v[1]), "+f"(c[6].v[2]), "+f"(c[6].v[3]), "+f"(c[7].v[0]), "+f"(c[7].v[1]), \
      "+f"(c[7].v[2]), "+f"(c[7].v[3])
#define AERIE_GROUP_REGISTERS                                                               \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
  "%24,%25,%26,%27,%28,%29,%30,%31}, "

// A tile, or its rows from a multiple of 8 on, as an operand: eight rows of 128 bytes follow each
// other; the order of the pieces is that of 128-byte swizzling. The low half has the address.
constexpr uint32_t kGroupOperandLow = 1u << 16, kGroupOperandHigh = 1024u >> 4 | 1u << 30;
__device__ inline uint64_t group_operand([[maybe_unused]] const void* tile) {
  unsigned address = 0;
#ifdef __CUDACC__
  address = static_cast<unsigned>(__cvta_generic_to_shared(tile));
#endif
  return uint64_t(kGroupOperandHigh) << 32 | kGroupOperandLow | (address & 0x3ffffu) >> 4;
}
// c (16x64) += a (16x16) * B, which is 16 columns of a tile, or 16 rows of it (kRows). Without kAdd
// c is only written.
template <typename T, bool kRows, bool kAdd = true>
__device__ inline void group_mma([[maybe_unused]] FragmentC* c, [[maybe_unused]] const FragmentA& a,
                                 [[maybe_unused]] uint64_t b) {
  if constexpr (is_half<T>) {
    AERIE_GROUP_ASM("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " AERIE_GROUP_REGISTERS
                    "{%32,%33,%34,%35}, %36, %38, 1, 1, %37;"
                    : AERIE_GROUP_C
                    : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(b),
                      "n"(kRows ? 1 : 0), "n"(kAdd ? 1 : 0));
  } else {
    AERIE_GROUP_ASM("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " AERIE_GROUP_REGISTERS
                    "{%32,%33,%34,%35}, %36, %38, 1, 1, %37;"
                    : AERIE_GROUP_C
                    : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(b),
                      "n"(kRows ? 1 : 0), "n"(kAdd ? 1 : 0));
  }
}
// The same, A being 16 columns of a tile too; or 16 rows of one, turned around (kRows).
template <typename T, bool kRows = false, bool kAdd = true>
__device__ inline void group_mma([[maybe_unused]] FragmentC* c, [[maybe_unused]] uint64_t a,
                                 [[maybe_unused]] uint64_t b) {
  if constexpr (is_half<T>) {
    AERIE_GROUP_ASM("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " AERIE_GROUP_REGISTERS
                    "%32, %33, %34, 1, 1, %35, %35;"
                    : AERIE_GROUP_C
                    : "l"(a), "l"(b), "n"(kAdd ? 1 : 0), "n"(kRows ? 1 : 0));
  } else {
    AERIE_GROUP_ASM("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " AERIE_GROUP_REGISTERS
                    "%32, %33, %34, 1, 1, %35, %35;"
                    : AERIE_GROUP_C
                    : "l"(a), "l"(b), "n"(kAdd ? 1 : 0), "n"(kRows ? 1 : 0));
  }
}
template <int kDim>
__device__ inline void group_begin() {
  if constexpr (kGrouped<kDim>) AERIE_GROUP_ASM("wgmma.fence.sync.aligned;" ::: "memory");
}
template <int kDim>
__device__ inline void group_commit() {
  if constexpr (kGrouped<kDim>) AERIE_GROUP_ASM("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits for all products. Their results are ready where group_ready() has named them.
template <int kDim>
__device__ inline void group_wait() {
  if constexpr (kGrouped<kDim>) AERIE_GROUP_ASM("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
template <int kDim>
__device__ inline void group_ready([[maybe_unused]] FragmentC* c) {
  if constexpr (kGrouped<kDim>) AERIE_GROUP_ASM("" : AERIE_GROUP_C::"memory");
}
// What this thread has written to shared memory is seen by products behind the next barrier.
template <int kDim>
__device__ inline void group_publish() {
  if constexpr (kGrouped<kDim>) AERIE_GROUP_ASM("fence.proxy.async.shared::cta;" ::: "memory");
}

// Sums over the columns of A, which is 16 rows of a tile turned around, in all eight columns of c:
// B is 256 bytes of ones.
template <typename T, bool kAdd = true>
__device__ inline void group_sum([[maybe_unused]] FragmentC& c, [[maybe_unused]] uint64_t a,
                                 [[maybe_unused]] uint64_t b) {
  if constexpr (is_half<T>) {
    AERIE_GROUP_ASM(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0,%1,%2,%3}, %4, %5, %6, 1, 1, 1, 0;"
        : "+f"(c.v[0]), "+f"(c.v[1]), "+f"(c.v[2]), "+f"(c.v[3])
        : "l"(a), "l"(b), "n"(kAdd ? 1 : 0));
  } else {
    AERIE_GROUP_ASM(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, %6, 1, 1, 1, "
        "0;"
        : "+f"(c.v[0]), "+f"(c.v[1]), "+f"(c.v[2]), "+f"(c.v[3])
        : "l"(a), "l"(b), "n"(kAdd ? 1 : 0));
  }
}
// The same of a (16x16).
template <typename T>
__device__ inline void group_sum([[maybe_unused]] FragmentC& c, [[maybe_unused]] const FragmentA& a,
                                 [[maybe_unused]] uint64_t b) {
  if constexpr (is_half<T>) {
    AERIE_GROUP_ASM(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 1, 1, "
        "1, 0;"
        : "+f"(c.v[0]), "+f"(c.v[1]), "+f"(c.v[2]), "+f"(c.v[3])
        : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(b));
  } else {
    AERIE_GROUP_ASM(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 1, "
        "1, 1, 0;"
        : "+f"(c.v[0]), "+f"(c.v[1]), "+f"(c.v[2]), "+f"(c.v[3])
        : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(b));
  }
}
// 256 bytes that are the same in any order; and by where they are, in pieces of 16.
__device__ inline uint64_t plain_operand_at(uint32_t piece) {
  return uint64_t(128 >> 4) << 32 | (uint32_t(128 >> 4) << 16 | piece);
}
__device__ inline uint64_t plain_operand([[maybe_unused]] const void* bytes) {
  unsigned address = 0;
#ifdef __CUDACC__
  address = static_cast<unsigned>(__cvta_generic_to_shared(bytes));
#endif
  return plain_operand_at((address & 0x3ffffu) >> 4);
}
template <int kDim>
__device__ inline void group_ready([[maybe_unused]] FragmentC& c) {
  if constexpr (kGrouped<kDim>)
    AERIE_GROUP_ASM("" : "+f"(c.v[0]), "+f"(c.v[1]), "+f"(c.v[2]), "+f"(c.v[3])::"memory");
}

// Barriers of some of a block's warps, numbered from 1 on: kThreads come to it, and go on at once
// or when all have come.
template <int kNumber, int kThreads>
__device__ inline void barrier_arrive() {
#ifdef __CUDACC__
  asm volatile("bar.arrive %0, %1;" ::"n"(kNumber), "n"(kThreads) : "memory");
#else
  emulation::sync_some(kNumber, kThreads, false);
#endif
}
template <int kNumber, int kThreads>
__device__ inline void barrier_wait() {
#ifdef __CUDACC__
  asm volatile("bar.sync %0, %1;" ::"n"(kNumber), "n"(kThreads) : "memory");
#else
  emulation::sync_some(kNumber, kThreads, true);
#endif
}

// A warp's 16x16 values to shared memory: lane l names the 16 bytes for row l % 8 of matrix l / 8.
__device__ inline void store_matrices(SharedAddress address, const FragmentA& a) {
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
__device__ inline uint32_t pack_positive(float low, float high) {
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

// The same number, of which the compiler knows nothing: what is derived from it is computed anew
// instead of being kept in registers.
__device__ inline int forgotten(int x) {
#ifdef __CUDACC__
  asm volatile("" : "+r"(x));
#endif
  return x;
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
