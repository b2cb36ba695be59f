#include "aerie/data/numpy_random.h"

#include <bit>
#include <numeric>
#include <utility>

namespace aerie::data {

uint32_t NumpyRandomState::interval(uint32_t max) {
  if (max == 0) return 0;
  const uint32_t mask = static_cast<uint32_t>((uint64_t{1} << std::bit_width(max)) - 1);
  while (true) {
    const uint32_t value = static_cast<uint32_t>(generator_()) & mask;
    if (value <= max) return value;
  }
}

std::vector<uint32_t> NumpyRandomState::permutation(uint32_t n) {
  std::vector<uint32_t> out(n);
  std::iota(out.begin(), out.end(), 0u);
  for (uint32_t i = n; i-- > 1;) std::swap(out[i], out[interval(i)]);
  return out;
}

}  // namespace aerie::data
