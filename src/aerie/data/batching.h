// The keys that cut the order of an epoch into batches. A run may go on with others in the middle
// of an epoch: with those it began with, what is left of the epoch can be worked out.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "aerie/config/schema/dataset_config.h"

namespace aerie::data {

// How clips are packed into batch_duration where there are no buckets. A run keeps the rule it
// began with.
enum class Packing : uint8_t {
  kLhotse,        // a batch ends when one more clip like its longest would not fit
  kWithinBudget,  // earlier versions: a clip that does not fit begins the next batch
};

struct Batching {
  std::optional<int64_t> batch_size;
  std::optional<int64_t> shuffle_n;
  bool drop_last = false;
  std::vector<int64_t> bucketing_batch_size;
  bool bucketing_batch_size_is_list = false;
  std::optional<double> batch_duration;
  std::optional<double> quadratic_duration;
  bool use_bucketing = false;
  int64_t num_buckets = 30;
  std::vector<double> bucket_duration_bins;
  std::vector<int64_t> bucket_batch_size;

  static Batching of(const config::DatasetConfig& config) {
    return {config.batch_size,
            config.shuffle_n,
            config.drop_last,
            config.bucketing_batch_size,
            config.bucketing_batch_size_is_list,
            config.batch_duration,
            config.quadratic_duration,
            config.use_bucketing,
            config.num_buckets,
            config.bucket_duration_bins,
            config.bucket_batch_size};
  }
  void apply(config::DatasetConfig& config) const {
    config.batch_size = batch_size;
    config.shuffle_n = shuffle_n;
    config.drop_last = drop_last;
    config.bucketing_batch_size = bucketing_batch_size;
    config.bucketing_batch_size_is_list = bucketing_batch_size_is_list;
    config.batch_duration = batch_duration;
    config.quadratic_duration = quadratic_duration;
    config.use_bucketing = use_bucketing;
    config.num_buckets = num_buckets;
    config.bucket_duration_bins = bucket_duration_bins;
    config.bucket_batch_size = bucket_batch_size;
  }
  bool operator==(const Batching&) const = default;
};

}  // namespace aerie::data
