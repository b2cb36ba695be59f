#include "aerie/data/permutation.h"

#include <bit>
#include <numeric>
#include <utility>

#include "aerie/base/check.h"

namespace aerie::data {

Permutation Permutation::identity(uint64_t n) {
  Permutation out;
  out.size_ = n;
  return out;
}

Permutation::Permutation(uint64_t n, uint64_t seed, Purpose purpose, uint32_t epoch,
                         uint64_t stream)
    : size_(n) {
  RandomStream random(seed, purpose, epoch, stream);
  if (n <= 1) return;
  if (n <= kTableLimit) {
    table_.resize(n);
    std::iota(table_.begin(), table_.end(), 0u);
    for (uint64_t i = n - 1; i > 0; --i) std::swap(table_[i], table_[random.below(i + 1)]);
    return;
  }
  feistel_ = true;
  const int bits = static_cast<int>(std::bit_width(n - 1));
  low_bits_ = bits / 2;
  high_bits_ = bits - low_bits_;
  for (uint64_t& key : keys_) key = random.next_u64();
}

// One pass is an unbalanced Feistel network on low_bits_ + high_bits_ bits: each round adds a keyed
// hash of one half into the other, which is invertible whatever the hash is. Walking until the
// value falls below n restricts the bijection to [0, n); fewer than two passes are needed on
// average.
uint64_t Permutation::walk(uint64_t i) const {
  AERIE_DCHECK(i < size_, "permutation index ", i, " of ", size_);
  const uint64_t low_mask = (uint64_t{1} << low_bits_) - 1;
  const uint64_t high_mask = (uint64_t{1} << high_bits_) - 1;
  uint64_t value = i;
  do {
    uint64_t low = value & low_mask;
    uint64_t high = value >> low_bits_;
    for (int round = 0; round < kRounds; round += 2) {
      high = (high ^ mix64(low ^ keys_[round])) & high_mask;
      low = (low ^ mix64(high ^ keys_[round + 1])) & low_mask;
    }
    value = (high << low_bits_) | low;
  } while (value >= size_);
  return value;
}

}  // namespace aerie::data
