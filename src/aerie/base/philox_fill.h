// Long runs of draws of one Philox stream, made with the vector units of the CPU: the same integers
// as philox_u32() and, to the last bit or two of a float, the same normals as philox_normal().
#pragma once

#include <cstdint>

#include "aerie/base/philox.h"

namespace aerie {

// out[k] = draw first_index + k of the stream (epoch, position).
void philox_fill_u32(PhiloxKey key, uint32_t epoch, uint64_t position, uint64_t first_index,
                     int64_t count, uint32_t* out);

// out[k] = `scale` where dropout_draw() number first_index + k is at least `threshold` (up to
// 2^16), else 0.
void philox_fill_keep(PhiloxKey key, uint32_t epoch, uint64_t position, uint64_t first_index,
                      int64_t count, uint32_t threshold, float scale, float* out);

// out[k] = normal first_index + k of the stream; first_index is a multiple of 4.
void philox_fill_normals(PhiloxKey key, uint32_t epoch, uint64_t position, uint64_t first_index,
                         int64_t count, float* out);

}  // namespace aerie
