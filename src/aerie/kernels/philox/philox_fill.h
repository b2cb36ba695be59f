// Fills an array with draws of one counter-based stream. Outputs first, then the stream, then the
// CUDA stream.
//
// out[i] = philox_u32(key, epoch, position, i), or philox_normal(...) respectively, for 0 <= i < n.
// The reference is a plain loop over the same header that the kernel uses; the two agree bitwise on
// integers and to 1e-6 on normals.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aerie/base/philox.h"

struct CUstream_st;

namespace aerie::kernels {

void philox_fill_u32_ref(uint32_t* out, size_t n, PhiloxKey key, uint32_t epoch, uint64_t position);
void philox_fill_normal_ref(float* out, size_t n, PhiloxKey key, uint32_t epoch, uint64_t position);

// Device pointers; the work is queued on `stream`. Returns a cudaError_t.
int philox_fill_u32_cuda(uint32_t* out, size_t n, PhiloxKey key, uint32_t epoch, uint64_t position,
                         CUstream_st* stream);
int philox_fill_normal_cuda(float* out, size_t n, PhiloxKey key, uint32_t epoch, uint64_t position,
                            CUstream_st* stream);

}  // namespace aerie::kernels
