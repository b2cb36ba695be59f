#include <cmath>
#include <limits>
#include <vector>

#include "aerie/kernels/quantizer/quantize.h"

namespace aerie::kernels::reference {

int quantize(const Quantize& a, void*) {
  const size_t inputs = static_cast<size_t>(a.inputs), dim = static_cast<size_t>(a.dim);
  const size_t books = static_cast<size_t>(a.books), classes = static_cast<size_t>(a.classes);
  for (size_t i = 0; i < static_cast<size_t>(a.capacity); ++i)
    for (size_t book = 0; book < books; ++book) {
      const int row = a.rows != nullptr ? a.rows[i] : static_cast<int>(i);
      a.tokens[i * books + book] = 0;
      if (row < 0) continue;
      const float* x = a.features + static_cast<size_t>(row) * inputs;
      std::vector<double> y(dim);
      double squares = 0.0;
      for (size_t d = 0; d < dim; ++d) {
        for (size_t k = 0; k < inputs; ++k)
          y[d] += static_cast<double>(a.projection[(book * dim + d) * inputs + k]) * x[k];
        squares += y[d] * y[d];
      }
      if (squares == 0.0 && a.silent_tokens != nullptr) {
        a.tokens[i * books + book] = a.silent_tokens[book];
        continue;
      }
      double nearest = std::numeric_limits<double>::infinity();
      for (size_t c = 0; c < classes; ++c) {
        double distance = 0.0;
        for (size_t d = 0; d < dim; ++d) {
          const double off = y[d] / std::fmax(std::sqrt(squares), 1e-12) -
                             a.codebooks[(book * classes + c) * dim + d];
          distance += off * off;
        }
        distance = std::sqrt(distance);
        if (distance < nearest) {
          nearest = distance;
          a.tokens[i * books + book] = static_cast<int32_t>(c);
        }
      }
    }
  return kOk;
}

}  // namespace aerie::kernels::reference
