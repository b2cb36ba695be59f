// Sixteen-bit samples to float rows of a batch: the inner loop of the loader. Exact: value / 32768;
// sums of squares are integers, in any order. Long clean rows are written past the caches (7 % for
// the loader); the noisy ones are not, because mixing reads them again (a tenth slower).
#pragma once

#include <cstdint>

namespace aerie::data {

// out[i] = copy[i] = in[i] / 32768; `copy` may be null. Returns the sum of in[i]^2. The outputs
// must not overlap.
int64_t convert_row(const int16_t* in, int64_t n, float* out, float* copy);

// The plain loop, for comparison.
int64_t convert_row_reference(const int16_t* in, int64_t n, float* out, float* copy);

}  // namespace aerie::data
