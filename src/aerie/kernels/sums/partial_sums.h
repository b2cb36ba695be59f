// The second stage of two-stage reductions over rows. A kernel that reduces over rows leaves
// partials and then adds them; given a list (`deferred`), it only notes there what is to be added,
// and one call adds everything on the list. The notes live on the host; partials must stay until
// that call.
#pragma once

#include "aerie/kernels/types.h"

namespace aerie::kernels {

// out[c] (+)= sum over p of partial[p * stride + c], in the order of p.
struct PartialSum {
  const float* partial = nullptr;
  float* out = nullptr;
  int64_t stride = 0;
  int parts = 0, columns = 0;
  bool accumulate = false;
};

struct PartialSums {
  static constexpr int kMost = 56;  // two layers of the model
  int count = 0;
  PartialSum sums[kMost];
};

AERIE_DECLARE_KERNEL(add_partials, PartialSums)

}  // namespace aerie::kernels
