// One thread makes one Philox block (four draws); a grid-stride loop covers any length. The kernels
// are bound by the ten integer rounds, or by the double-precision logarithm and sine of the
// normals, not by memory.
#include <cuda_runtime.h>

#include "aerie/kernels/philox/philox_fill.h"

namespace aerie::kernels {

namespace {

constexpr int kThreads = 256;
constexpr size_t kMaxBlocks = 4096;

__global__ void __launch_bounds__(kThreads)
    fill_u32(uint32_t* out, size_t n, PhiloxKey key, uint32_t epoch, uint64_t position) {
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t block = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; block * 4 < n;
       block += stride) {
    const PhiloxBlock draws = philox_block(key, epoch, position, static_cast<uint32_t>(block));
    for (int k = 0; k < 4; ++k)
      if (block * 4 + k < n) out[block * 4 + k] = draws.v[k];
  }
}

__global__ void __launch_bounds__(kThreads)
    fill_normal(float* out, size_t n, PhiloxKey key, uint32_t epoch, uint64_t position) {
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t block = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; block * 4 < n;
       block += stride) {
    const PhiloxBlock draws = philox_block(key, epoch, position, static_cast<uint32_t>(block));
    float normals[4];
    u32x2_to_normals(draws.v[0], draws.v[1], &normals[0], &normals[1]);
    u32x2_to_normals(draws.v[2], draws.v[3], &normals[2], &normals[3]);
    for (int k = 0; k < 4; ++k)
      if (block * 4 + k < n) out[block * 4 + k] = normals[k];
  }
}

unsigned grid_for(size_t n) {
  const size_t blocks = (n / 4 + kThreads) / kThreads;
  return static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
}

}  // namespace

int philox_fill_u32_cuda(uint32_t* out, size_t n, PhiloxKey key, uint32_t epoch, uint64_t position,
                         CUstream_st* stream) {
  fill_u32<<<grid_for(n), kThreads, 0, stream>>>(out, n, key, epoch, position);
  return static_cast<int>(cudaGetLastError());
}

int philox_fill_normal_cuda(float* out, size_t n, PhiloxKey key, uint32_t epoch, uint64_t position,
                            CUstream_st* stream) {
  fill_normal<<<grid_for(n), kThreads, 0, stream>>>(out, n, key, epoch, position);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace aerie::kernels
