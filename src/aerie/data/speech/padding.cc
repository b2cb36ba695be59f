#include "aerie/data/speech/padding.h"

#include <algorithm>
#include <limits>

namespace aerie::data {

namespace {

// Distinct needs beyond this number are merged before the exact choice, which is quadratic.
constexpr size_t kMaxDistinct = 512;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

Capacities Capacities::choose(std::vector<int64_t> needs, int64_t longest, int64_t max_shapes,
                              int64_t multiple) {
  Capacities out;
  out.multiple_ = std::max<int64_t>(1, multiple);
  max_shapes = std::max<int64_t>(1, max_shapes);
  needs.push_back(longest);
  for (int64_t& need : needs) need = round_up(std::max<int64_t>(1, need), out.multiple_);
  std::sort(needs.begin(), needs.end());

  // Distinct values with how often they occur; neighbours merged upwards when there are many.
  std::vector<int64_t> values;
  std::vector<double> counts;
  const size_t stride = std::max<size_t>(1, needs.size() / kMaxDistinct);
  double count = 0;
  for (size_t i = 0; i < needs.size(); ++i) {
    count += 1;
    const bool last = i + 1 == needs.size();
    if (!last && needs[i + 1] == needs[i]) continue;
    if (!last && count < static_cast<double>(stride)) continue;
    values.push_back(needs[i]);
    counts.push_back(count);
    count = 0;
  }

  // cost[j] = least total length when values[0..j] are covered by k lengths, values[j] the largest.
  const size_t n = values.size();
  const size_t shapes = std::min<size_t>(static_cast<size_t>(max_shapes), n);
  std::vector<double> before(n + 1);
  for (size_t i = 0; i < n; ++i) before[i + 1] = before[i] + counts[i];
  std::vector<double> cost(n), next(n);
  std::vector<std::vector<uint32_t>> choice(shapes, std::vector<uint32_t>(n, 0));
  for (size_t j = 0; j < n; ++j) cost[j] = static_cast<double>(values[j]) * before[j + 1];
  for (size_t k = 1; k < shapes; ++k) {
    for (size_t j = 0; j < n; ++j) {
      next[j] = std::numeric_limits<double>::infinity();
      for (size_t i = k - 1; i < j; ++i) {
        const double total =
            cost[i] + static_cast<double>(values[j]) * (before[j + 1] - before[i + 1]);
        if (total < next[j]) {
          next[j] = total;
          choice[k][j] = static_cast<uint32_t>(i);
        }
      }
      if (j < k) next[j] = cost[j];
    }
    cost.swap(next);
  }
  size_t j = n - 1;
  for (size_t k = shapes; k-- > 0;) {
    out.lengths_.push_back(values[j]);
    if (k == 0 || j == 0) break;
    j = choice[k][j];
  }
  std::reverse(out.lengths_.begin(), out.lengths_.end());
  return out;
}

int64_t Capacities::fit(int64_t need) const {
  const auto found = std::lower_bound(lengths_.begin(), lengths_.end(), need);
  if (found != lengths_.end()) return *found;
  return round_up(std::max<int64_t>(1, need), multiple_);
}

}  // namespace aerie::data
