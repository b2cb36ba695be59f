// A flat float32 buffer rounded to 16 bits at the same offsets: the compute copy of the weights
// after they were loaded. Rounds as adamw_step does.
#pragma once

#include "aerie/kernels/types.h"

namespace aerie::kernels {

struct Cast {
  Dtype to = Dtype::kBf16;  // kBf16 or kHalf
  int64_t count = 0;        // any
  const float* x = nullptr;
  void* out = nullptr;
};

AERIE_DECLARE_KERNEL(cast, Cast)

}  // namespace aerie::kernels
