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

int repack_rows(const RepackRows& a, void*) {
  const size_t channels = static_cast<size_t>(a.channels);
  for (int item = 0; item < a.batch; ++item)
    for (int t = 0; t < rows_of(a.to, item, a.frames); ++t)
      for (size_t c = 0; c < channels; ++c) {
        const auto at = [&](const RowLayout& layout) {
          return static_cast<size_t>(first_row(layout, item, a.frames) + t) * channels + c;
        };
        const bool there = t < rows_of(a.from, item, a.frames);
        store(a.out, a.dtype, at(a.to), there ? load(a.x, a.dtype, at(a.from)) : 0.0f);
      }
  return kOk;
}

}  // namespace aerie::kernels::reference
