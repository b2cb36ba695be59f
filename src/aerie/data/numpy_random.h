// The one generator of NumPy whose output is part of NeMo's visible behaviour: RandomState(seed)
// .permutation(n), which orders the buckets of a bucketed data set.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace aerie::data {

// Same numbers as numpy.random.RandomState(seed) for an integer seed. Not thread-safe.
class NumpyRandomState {
 public:
  explicit NumpyRandomState(uint32_t seed) : generator_(seed) {}
  std::vector<uint32_t> permutation(uint32_t n);

 private:
  uint32_t interval(uint32_t max);  // [0, max] by masking and rejection

  std::mt19937 generator_;  // seeded as NumPy's legacy seeding does
};

}  // namespace aerie::data
