// Warpgroup mma (wgmma, sm_90a): four warps multiply, reading operands from shared memory while
// other work goes on.
#pragma once

#include <type_traits>

#include "aerie/kernels/cuda/mma.h"

namespace aerie::kernels::AERIE_BACKEND {

// Products of a whole block of four warps, which read B (and A) straight from shared memory while
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
#define AERIE_WGMMA_C                                                                      \
  "+f"(c[0].v[0]), "+f"(c[0].v[1]), "+f"(c[0].v[2]), "+f"(c[0].v[3]), "+f"(c[1].v[0]),     \
      "+f"(c[1].v[1]), "+f"(c[1].v[2]), "+f"(c[1].v[3]), "+f"(c[2].v[0]), "+f"(c[2].v[1]), \
      "+f"(c[2].v[2]), "+f"(c[2].v[3]), "+f"(c[3].v[0]), "+f"(c[3].v[1]), "+f"(c[3].v[2]), \
      "+f"(c[3].v[3]), "+f"(c[4].v[0]), "+f"(c[4].v[1]), "+f"(c[4].v[2]), "+f"(c[4].v[3]), \
      "+f"(c[5].v[0]), "+f"(c[5].v[1]), "+f"(c[5].v[2]), "+f"(c[5].v[3]), "+f"(c[6].v[0]), \
      "+f"(c[6].v[1]), "+f"(c[6].v[2]), "+f"(c[6].v[3]), "+f"(c[7].v[0]), "+f"(c[7].v[1]), \
      "+f"(c[7].v[2]), "+f"(c[7].v[3])
#define AERIE_WGMMA_REGISTERS                                                               \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
  "%24,%25,%26,%27,%28,%29,%30,%31}, "

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
    AERIE_WGMMA_ASM("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " AERIE_WGMMA_REGISTERS
                    "{%32,%33,%34,%35}, %36, %38, 1, 1, %37;"
                    : AERIE_WGMMA_C
                    : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(b),
                      "n"(kRows ? 1 : 0), "n"(kAdd ? 1 : 0));
  } else {
    AERIE_WGMMA_ASM("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " AERIE_WGMMA_REGISTERS
                    "{%32,%33,%34,%35}, %36, %38, 1, 1, %37;"
                    : AERIE_WGMMA_C
                    : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(b),
                      "n"(kRows ? 1 : 0), "n"(kAdd ? 1 : 0));
  }
}
// The same, A being 16 columns of a tile too; or 16 rows of one, turned around (kRows).
template <typename T, bool kRows = false, bool kAdd = true>
__device__ inline void wgmma_m64n64k16([[maybe_unused]] FragmentC* c, [[maybe_unused]] uint64_t a,
                                       [[maybe_unused]] uint64_t b) {
  if constexpr (is_half<T>) {
    AERIE_WGMMA_ASM("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " AERIE_WGMMA_REGISTERS
                    "%32, %33, %34, 1, 1, %35, %35;"
                    : AERIE_WGMMA_C
                    : "l"(a), "l"(b), "n"(kAdd ? 1 : 0), "n"(kRows ? 1 : 0));
  } else {
    AERIE_WGMMA_ASM("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " AERIE_WGMMA_REGISTERS
                    "%32, %33, %34, 1, 1, %35, %35;"
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
// Waits for all products. Their results are ready where wgmma_fence_operand() has named them.
template <int kDim>
__device__ inline void wgmma_wait_all() {
  if constexpr (kUsesWgmma<kDim>) AERIE_WGMMA_ASM("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
template <int kDim>
__device__ inline void wgmma_fence_operand([[maybe_unused]] FragmentC* c) {
  if constexpr (kUsesWgmma<kDim>) AERIE_WGMMA_ASM("" : AERIE_WGMMA_C::"memory");
}
// What this thread has written to shared memory is seen by products behind the next barrier.
template <int kDim>
__device__ inline void fence_proxy_async() {
  if constexpr (kUsesWgmma<kDim>) AERIE_WGMMA_ASM("fence.proxy.async.shared::cta;" ::: "memory");
}

// Sums over the columns of A, which is 16 rows of a tile turned around, in all eight columns of c:
// B is 256 bytes of ones.
template <typename T, bool kAdd = true>
__device__ inline void wgmma_m64n8k16([[maybe_unused]] FragmentC& c, [[maybe_unused]] uint64_t a,
                                      [[maybe_unused]] uint64_t b) {
  if constexpr (is_half<T>) {
    AERIE_WGMMA_ASM(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0,%1,%2,%3}, %4, %5, %6, 1, 1, 1, 0;"
        : "+f"(c.v[0]), "+f"(c.v[1]), "+f"(c.v[2]), "+f"(c.v[3])
        : "l"(a), "l"(b), "n"(kAdd ? 1 : 0));
  } else {
    AERIE_WGMMA_ASM(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, %6, 1, 1, 1, "
        "0;"
        : "+f"(c.v[0]), "+f"(c.v[1]), "+f"(c.v[2]), "+f"(c.v[3])
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
        : "+f"(c.v[0]), "+f"(c.v[1]), "+f"(c.v[2]), "+f"(c.v[3])
        : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(b));
  } else {
    AERIE_WGMMA_ASM(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, 1, "
        "1, 1, 0;"
        : "+f"(c.v[0]), "+f"(c.v[1]), "+f"(c.v[2]), "+f"(c.v[3])
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
  if constexpr (kUsesWgmma<kDim>)
    AERIE_WGMMA_ASM("" : "+f"(c.v[0]), "+f"(c.v[1]), "+f"(c.v[2]), "+f"(c.v[3])::"memory");
}

// Makes what this thread has written to shared memory visible to the async proxy: TMA and wgmma.
__device__ __forceinline__ void fence_proxy_async() {
#ifdef __CUDACC__
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
  emulation::fence_proxy_async();
#endif
}

// Where wgmma finds 16 rows of an operand, k of the product: rows of 64 values in 128 bytes,
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

// Compilers take registers of a product for final once it has been started: nothing that reads them
// may move above the wait.
template <int kSums>
__device__ __forceinline__ void wgmma_fence_operand([[maybe_unused]] float (&sums)[kSums]) {
#ifdef __CUDACC__
  AERIE_UNROLL
  for (int i = 0; i < kSums; ++i) asm volatile("" : "+f"(sums[i])::"memory");
#endif
}

#ifdef __CUDACC__
#define AERIE_WGMMA_SUMS(d, i)                                                                \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define AERIE_WGMMA(type)                                                                      \
  asm volatile(                                                                                \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                             \
      " "                                                                                      \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, " \
      "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "  \
      "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "  \
      "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "                               \
      "%64, %65, 1, 1, 1, 1, 1;"                                                               \
      : AERIE_WGMMA_SUMS(sums, 0), AERIE_WGMMA_SUMS(sums, 8), AERIE_WGMMA_SUMS(sums, 16),      \
        AERIE_WGMMA_SUMS(sums, 24), AERIE_WGMMA_SUMS(sums, 32), AERIE_WGMMA_SUMS(sums, 40),    \
        AERIE_WGMMA_SUMS(sums, 48), AERIE_WGMMA_SUMS(sums, 56)                                 \
      : "l"(a), "l"(b))

#endif

// sums += A(64 x 16) B(16 x 128) of a warpgroup, both MN-major: warp w has rows 16w to 16w+15; a
// lane has of row lane/4 the columns 8j + 2(lane%4) and the next as sums[4j], sums[4j+1], and of
// the row eight below as sums[4j+2], sums[4j+3].
template <typename T>
__device__ __forceinline__ void wgmma(float (&sums)[64], uint64_t a, uint64_t b) {
#ifdef __CUDACC__
  if constexpr (std::is_same_v<T, Bf16>) {
    AERIE_WGMMA("bf16");
  } else {
    AERIE_WGMMA("f16");
  }
#else
  emulation::wgmma_issue(
      {sums, 128, a, b, true, true, true, [](uint16_t bits) { return to_float(T{bits}); }});
#endif
}
#undef AERIE_WGMMA
#undef AERIE_WGMMA_SUMS

// clang-format off
#define AERIE_NAMES_1 "%0, %1, %2, %3"
#define AERIE_SUMS_1 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define AERIE_NAMES_2 AERIE_NAMES_1 ", %4, %5, %6, %7"
#define AERIE_SUMS_2 AERIE_SUMS_1, "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define AERIE_NAMES_3 AERIE_NAMES_2 ", %8, %9, %10, %11"
#define AERIE_SUMS_3 AERIE_SUMS_2, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define AERIE_NAMES_4 AERIE_NAMES_3 ", %12, %13, %14, %15"
#define AERIE_SUMS_4 AERIE_SUMS_3, "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define AERIE_NAMES_5 AERIE_NAMES_4 ", %16, %17, %18, %19"
#define AERIE_SUMS_5 AERIE_SUMS_4, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
#define AERIE_NAMES_6 AERIE_NAMES_5 ", %20, %21, %22, %23"
#define AERIE_SUMS_6 AERIE_SUMS_5, "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define AERIE_NAMES_7 AERIE_NAMES_6 ", %24, %25, %26, %27"
#define AERIE_SUMS_7 AERIE_SUMS_6, "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27])
#define AERIE_NAMES_8 AERIE_NAMES_7 ", %28, %29, %30, %31"
#define AERIE_SUMS_8 AERIE_SUMS_7, "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define AERIE_NAMES_9 AERIE_NAMES_8 ", %32, %33, %34, %35"
#define AERIE_SUMS_9 AERIE_SUMS_8, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
#define AERIE_NAMES_10 AERIE_NAMES_9 ", %36, %37, %38, %39"
#define AERIE_SUMS_10 AERIE_SUMS_9, "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define AERIE_NAMES_11 AERIE_NAMES_10 ", %40, %41, %42, %43"
#define AERIE_SUMS_11 AERIE_SUMS_10, "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43])
#define AERIE_NAMES_12 AERIE_NAMES_11 ", %44, %45, %46, %47"
#define AERIE_SUMS_12 AERIE_SUMS_11, "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define AERIE_NAMES_13 AERIE_NAMES_12 ", %48, %49, %50, %51"
#define AERIE_SUMS_13 AERIE_SUMS_12, "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51])
#define AERIE_NAMES_14 AERIE_NAMES_13 ", %52, %53, %54, %55"
#define AERIE_SUMS_14 AERIE_SUMS_13, "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define AERIE_NAMES_15 AERIE_NAMES_14 ", %56, %57, %58, %59"
#define AERIE_SUMS_15 AERIE_SUMS_14, "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59])
#define AERIE_NAMES_16 AERIE_NAMES_15 ", %60, %61, %62, %63"
#define AERIE_SUMS_16 AERIE_SUMS_15, "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define AERIE_NAMES_17 AERIE_NAMES_16 ", %64, %65, %66, %67"
#define AERIE_SUMS_17 AERIE_SUMS_16, "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67])
#define AERIE_NAMES_18 AERIE_NAMES_17 ", %68, %69, %70, %71"
#define AERIE_SUMS_18 AERIE_SUMS_17, "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define AERIE_NAMES_19 AERIE_NAMES_18 ", %72, %73, %74, %75"
#define AERIE_SUMS_19 AERIE_SUMS_18, "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75])
#define AERIE_NAMES_20 AERIE_NAMES_19 ", %76, %77, %78, %79"
#define AERIE_SUMS_20 AERIE_SUMS_19, "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define AERIE_NAMES_21 AERIE_NAMES_20 ", %80, %81, %82, %83"
#define AERIE_SUMS_21 AERIE_SUMS_20, "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83])
#define AERIE_NAMES_22 AERIE_NAMES_21 ", %84, %85, %86, %87"
#define AERIE_SUMS_22 AERIE_SUMS_21, "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define AERIE_NAMES_23 AERIE_NAMES_22 ", %88, %89, %90, %91"
#define AERIE_SUMS_23 AERIE_SUMS_22, "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91])
#define AERIE_NAMES_24 AERIE_NAMES_23 ", %92, %93, %94, %95"
#define AERIE_SUMS_24 AERIE_SUMS_23, "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define AERIE_NAMES_25 AERIE_NAMES_24 ", %96, %97, %98, %99"
#define AERIE_SUMS_25 AERIE_SUMS_24, "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99])
#define AERIE_NAMES_26 AERIE_NAMES_25 ", %100, %101, %102, %103"
#define AERIE_SUMS_26 AERIE_SUMS_25, "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103])
#define AERIE_NAMES_27 AERIE_NAMES_26 ", %104, %105, %106, %107"
#define AERIE_SUMS_27 AERIE_SUMS_26, "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107])
#define AERIE_NAMES_28 AERIE_NAMES_27 ", %108, %109, %110, %111"
#define AERIE_SUMS_28 AERIE_SUMS_27, "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define AERIE_NAMES_29 AERIE_NAMES_28 ", %112, %113, %114, %115"
#define AERIE_SUMS_29 AERIE_SUMS_28, "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115])
#define AERIE_NAMES_30 AERIE_NAMES_29 ", %116, %117, %118, %119"
#define AERIE_SUMS_30 AERIE_SUMS_29, "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
#define AERIE_NAMES_31 AERIE_NAMES_30 ", %120, %121, %122, %123"
#define AERIE_SUMS_31 AERIE_SUMS_30, "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123])
#define AERIE_NAMES_32 AERIE_NAMES_31 ", %124, %125, %126, %127"
#define AERIE_SUMS_32 AERIE_SUMS_31, "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
#define AERIE_WGMMA(groups, columns, type, a_name, b_name, add_name, side_name)                 \
  asm volatile(                                                                               \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %" add_name ", 0;\n"                                  \
      "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " {"               \
      AERIE_NAMES_##groups "}, %" a_name ", %" b_name ", p, 1, 1, %" side_name ", 0;\n}\n"    \
      : AERIE_SUMS_##groups                                                                   \
      : "l"(a), "l"(b), "r"(add), "n"(kSide))
#define AERIE_WGMMA_CASE(groups, columns, a_name, b_name, add_name, side_name)            \
  if constexpr (kGroups == groups && std::is_same_v<T, Bf16>)                             \
    AERIE_WGMMA(groups, columns, "bf16", a_name, b_name, add_name, side_name);            \
  if constexpr (kGroups == groups && std::is_same_v<T, Half>)                             \
    AERIE_WGMMA(groups, columns, "f16", a_name, b_name, add_name, side_name);
// clang-format on

// d = A(64 x 16) B(16 x 8 groups) (+ d where `add`), laid out as of wgmma() (hopper.h). B's
// descriptor is of rows of columns, k along them; A's too unless kSide, when rows are of k.
template <typename T, int kSide, int kSums>
__device__ __forceinline__ void wgmma(float (&d)[kSums], uint64_t a, uint64_t b, int add) {
  constexpr int kGroups = kSums / 4;
  static_assert(kSums % 4 == 0 && kGroups >= 8 && kGroups <= 32);
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
  AERIE_WGMMA_CASE(19, "152", "76", "77", "78", "79")
  AERIE_WGMMA_CASE(20, "160", "80", "81", "82", "83")
  AERIE_WGMMA_CASE(21, "168", "84", "85", "86", "87")
  AERIE_WGMMA_CASE(22, "176", "88", "89", "90", "91")
  AERIE_WGMMA_CASE(23, "184", "92", "93", "94", "95")
  AERIE_WGMMA_CASE(24, "192", "96", "97", "98", "99")
  AERIE_WGMMA_CASE(25, "200", "100", "101", "102", "103")
  AERIE_WGMMA_CASE(26, "208", "104", "105", "106", "107")
  AERIE_WGMMA_CASE(27, "216", "108", "109", "110", "111")
  AERIE_WGMMA_CASE(28, "224", "112", "113", "114", "115")
  AERIE_WGMMA_CASE(29, "232", "116", "117", "118", "119")
  AERIE_WGMMA_CASE(30, "240", "120", "121", "122", "123")
  AERIE_WGMMA_CASE(31, "248", "124", "125", "126", "127")
  AERIE_WGMMA_CASE(32, "256", "128", "129", "130", "131")
#else
  emulation::wgmma_issue({d, 8 * kGroups, a, b, kSide != 0, false, add != 0,
                          [](uint16_t bits) { return to_float(T{bits}); }});
#endif
}

#undef AERIE_WGMMA
#undef AERIE_WGMMA_CASE
#undef AERIE_NAMES_1
#undef AERIE_SUMS_1
#undef AERIE_NAMES_2
#undef AERIE_SUMS_2
#undef AERIE_NAMES_3
#undef AERIE_SUMS_3
#undef AERIE_NAMES_4
#undef AERIE_SUMS_4
#undef AERIE_NAMES_5
#undef AERIE_SUMS_5
#undef AERIE_NAMES_6
#undef AERIE_SUMS_6
#undef AERIE_NAMES_7
#undef AERIE_SUMS_7
#undef AERIE_NAMES_8
#undef AERIE_SUMS_8
#undef AERIE_NAMES_9
#undef AERIE_SUMS_9
#undef AERIE_NAMES_10
#undef AERIE_SUMS_10
#undef AERIE_NAMES_11
#undef AERIE_SUMS_11
#undef AERIE_NAMES_12
#undef AERIE_SUMS_12
#undef AERIE_NAMES_13
#undef AERIE_SUMS_13
#undef AERIE_NAMES_14
#undef AERIE_SUMS_14
#undef AERIE_NAMES_15
#undef AERIE_SUMS_15
#undef AERIE_NAMES_16
#undef AERIE_SUMS_16
#undef AERIE_NAMES_17
#undef AERIE_SUMS_17
#undef AERIE_NAMES_18
#undef AERIE_SUMS_18
#undef AERIE_NAMES_19
#undef AERIE_SUMS_19
#undef AERIE_NAMES_20
#undef AERIE_SUMS_20
#undef AERIE_NAMES_21
#undef AERIE_SUMS_21
#undef AERIE_NAMES_22
#undef AERIE_SUMS_22
#undef AERIE_NAMES_23
#undef AERIE_SUMS_23
#undef AERIE_NAMES_24
#undef AERIE_SUMS_24
#undef AERIE_NAMES_25
#undef AERIE_SUMS_25
#undef AERIE_NAMES_26
#undef AERIE_SUMS_26
#undef AERIE_NAMES_27
#undef AERIE_SUMS_27
#undef AERIE_NAMES_28
#undef AERIE_SUMS_28
#undef AERIE_NAMES_29
#undef AERIE_SUMS_29
#undef AERIE_NAMES_30
#undef AERIE_SUMS_30
#undef AERIE_NAMES_31
#undef AERIE_SUMS_31
#undef AERIE_NAMES_32
#undef AERIE_SUMS_32

}  // namespace aerie::kernels::AERIE_BACKEND
