#include "aerie/data/bucketing.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "aerie/base/philox.h"
#include "aerie/data/numpy_random.h"

namespace aerie::data {

namespace {

constexpr int64_t kMaxWeight = 1 << 10;

}  // namespace

Result<std::vector<uint32_t>> classic_batch_sizes(std::span<const int64_t> sizes, bool is_list,
                                                  size_t num_buckets, size_t num_repeated,
                                                  int64_t batch_size) {
  if (batch_size != 1)
    return invalid_argument(
               str_cat("batch_size must be 1 when bucketing_batch_size is set, got ", batch_size))
        .with_hint("bucketing_batch_size decides the size of the batches");
  std::vector<uint32_t> out;
  if (is_list && sizes.size() != num_buckets)
    return invalid_argument(str_cat("bucketing_batch_size has ", sizes.size(), " values for ",
                                    num_buckets, " buckets"));
  for (size_t b = 0; b < num_buckets; ++b) {
    const int64_t size = is_list ? sizes[b] : sizes[0] * static_cast<int64_t>(num_repeated - b);
    if (size < 1 || size > kMaxBatch)
      return invalid_argument(str_cat("bucketing_batch_size gives bucket ", b, " batches of ", size,
                                      " samples; 1 to ", kMaxBatch, " are possible"));
    out.push_back(static_cast<uint32_t>(size));
  }
  return out;
}

Result<std::vector<BucketRepeat>> repeat_buckets(std::span<const int64_t> weights,
                                                 size_t num_buckets) {
  if (!weights.empty() && weights.size() != num_buckets)
    return invalid_argument(
        str_cat("bucketing_weights has ", weights.size(), " values for ", num_buckets, " buckets"));
  std::vector<BucketRepeat> out;
  for (size_t b = 0; b < num_buckets; ++b) {
    const int64_t weight = weights.empty() ? 1 : weights[b];
    if (weight < 1 || weight > kMaxWeight)
      return invalid_argument(
          str_cat("bucketing_weights must be 1 to ", kMaxWeight, ", got ", weight));
    for (int64_t r = 0; r < weight; ++r)
      out.push_back({static_cast<uint32_t>(b), static_cast<uint32_t>(r)});
  }
  return out;
}

std::vector<uint32_t> bucket_order(BucketingStrategy strategy, uint32_t n, uint64_t seed,
                                   uint32_t epoch, uint32_t lane, bool compat) {
  std::vector<uint32_t> out(n);
  std::iota(out.begin(), out.end(), 0u);
  if (n < 2) return out;
  switch (strategy) {
    case BucketingStrategy::kFixedOrder:
      return out;
    case BucketingStrategy::kSyncedRandomized: {
      NumpyRandomState state(0);
      for (uint32_t e = 0; e < (compat ? 0 : epoch); ++e) state.permutation(n);
      return state.permutation(n);
    }
    case BucketingStrategy::kFullyRandomized: {
      // NeMo: a seed from [0, 30000] plus the rank.
      RandomStream random(seed, Purpose::kSampling, compat ? 0 : epoch, 0x4255434Bull);
      const uint32_t start = static_cast<uint32_t>(random.randint(0, 30000));
      return NumpyRandomState(start + lane).permutation(n);
    }
  }
  return out;
}

std::vector<double> estimate_duration_bins(std::vector<double>& durations, uint32_t num_buckets) {
  std::sort(durations.begin(), durations.end());
  std::vector<double> bins;
  if (durations.empty() || num_buckets < 2) return bins;
  const double per_bucket = std::accumulate(durations.begin(), durations.end(), 0.0) / num_buckets;
  double filled = 0.0;
  for (const double duration : durations) {
    if (filled > per_bucket && bins.size() + 1 < num_buckets) {
      // An edge equal to the one before would make an empty bucket.
      if (bins.empty() || duration > bins.back()) {
        bins.push_back(duration);
        filled = 0.0;
      }
    }
    filled += duration;
  }
  if (!bins.empty() && bins.front() <= durations.front()) bins.erase(bins.begin());
  return bins;
}

double effective_duration(double duration_s, double quadratic_s) {
  return quadratic_s > 0 ? duration_s + duration_s * duration_s / quadratic_s : duration_s;
}

uint32_t samples_per_batch(double batch_duration_s, double longest_s, double quadratic_s) {
  const double cost = effective_duration(longest_s, quadratic_s);
  if (!(cost > 0)) return kMaxBatch;
  // The tolerance lets 10 samples of 0.1 s into 1 s.
  const double fit = std::floor(batch_duration_s / cost * (1 + 1e-12));
  return static_cast<uint32_t>(std::clamp(fit, 1.0, static_cast<double>(kMaxBatch)));
}

size_t DurationBuckets::find(double duration_s) const {
  if (size() == 0) return 0;
  if (std::isnan(duration_s)) return size() - 1;
  const auto at = upper_bounds ? std::lower_bound(edges.begin(), edges.end(), duration_s)
                               : std::upper_bound(edges.begin(), edges.end(), duration_s);
  return static_cast<size_t>(at - edges.begin());
}

}  // namespace aerie::data
