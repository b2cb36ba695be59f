// The keys that cut the order of an epoch into batches. A run may go on with others in the middle
// of an epoch: with those it began with, what is left of the epoch can be worked out.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace aerie::data {

// How samples are packed into batch_duration where there are no buckets. A run keeps the rule it
// began with.
enum class Packing : uint8_t {
  kLhotse,        // a batch ends when one more sample like its longest would not fit
  kWithinBudget,  // earlier versions: a sample that does not fit begins the next batch
};

struct Batching {
  std::optional<int64_t> batch_size;
  std::optional<int64_t> shuffle_n;  // of sharded data; null: 4 * batch_size
  bool drop_last = false;
  std::vector<int64_t> bucketing_batch_size;  // one value: the linear rule; several: per bucket
  bool bucketing_batch_size_is_list = false;
  // By length: buckets, or batches packed to a sum.
  std::optional<double> batch_duration;
  std::optional<double> quadratic_duration;
  bool use_bucketing = false;
  int64_t num_buckets = 30;
  std::vector<double> bucket_duration_bins;  // empty: estimated
  std::vector<int64_t> bucket_batch_size;    // empty: none

  bool operator==(const Batching&) const = default;
};

}  // namespace aerie::data
