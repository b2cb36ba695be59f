// Text and numbers exactly as Python writes them, so that data sets made here equal those made by
// NeMo's converter byte for byte: repr(float), json.dumps(ensure_ascii=False), PyYAML floats, and
// random.seed(n); random.shuffle(list).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "aerie/base/status.h"

namespace aerie::data {

std::string python_repr(double value);  // 0.1 -> "0.1", 1e-05 -> "1e-05", 10.0 -> "10.0"
std::string yaml_float(double value);   // as python_repr, but "1.0e-05", ".inf"
// {"a": 1, "b": [1.5, null]}; keys keep their order.
Result<std::string> python_json(const nlohmann::ordered_json& value);

// The Mersenne Twister of Python's random module. Not thread-safe.
class PythonRandom {
 public:
  explicit PythonRandom(uint64_t seed);  // random.seed(seed), seed >= 0
  // random.shuffle on a list of n items: position i of the result holds item order[i].
  std::vector<uint64_t> shuffled(uint64_t n);

 private:
  uint32_t next();
  uint64_t below(uint64_t n);

  static constexpr int kSize = 624;
  uint32_t state_[kSize];
  int at_ = kSize;
};

}  // namespace aerie::data
