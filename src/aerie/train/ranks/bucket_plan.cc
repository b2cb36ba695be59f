#include "aerie/train/ranks/bucket_plan.h"

#include <algorithm>

#include "aerie/kernels/adamw/adamw.h"

namespace aerie::train {
namespace {

constexpr int64_t kElement = sizeof(float);

void add_range(Bucket& bucket, FlatRange range) {
  bucket.ranges.push_back(range);
  bucket.count += range.count;
}

void join_neighbours(Bucket& bucket) {
  std::sort(bucket.ranges.begin(), bucket.ranges.end(),
            [](const FlatRange& a, const FlatRange& b) { return a.begin < b.begin; });
  std::vector<FlatRange> joined;
  for (const FlatRange& range : bucket.ranges) append_range(joined, range);
  bucket.ranges = std::move(joined);
}

}  // namespace

std::vector<Bucket> plan_buckets(const FlatParts& parts, int64_t first_bytes, int64_t bytes) {
  std::vector<Bucket> out;
  Bucket open;
  const auto close = [&](int part) {
    if (open.count == 0) return;
    open.part = part;
    join_neighbours(open);
    out.push_back(std::move(open));
    open = Bucket();
  };
  for (int part = parts.size() - 1; part >= 0; --part) {
    for (FlatRange range : parts.ranges(part))
      while (range.count > 0) {
        const int64_t cap = std::max<int64_t>(1, (out.empty() ? first_bytes : bytes) / kElement);
        const int64_t taken = std::min(range.count, cap - open.count);
        add_range(open, {range.begin, taken});
        range.begin += taken;
        range.count -= taken;
        if (open.count >= cap) close(part);
      }
  }
  close(0);
  return out;
}

FlatRange shard_of(int64_t count, int rank, int world) {
  const int64_t chunks = (count + kernels::kAdamwChunk - 1) / kernels::kAdamwChunk;
  const int64_t each = (chunks + world - 1) / world * kernels::kAdamwChunk;
  const int64_t begin = std::min(count, each * rank);
  return {begin, std::min(count, begin + each) - begin};
}

}  // namespace aerie::train
