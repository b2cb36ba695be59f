// A random permutation of [0, n) with random access: the order of an epoch without a list of it.
//
// Small n: a Fisher-Yates table. Large n: a keyed Feistel network over the next power of two with
// cycle walking, so that entry i costs tens of nanoseconds and no memory, however many samples
// there are. The permutation is a pure function of (n, seed, purpose, epoch, stream): resuming an
// epoch in its middle needs nothing but the position. Immutable; any thread may call it.
#pragma once

#include <cstdint>
#include <vector>

#include "aerie/base/philox.h"

namespace aerie::data {

class Permutation {
 public:
  Permutation() = default;  // the empty permutation
  Permutation(uint64_t n, uint64_t seed, Purpose purpose, uint32_t epoch, uint64_t stream);
  static Permutation identity(uint64_t n);

  uint64_t size() const { return size_; }
  // The image of i, i < size().
  uint64_t operator()(uint64_t i) const {
    if (!table_.empty()) return table_[i];
    return feistel_ ? walk(i) : i;
  }

 private:
  static constexpr uint64_t kTableLimit = 1u << 12;
  static constexpr int kRounds = 6;

  uint64_t walk(uint64_t i) const;

  uint64_t size_ = 0;
  bool feistel_ = false;
  int low_bits_ = 0;
  int high_bits_ = 0;
  uint64_t keys_[kRounds] = {};
  std::vector<uint32_t> table_;
};

}  // namespace aerie::data
