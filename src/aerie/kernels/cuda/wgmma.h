// Warpgroup mma (wgmma, sm_90a): four warps multiply, reading operands from shared memory while
// other work goes on.
#pragma once

#include <type_traits>

#include "aerie/kernels/cuda/mma.h"

namespace aerie::kernels::AERIE_BACKEND {

// GEMMs of a whole block of four warps, which read B (and A) straight from shared memory while
// other work goes on: where the device has them (sm_90a) and rows are 64 values long. A tile is
// 64 rows of 128 bytes whose 16-byte pieces are exchanged as copy_tile does; it begins at a
// multiple of 1024 bytes. Every warp of the block takes part in all of them:
//   wgmma_fence(), any number of wgmma_m64n64k16(), wgmma_commit(), ..., wgmma_wait_all()
// and between begin and wait nothing else touches the registers involved. What is named here does
// nothing elsewhere; see group_rows() in attention_mma.h.
template <int kDim>
constexpr bool kUsesWgmma = kDim == 64;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr bool kHaveWgmma = true;
#define AERIE_WGMMA_ASM(...) asm volatile(__VA_ARGS__)
#else
constexpr bool kHaveWgmma = false;
#define AERIE_WGMMA_ASM(...) static_cast<void>(0)
#endif
// clang-format off
// Accumulators of 8 to 24 groups of four registers as asm operands: their names, and what they are.
#define AERIE_SUMS(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define AERIE_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define AERIE_SUMS_8 AERIE_SUMS(0), AERIE_SUMS(4), AERIE_SUMS(8), AERIE_SUMS(12), \
  AERIE_SUMS(16), AERIE_SUMS(20), AERIE_SUMS(24), AERIE_SUMS(28)
#define AERIE_NAMES_9 AERIE_NAMES_8 ", %32, %33, %34, %35"
#define AERIE_SUMS_9 AERIE_SUMS_8, AERIE_SUMS(32)
#define AERIE_NAMES_10 AERIE_NAMES_9 ", %36, %37, %38, %39"
#define AERIE_SUMS_10 AERIE_SUMS_9, AERIE_SUMS(36)
#define AERIE_NAMES_11 AERIE_NAMES_10 ", %40, %41, %42, %43"
#define AERIE_SUMS_11 AERIE_SUMS_10, AERIE_SUMS(40)
#define AERIE_NAMES_12 AERIE_NAMES_11 ", %44, %45, %46, %47"
#define AERIE_SUMS_12 AERIE_SUMS_11, AERIE_SUMS(44)
#define AERIE_NAMES_13 AERIE_NAMES_12 ", %48, %49, %50, %51"
#define AERIE_SUMS_13 AERIE_SUMS_12, AERIE_SUMS(48)
#define AERIE_NAMES_14 AERIE_NAMES_13 ", %52, %53, %54, %55"
#define AERIE_SUMS_14 AERIE_SUMS_13, AERIE_SUMS(52)
#define AERIE_NAMES_15 AERIE_NAMES_14 ", %56, %57, %58, %59"
#define AERIE_SUMS_15 AERIE_SUMS_14, AERIE_SUMS(56)
#define AERIE_NAMES_16 AERIE_NAMES_15 ", %60, %61, %62, %63"
#define AERIE_SUMS_16 AERIE_SUMS_15, AERIE_SUMS(60)
#define AERIE_NAMES_17 AERIE_NAMES_16 ", %64, %65, %66, %67"
#define AERIE_SUMS_17 AERIE_SUMS_16, AERIE_SUMS(64)
#define AERIE_NAMES_18 AERIE_NAMES_17 ", %68, %69, %70, %71"
#define AERIE_SUMS_18 AERIE_SUMS_17, AERIE_SUMS(68)
#define AERIE_NAMES_20 AERIE_NAMES_18 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define AERIE_SUMS_20 AERIE_SUMS_18, AERIE_SUMS(72), AERIE_SUMS(76)
#define AERIE_NAMES_22 AERIE_NAMES_20 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define AERIE_SUMS_22 AERIE_SUMS_20, AERIE_SUMS(80), AERIE_SUMS(84)
#define AERIE_NAMES_24 AERIE_NAMES_22 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define AERIE_SUMS_24 AERIE_SUMS_22, AERIE_SUMS(88), AERIE_SUMS(92)
// clang-format on
// The same of fragments.
#define AERIE_SUM(c) "+f"((c).v[0]), "+f"((c).v[1]), "+f"((c).v[2]), "+f"((c).v[3])
#define AERIE_WGMMA_C                                                                  \
  AERIE_SUM(c[0]), AERIE_SUM(c[1]), AERIE_SUM(c[2]), AERIE_SUM(c[3]), AERIE_SUM(c[4]), \
      AERIE_SUM(c[5]), AERIE_SUM(c[6]), AERIE_SUM(c[7])

// A tile, or its rows from a multiple of 8 on, as an operand: eight rows of 128 bytes follow each
// other; the order of the pieces is that of 128-byte swizzling. The low half has the address.
constexpr uint32_t kDescriptorLow = 1u << 16, kDescriptorHigh = 1024u >> 4 | 1u << 30;
__device__ inline uint64_t smem_descriptor([[maybe_unused]] const void* tile) {
  unsigned address = 0;
#ifdef __CUDACC__
  address = static_cast<unsigned>(__cvta_generic_to_shared(tile));
#endif
  return uint64_t(kDescriptorHigh) << 32 | kDescriptorLow | (address & 0x3ffffu) >> 4;
}
// c (16x64) += a (16x16) * B, which is 16 columns of a tile, or 16 rows of it (kRows). Without kAdd
// c is only written.
template <typename T, bool kRows, bool kAdd = true>
__device__ inline void wgmma_m64n64k16([[maybe_unused]] FragmentC* c,
                                       [[maybe_unused]] const FragmentA& a,
                                       [[maybe_unused]] uint64_t b) {
  if constexpr (is_half<T>) {
    AERIE_WGMMA_ASM("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" AERIE_NAMES_8
                    "}, {%32,%33,%34,%35}, %36, %38, 1, 1, %37;"
                    : AERIE_WGMMA_C
                    : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(b),
                      "n"(kRows ? 1 : 0), "n"(kAdd ? 1 : 0));
  } else {
    AERIE_WGMMA_ASM("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" AERIE_NAMES_8
                    "}, {%32,%33,%34,%35}, %36, %38, 1, 1, %37;"
                    : AERIE_WGMMA_C
                    : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(b),
                      "n"(kRows ? 1 : 0), "n"(kAdd ? 1 : 0));
  }
}
// The same, A being 16 columns of a tile too; or 16 rows of one, transposed (kRows).
template <typename T, bool kRows = false, bool kAdd = true>
__device__ inline void wgmma_m64n64k16([[maybe_unused]] FragmentC* c, [[maybe_unused]] uint64_t a,
                                       [[maybe_unused]] uint64_t b) {
  if constexpr (is_half<T>) {
    AERIE_WGMMA_ASM("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" AERIE_NAMES_8
                    "}, %32, %33, %34, 1, 1, %35, %35;"
                    : AERIE_WGMMA_C
                    : "l"(a), "l"(b), "n"(kAdd ? 1 : 0), "n"(kRows ? 1 : 0));
  } else {
    AERIE_WGMMA_ASM("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" AERIE_NAMES_8
                    "}, %32, %33, %34, 1, 1, %35, %35;"
                    : AERIE_WGMMA_C
                    : "l"(a), "l"(b), "n"(kAdd ? 1 : 0), "n"(kRows ? 1 : 0));
  }
}
template <int kDim>
__device__ inline void wgmma_fence() {
  if constexpr (kUsesWgmma<kDim>) AERIE_WGMMA_ASM("wgmma.fence.sync.aligned;" ::: "memory");
}
template <int kDim>
__device__ inline void wgmma_commit() {
  if constexpr (kUsesWgmma<kDim>) AERIE_WGMMA_ASM("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits for all of them. Their results are ready where wgmma_fence_operand() has named them.
template <int kDim>
__device__ inline void wgmma_wait_all() {
  if constexpr (kUsesWgmma<kDim>) AERIE_WGMMA_ASM("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
template <int kDim>
__device__ inline void wgmma_fence_operand([[maybe_unused]] FragmentC* c) {
  if constexpr (kUsesWgmma<kDim>) AERIE_WGMMA_ASM("" : AERIE_WGMMA_C::"memory");
}
// What this thread has written to shared memory is seen by wgmma behind the next barrier.
template <int kDim>
__device__ inline void fence_proxy_async() {
  if constexpr (kUsesWgmma<kDim>) AERIE_WGMMA_ASM("fence.proxy.async.shared::cta;" ::: "memory");
}

// Sums over the columns of A, which is 16 rows of a tile, transposed, in all eight columns of c:
// B is 256 bytes of ones.
template <typename T, bool kAdd = true>
__device__ inline void wgmma_m64n8k16([[maybe_unused]] FragmentC& c, [[maybe_unused]] uint64_t a,
                                      [[maybe_unused]] uint64_t b) {
  if constexpr (is_half<T>) {
    AERIE_WGMMA_ASM(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0,%1,%2,%3}, %4, %5, %6, 1, 1, 1, 0;"
        : AERIE_SUM(c)
        : "l"(a), "l"(b), "n"(kAdd ? 1 : 0));
  } else {
    AERIE_WGMMA_ASM(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, %6, 1, 1, 1, "
        "0;"
        : AERIE_SUM(c)
        : "l"(a), "l"(b), "n"(kAdd ? 1 : 0));
  }
}
// The same of a (16x16).
template <typename T>
__device__ inline void wgmma_m64n8k16([[maybe_unused]] FragmentC& c,
                                      [[maybe_unused]] const FragmentA& a,
                                      [[maybe_unused]] uint64_t b) {
  if constexpr (is_half<T>) {
    AERIE_WGMMA_ASM(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 1, 1, "
        "1, 0;"
        : AERIE_SUM(c)
        : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(b));
  } else {
    AERIE_WGMMA_ASM(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 1, "
        "1, 1, 0;"
        : AERIE_SUM(c)
        : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(b));
  }
}
// 256 bytes that are the same in any order; and by where they are, in pieces of 16.
__device__ inline uint64_t plain_smem_descriptor_at(uint32_t piece) {
  return uint64_t(128 >> 4) << 32 | (uint32_t(128 >> 4) << 16 | piece);
}
__device__ inline uint64_t plain_smem_descriptor([[maybe_unused]] const void* bytes) {
  unsigned address = 0;
#ifdef __CUDACC__
  address = static_cast<unsigned>(__cvta_generic_to_shared(bytes));
#endif
  return plain_smem_descriptor_at((address & 0x3ffffu) >> 4);
}
template <int kDim>
__device__ inline void wgmma_fence_operand([[maybe_unused]] FragmentC& c) {
  if constexpr (kUsesWgmma<kDim>) AERIE_WGMMA_ASM("" : AERIE_SUM(c)::"memory");
}

// Makes what this thread has written to shared memory visible to the async proxy: TMA and wgmma.
__device__ __forceinline__ void fence_proxy_async() {
#ifdef __CUDACC__
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
  emulation::fence_proxy_async();
#endif
}

// Where wgmma finds 16 rows of an operand, along K: rows of 64 values in 128 bytes,
// written with the 128-byte swizzle, eight of them 1024 bytes; `next` bytes to the following 64
// values.
__device__ __forceinline__ uint64_t smem_descriptor(uint32_t address, uint32_t next) {
  return (uint64_t{1} << 62) | (uint64_t{1024 >> 4} << 32) | (uint64_t{next >> 4} << 16) |
         ((address & 0x3ffff) >> 4);
}

__device__ __forceinline__ void wgmma_fence() {
#ifdef __CUDACC__
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#else
  emulation::wgmma_fence();
#endif
}
__device__ __forceinline__ void wgmma_commit() {
#ifdef __CUDACC__
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
  emulation::wgmma_commit();
#endif
}
// All but the last kPending groups.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
#ifdef __CUDACC__
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#else
  emulation::wgmma_wait(kPending);
#endif
}

// Compilers take registers of a wgmma for final once it has been started: nothing that reads them
// may move above the wait.
template <int kSums>
__device__ __forceinline__ void wgmma_fence_operand([[maybe_unused]] float (&sums)[kSums]) {
#ifdef __CUDACC__
  AERIE_UNROLL
  for (int i = 0; i < kSums; ++i) asm volatile("" : "+f"(sums[i])::"memory");
#endif
}

#define AERIE_WGMMA_128(type)                                                                   \
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" AERIE_NAMES_16 \
               "}, %64, %65, 1, 1, 1, 1, 1;"                                                    \
               : AERIE_SUMS_16                                                                  \
               : "l"(a), "l"(b))
// d += A(64 x 16) B(16 x 128) of a warpgroup, both MN-major: warp w has rows 16w to 16w+15; a
// lane has of row lane/4 the columns 8j + 2(lane%4) and the next as d[4j], d[4j+1], and of the
// row eight below as d[4j+2], d[4j+3].
template <typename T>
__device__ __forceinline__ void wgmma(float (&d)[64], uint64_t a, uint64_t b) {
#ifdef __CUDACC__
  if constexpr (std::is_same_v<T, Bf16>) {
    AERIE_WGMMA_128("bf16");
  } else {
    AERIE_WGMMA_128("f16");
  }
#else
  emulation::wgmma_issue(
      {d, 128, a, b, true, true, true, [](uint16_t bits) { return to_float(T{bits}); }});
#endif
}
// clang-format off
#define AERIE_WGMMA(groups, columns, type, a_name, b_name, add_name, side_name)                 \
  asm volatile(                                                                               \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %" add_name ", 0;\n"                                  \
      "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " {"               \
      AERIE_NAMES_##groups "}, %" a_name ", %" b_name ", p, 1, 1, %" side_name ", 0;\n}\n"    \
      : AERIE_SUMS_##groups                                                                   \
      : "l"(a), "l"(b), "r"(add), "n"(kMnMajor))
#define AERIE_WGMMA_CASE(groups, columns, a_name, b_name, add_name, side_name)            \
  if constexpr (kGroups == groups && std::is_same_v<T, Bf16>)                             \
    AERIE_WGMMA(groups, columns, "bf16", a_name, b_name, add_name, side_name);            \
  if constexpr (kGroups == groups && std::is_same_v<T, Half>)                             \
    AERIE_WGMMA(groups, columns, "f16", a_name, b_name, add_name, side_name);
// clang-format on

// d = A(64 x 16) B(16 x 8 groups) (+ d where `add`), laid out as above, for the numbers of columns
// that tiles have. B is K-major; A too unless kMnMajor.
template <typename T, int kMnMajor, int kSums>
__device__ __forceinline__ void wgmma(float (&d)[kSums], uint64_t a, uint64_t b, int add) {
  constexpr int kGroups = kSums / 4;
  static_assert(kSums % 4 == 0 && kGroups >= 8 && (kGroups <= 18 || kGroups % 2 == 0) &&
                kGroups <= 24);
#ifdef __CUDACC__
  AERIE_WGMMA_CASE(8, "64", "32", "33", "34", "35")
  AERIE_WGMMA_CASE(9, "72", "36", "37", "38", "39")
  AERIE_WGMMA_CASE(10, "80", "40", "41", "42", "43")
  AERIE_WGMMA_CASE(11, "88", "44", "45", "46", "47")
  AERIE_WGMMA_CASE(12, "96", "48", "49", "50", "51")
  AERIE_WGMMA_CASE(13, "104", "52", "53", "54", "55")
  AERIE_WGMMA_CASE(14, "112", "56", "57", "58", "59")
  AERIE_WGMMA_CASE(15, "120", "60", "61", "62", "63")
  AERIE_WGMMA_CASE(16, "128", "64", "65", "66", "67")
  AERIE_WGMMA_CASE(17, "136", "68", "69", "70", "71")
  AERIE_WGMMA_CASE(18, "144", "72", "73", "74", "75")
  AERIE_WGMMA_CASE(20, "160", "80", "81", "82", "83")
  AERIE_WGMMA_CASE(22, "176", "88", "89", "90", "91")
  AERIE_WGMMA_CASE(24, "192", "96", "97", "98", "99")
#else
  emulation::wgmma_issue({d, 8 * kGroups, a, b, kMnMajor != 0, false, add != 0,
                          [](uint16_t bits) { return to_float(T{bits}); }});
#endif
}

}  // namespace aerie::kernels::AERIE_BACKEND
