// Copies of tiles by the tensor memory accelerator (TMA) of compute capability 9.0.
#pragma once

#ifdef __CUDACC__
#include <cuda.h>

#include "aerie/kernels/cuda/driver.h"
#endif

#include "aerie/kernels/cuda/shared_memory.h"

namespace aerie::kernels::AERIE_BACKEND {

#ifdef __CUDACC__
using TensorMap = CUtensorMap;
#else
using emulation::TensorMap;
#endif

__device__ __forceinline__ void prefetch_tensormap([[maybe_unused]] const TensorMap* map) {
#ifdef __CUDACC__
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
#endif
}

// Boxes of two-dimensional tensors: x counts along rows.
__device__ __forceinline__ void tma_load_2d(SharedAddress to, const TensorMap* map, int x, int y,
                                            SharedAddress barrier) {
#ifdef __CUDACC__
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(barrier)
      : "memory");
#else
  emulation::tma_load(to, *map, x, y, barrier);
#endif
}

// To L2.
__device__ __forceinline__ void tma_prefetch_2d([[maybe_unused]] const TensorMap* map,
                                                [[maybe_unused]] int x, [[maybe_unused]] int y) {
#ifdef __CUDACC__
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(map), "r"(x),
               "r"(y)
               : "memory");
#endif
}

// From shared memory, which may be written again after tma_store_wait_read() of the same thread.
__device__ __forceinline__ void tma_store_2d(const TensorMap* map, int x, int y,
                                             SharedAddress from) {
#ifdef __CUDACC__
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
      "r"(x), "r"(y), "r"(from)
      : "memory");
#else
  emulation::tma_store(*map, x, y, from);
#endif
}
__device__ __forceinline__ void tma_store_commit() {
#ifdef __CUDACC__
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#else
  emulation::tma_store_commit();
#endif
}
__device__ __forceinline__ void tma_store_wait_read() {
#ifdef __CUDACC__
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#else
  emulation::tma_store_wait_read();
#endif
}

#ifdef __CUDACC__
using TensorMapEncode = decltype(&cuTensorMapEncodeTiled);
// Null where the driver has none.
inline TensorMapEncode tensor_map_encode() {
  static const TensorMapEncode function = driver_function("cuTensorMapEncodeTiled");
  return function;
}
#endif

// Row-major (rows, columns) of 16-bit values, rows `stride` values apart, in boxes of box_rows x
// 64, whose rows of 128 bytes are swizzled. What lies outside reads as zero and is not written.
inline bool make_tensor_map(TensorMap& map, [[maybe_unused]] Dtype dtype, const void* data,
                            int rows, int columns, int stride, int box_rows) {
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0 || stride % 8 != 0 || stride < columns)
    return false;
#ifdef __CUDACC__
  const cuuint64_t sizes[2] = {cuuint64_t(columns), cuuint64_t(rows)};
  const cuuint64_t strides[1] = {cuuint64_t(stride) * 2};
  const cuuint32_t box[2] = {64, cuuint32_t(box_rows)}, steps[2] = {1, 1};
  return tensor_map_encode()(&map,
                             dtype == Dtype::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                   : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                             2, const_cast<void*>(data), sizes, strides, box, steps,
                             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                             CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
#else
  map = {static_cast<unsigned char*>(const_cast<void*>(data)), rows, columns, size_t(stride) * 2,
         box_rows};
  return true;
#endif
}

// SMs of the current device; 0 where it does not have these instructions.
inline int sm90_count() {
#ifdef __CUDACC__
  static PerDevice counts;
  const int device = current_device();
  return counts.get(device, [&] {
    const bool has = device_attribute(cudaDevAttrComputeCapabilityMajor, device) == 9 &&
                     device_attribute(cudaDevAttrComputeCapabilityMinor, device) == 0;
    return has && tensor_map_encode() != nullptr ? sm_count() : 0;
  });
#else
  return sm_count();
#endif
}

}  // namespace aerie::kernels::AERIE_BACKEND
