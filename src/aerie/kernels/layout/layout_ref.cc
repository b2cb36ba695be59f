#include <algorithm>

#include "aerie/kernels/layout/layout.h"
#include "aerie/kernels/reference.h"

namespace aerie::kernels::reference {

int bias_gradient(const BiasGradient& a, void*) {
  const int rows = a.num_rows != nullptr ? std::min(*a.num_rows, a.rows) : a.rows;
  for (size_t c = 0; c < static_cast<size_t>(a.columns); ++c) {
    double sum = 0.0;
    for (size_t row = 0; row < static_cast<size_t>(std::max(rows, 0)); ++row)
      sum += load(a.x, a.dtype, row * static_cast<size_t>(a.stride) + c);
    put(a.out + c, sum, a.accumulate);
  }
  return kOk;
}

int swap_inner(const SwapInner& s, void*) {
  const size_t na = static_cast<size_t>(s.a), nb = static_cast<size_t>(s.b);
  for (size_t row = 0; row < static_cast<size_t>(s.rows); ++row)
    for (size_t a = 0; a < na; ++a)
      for (size_t b = 0; b < nb; ++b) {
        const size_t at = (row * nb + b) * na + a;
        const float value = load(s.x, s.from, (row * na + a) * nb + b);
        store(s.out, s.to, at, s.accumulate ? load(s.out, s.to, at) + value : value);
      }
  return kOk;
}

}  // namespace aerie::kernels::reference
