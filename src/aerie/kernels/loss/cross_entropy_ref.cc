#include <algorithm>
#include <cmath>
#include <limits>

#include "aerie/kernels/loss/cross_entropy.h"
#include "aerie/kernels/reference.h"

namespace aerie::kernels::reference {

int cross_entropy(const CrossEntropy& a, void*) {
  const size_t classes = static_cast<size_t>(a.classes), books = static_cast<size_t>(a.books);
  const int rows = std::min(*a.num_rows, a.capacity);
  const double scale = a.loss_scale != nullptr ? *a.loss_scale : 1.0f;
  const int divisor = std::max(a.divisor != nullptr ? *a.divisor : rows, 1);
  const double weight = a.weight * scale / (divisor * a.books);
  double total = 0.0;
  for (size_t row = 0; row < static_cast<size_t>(a.capacity); ++row)
    for (size_t book = 0; book < books; ++book) {
      const auto at = [&](size_t c) { return (row * classes + c) * books + book; };
      const auto logit = [&](size_t c) {
        return load(a.logits, a.dtype, at(c)) +
               (a.bias != nullptr ? static_cast<double>(a.bias[c * books + book]) : 0.0);
      };
      if (static_cast<int>(row) >= rows) {
        for (size_t c = 0; c < classes && a.backward; ++c) store(a.logits, a.dtype, at(c), 0.0f);
        continue;
      }
      double largest = -std::numeric_limits<double>::infinity(), sum = 0.0;
      for (size_t c = 0; c < classes; ++c) largest = std::max(largest, logit(c));
      for (size_t c = 0; c < classes; ++c) sum += std::exp(logit(c) - largest);
      const size_t token = static_cast<size_t>(a.tokens[row * books + book]);
      total += largest + std::log(sum) - logit(token);
      for (size_t c = 0; c < classes && a.backward; ++c) {
        const double p = std::exp(logit(c) - largest) / sum;
        store(a.logits, a.dtype, at(c),
              static_cast<float>((p - (c == token ? 1.0 : 0.0)) * weight));
      }
    }
  *a.loss = rows > 0           ? static_cast<float>(total / (divisor * a.books))
            : a.nan_when_empty ? std::nanf("")
                               : 0.0f;
  return kOk;
}

}  // namespace aerie::kernels::reference
