#include "aerie/kernels/philox/philox_fill.h"

namespace aerie::kernels {

void philox_fill_u32_ref(uint32_t* out, size_t n, PhiloxKey key, uint32_t epoch,
                         uint64_t position) {
  for (size_t i = 0; i < n; ++i) out[i] = philox_u32(key, epoch, position, i);
}

void philox_fill_normal_ref(float* out, size_t n, PhiloxKey key, uint32_t epoch,
                            uint64_t position) {
  for (size_t i = 0; i < n; ++i) out[i] = philox_normal(key, epoch, position, i);
}

}  // namespace aerie::kernels
