// How the samples of a data set become the batches of an epoch. Fields are named after the keys
// that messages quote; `length` is whatever a family weighs its samples by (seconds, tokens,
// pixels).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "aerie/data/batching.h"

namespace aerie::data {

// The numbers stand in fingerprints: they never change.
enum class ConcatTechnique : uint8_t { kTemperature = 0, kRandom = 1, kRoundRobin = 2 };
enum class ShardStrategy : uint8_t { kScatter = 0, kReplicate = 1 };
enum class BucketingStrategy : uint8_t {
  kFixedOrder = 0,
  kSyncedRandomized = 1,
  kFullyRandomized = 2
};
enum class ShuffleLevel : uint8_t { kSample = 0, kShard = 1 };

struct SamplingConfig : Batching {
  bool shuffle = false;
  double unknown_length = 60.0;  // stands in where no sample of the set tells its length

  // Mixtures: every group is a data set of its own.
  bool is_concat = false;
  ConcatTechnique concat_sampling_technique = ConcatTechnique::kTemperature;
  double concat_sampling_temperature = 5.0;
  std::vector<double> concat_sampling_probabilities;  // empty: uniform
  int64_t concat_sampling_scale = 1;
  bool concat_shuffle = true;
  std::optional<int64_t> concat_sampling_seed;

  ShardStrategy shard_strategy = ShardStrategy::kScatter;

  // Classic buckets: every group is one.
  BucketingStrategy bucketing_strategy = BucketingStrategy::kSyncedRandomized;
  std::vector<int64_t> bucketing_weights;  // empty: 1 each
};

}  // namespace aerie::data
