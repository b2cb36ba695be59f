// Buckets: which samples share batches, and how many of them.
//
// Classic (NeMo's tarred buckets): the buckets are given, one after another, in an order that a
// strategy chooses. By duration (Lhotse's keys): buckets are intervals of durations, found from the
// data when not given, and their batches are interleaved.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/data/sampling_config.h"

namespace aerie::data {

constexpr int64_t kMaxBatch = 1 << 20;  // samples in a batch

// --- classic ---

// Samples per batch of each bucket. `sizes` holds one value (the linear rule: (n - i) * value for
// bucket i counted from 0, n = num_repeated, the number of buckets with repetitions) unless
// is_list.
Result<std::vector<uint32_t>> classic_batch_sizes(std::span<const int64_t> sizes, bool is_list,
                                                  size_t num_buckets, size_t num_repeated,
                                                  int64_t batch_size);

// Weights applied: bucket b appears weights[b] times.
struct BucketRepeat {
  uint32_t bucket = 0;
  uint32_t repeat = 0;  // 0 .. weight-1
};
Result<std::vector<BucketRepeat>> repeat_buckets(std::span<const int64_t> weights,
                                                 size_t num_buckets);

// Order of `n` buckets in epoch `epoch` for lane `lane`. synced_randomized: the permutations
// NumPy's RandomState(0) gives one after another, equal for all lanes (with `compat` the first one
// every time). fully_randomized: every lane its own.
std::vector<uint32_t> bucket_order(BucketingStrategy strategy, uint32_t n, uint64_t seed,
                                   uint32_t epoch, uint32_t lane, bool compat);

// --- by duration ---

// n - 1 edges that cut the durations into n buckets of about equal total length (Lhotse's rule).
// Fewer when there are not enough different durations. `durations` is sorted in place.
std::vector<double> estimate_duration_bins(std::vector<double>& durations, uint32_t num_buckets);

// duration + duration^2 / quadratic (0: off): the cost of a sample for a model with quadratic
// parts.
double effective_duration(double duration_s, double quadratic_s);

// How many samples of `longest_s` fit into batch_duration; at least 1.
uint32_t samples_per_batch(double batch_duration_s, double longest_s, double quadratic_s);

struct DurationBuckets {
  // Interior edges: bucket i holds edges[i-1] <= d < edges[i]. With upper_bounds, bucket i holds
  // edges[i-1] < d <= edges[i] and longer samples belong to none.
  std::vector<double> edges;
  bool upper_bounds = false;

  size_t size() const { return upper_bounds ? edges.size() : edges.size() + 1; }
  // The bucket of a sample, or size() for none. Unknown durations (NaN) go to the last bucket.
  size_t find(double duration_s) const;
};

}  // namespace aerie::data
