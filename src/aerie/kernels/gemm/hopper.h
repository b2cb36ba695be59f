// The instructions of compute capability 9.0 that C++ has no name for: barriers in shared memory
// with a count of bytes, copies of tiles by the tensor memory accelerator (TMA) and products
// of four warps (wgmma). Only for sources compiled for sm_90a.
#pragma once

#include <type_traits>

#include <cuda.h>

#include "aerie/kernels/device.h"

namespace aerie::kernels::cuda::hopper {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// True in one lane of a warp. Where control depends on this and on values that are known to be the
// same in all lanes, operands of copies and products need no loop over lanes that might differ.
__device__ __forceinline__ bool elected() {
  uint32_t out;
  asm volatile(
      "{\n.reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(out));
  return out != 0;
}

// Barriers: 8 bytes of shared memory each.
__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes the initialisation visible to the copy engine.
__device__ __forceinline__ void barrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t phase) {
  uint32_t done = 0;
  while (done == 0)
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(done)
        : "r"(barrier), "r"(phase)
        : "memory");
}

// Brings the description of a tensor near.
__device__ __forceinline__ void map_prefetch(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Asks for memory to come to the device's cache: multiples of 16 bytes.
__device__ __forceinline__ void cache_prefetch(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

// Tiles of two-dimensional tensors: x counts along rows.
__device__ __forceinline__ void tile_load(uint32_t to, const CUtensorMap* map, int x, int y,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
}

// Brings a tile nearer, as far as the cache of the device.
__device__ __forceinline__ void tile_prefetch(const CUtensorMap* map, int x, int y) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(map), "r"(x),
               "r"(y)
               : "memory");
}

// From shared memory, which may be written again after tile_store_read() of the same thread.
__device__ __forceinline__ void tile_store(const CUtensorMap* map, int x, int y, uint32_t from) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
      "r"(x), "r"(y), "r"(from)
      : "memory");
}
__device__ __forceinline__ void tile_store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ __forceinline__ void tile_store_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
// Makes what this thread has written to shared memory visible to the copy engine.
__device__ __forceinline__ void shared_to_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Until everything that was launched before has ended and its results are visible: what comes
// before this may run earlier where the launch allows it.
__device__ __forceinline__ void wait_for_launches_before() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Moves registers between groups of four warps, to kCount per thread.
template <int kCount>
__device__ __forceinline__ void registers_more() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void registers_fewer() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

// Of the four warps that share a number, 1 or 2.
__device__ __forceinline__ void group_sync(int number) {
  if (number == 1)
    asm volatile("bar.sync 1, 128;" ::: "memory");
  else
    asm volatile("bar.sync 2, 128;" ::: "memory");
}

// Barriers 3 and 4, of more threads than a group: those who only arrive do not wait for the others.
template <int kThreads>
__device__ __forceinline__ void handed_over(int number) {
  if (number % 2 == 0)
    asm volatile("bar.arrive 3, %0;" ::"n"(kThreads) : "memory");
  else
    asm volatile("bar.arrive 4, %0;" ::"n"(kThreads) : "memory");
}
template <int kThreads>
__device__ __forceinline__ void wait_for_handing_over(int number) {
  if (number % 2 == 0)
    asm volatile("bar.sync 3, %0;" ::"n"(kThreads) : "memory");
  else
    asm volatile("bar.sync 4, %0;" ::"n"(kThreads) : "memory");
}

// 8 x 8 results of a warp, laid out as of wgmma, written turned around: lane i has the address of
// row i%8 of part i/8.
__device__ __forceinline__ void store_turned(uint32_t to, uint32_t a, uint32_t b, uint32_t c,
                                             uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}
__device__ __forceinline__ void store_turned(uint32_t to, uint32_t a, uint32_t b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(a),
               "r"(b)
               : "memory");
}

// And read back.
__device__ __forceinline__ void load_turned(uint32_t from, uint32_t& a, uint32_t& b, uint32_t& c,
                                            uint32_t& d) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
               : "r"(from)
               : "memory");
}
__device__ __forceinline__ void load_turned(uint32_t from, uint32_t& a, uint32_t& b) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(a), "=r"(b)
               : "r"(from)
               : "memory");
}

// Where wgmma finds 16 rows of an operand, k of the product: rows of 64 values in 128 bytes,
// written with the 128-byte swizzle, eight of them 1024 bytes; `next` bytes to the following 64
// values.
__device__ __forceinline__ uint64_t operand(uint32_t address, uint32_t next) {
  return (uint64_t{1} << 62) | (uint64_t{1024 >> 4} << 32) | (uint64_t{next >> 4} << 16) |
         ((address & 0x3ffff) >> 4);
}

__device__ __forceinline__ void product_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void product_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void product_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Compilers take registers of a product for final once it has been started: nothing that reads them
// may move above the wait.
template <int kSums>
__device__ __forceinline__ void product_keep(float (&sums)[kSums]) {
  AERIE_UNROLL
  for (int i = 0; i < kSums; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

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

// sums += A(64 x 16) B(16 x 128) of four warps: warp w has rows 16w to 16w+15; a lane has of row
// lane/4 the columns 8j + 2(lane%4) and the next as sums[4j], sums[4j+1], and of the row eight
// below as sums[4j+2], sums[4j+3].
template <typename T>
__device__ __forceinline__ void product(float (&sums)[64], uint64_t a, uint64_t b) {
  if constexpr (std::is_same_v<T, Bf16>) {
    AERIE_WGMMA("bf16");
  } else {
    AERIE_WGMMA("f16");
  }
}
#undef AERIE_WGMMA
#undef AERIE_WGMMA_SUMS

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's, without linking it; null where there is none.
inline Encode encode() {
  static const Encode function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                         &result) != cudaSuccess ||
        result != cudaDriverEntryPointSuccess) {
      cudaGetLastError();
      return Encode{};
    }
    return reinterpret_cast<Encode>(found);
  }();
  return function;
}

// Row-major (rows, columns) of 16-bit values, rows `stride` values apart, in boxes of box_rows x
// 64, whose rows of 128 bytes are swizzled. What lies outside reads as zero and is not written.
inline bool describe(CUtensorMap& map, Dtype dtype, const void* data, int rows, int columns,
                     int stride, int box_rows) {
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0 || stride % 8 != 0 || stride < columns)
    return false;
  const cuuint64_t sizes[2] = {cuuint64_t(columns), cuuint64_t(rows)};
  const cuuint64_t strides[1] = {cuuint64_t(stride) * 2};
  const cuuint32_t box[2] = {64, cuuint32_t(box_rows)}, steps[2] = {1, 1};
  return encode()(&map,
                  dtype == Dtype::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                        : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                  2, const_cast<void*>(data), sizes, strides, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// Multiprocessors of the current device; 0 where it does not have these instructions.
inline int processors() {
  static PerDevice counts;
  const int device = current_device();
  return counts.get(device, [&] {
    const bool has = device_attribute(cudaDevAttrComputeCapabilityMajor, device) == 9 &&
                     device_attribute(cudaDevAttrComputeCapabilityMinor, device) == 0;
    return has && encode() != nullptr ? multiprocessors() : 0;
  });
}

}  // namespace aerie::kernels::cuda::hopper
