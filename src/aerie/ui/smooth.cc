#include "aerie/ui/smooth.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace aerie::ui {

std::vector<double> smoothed(const std::vector<double>& y) {
  std::vector<double> out;
  out.reserve(y.size());
  for (size_t i = 0; i < y.size(); ++i) {
    if (!std::isfinite(y[i])) {
      out.push_back(y[i]);
      continue;
    }
    const size_t begin = i - std::min(i, kSmoothReach);
    const size_t end = std::min(y.size(), i + kSmoothReach + 1);
    double sum = 0.0, weights = 0.0;
    double low = y[i], high = y[i];
    for (size_t k = begin; k < end; ++k) {
      if (!std::isfinite(y[k])) continue;
      const size_t distance = k > i ? k - i : i - k;
      const double weight = static_cast<double>(kSmoothReach + 1 - distance);
      sum += weight * y[k];
      weights += weight;
      low = std::min(low, y[k]);
      high = std::max(high, y[k]);
    }
    // Rounding, or a sum beyond the largest number, must not leave the points behind.
    const double mean = sum / weights;
    out.push_back(std::isfinite(mean) ? std::clamp(mean, low, high) : y[i]);
  }
  return out;
}

}  // namespace aerie::ui
