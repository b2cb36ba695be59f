// Row lengths of batches: a small set, so that a GPU sees few shapes, chosen to waste little.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace aerie::data {

class Capacities {
 public:
  Capacities() = default;
  // `needs`: the longest row of each batch of a representative epoch, in samples (unsorted;
  // `longest` covers what is not among them). At most max_shapes lengths, multiples of `multiple`.
  static Capacities choose(std::vector<int64_t> needs, int64_t longest, int64_t max_shapes,
                           int64_t multiple);

  // The length for a batch whose longest row has `need` samples; beyond the largest known length,
  // the next multiple.
  int64_t fit(int64_t need) const;
  std::span<const int64_t> lengths() const { return lengths_; }  // ascending

 private:
  std::vector<int64_t> lengths_;
  int64_t multiple_ = 1;
};

}  // namespace aerie::data
