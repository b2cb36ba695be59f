#include "aerie/data/lane_order.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "aerie/base/check.h"

namespace aerie::data {

namespace {

constexpr uint32_t kInitialFill = 100;

uint64_t lane_stream(uint64_t stream, uint32_t lane) {
  return mix64(stream ^ (static_cast<uint64_t>(lane + 1) << 40));
}

}  // namespace

uint64_t LaneOrder::total() const {
  uint64_t sum = 0;
  for (uint32_t v = 0; v < num_lanes_; ++v) sum += lane_size(v);
  return sum;
}

uint64_t LaneOrder::min_lane() const {
  uint64_t out = lane_size(0);
  for (uint32_t v = 1; v < num_lanes_; ++v) out = std::min(out, lane_size(v));
  return out;
}

uint64_t LaneOrder::max_lane() const {
  uint64_t out = lane_size(0);
  for (uint32_t v = 1; v < num_lanes_; ++v) out = std::max(out, lane_size(v));
  return out;
}

MapOrder::MapOrder(uint32_t begin, uint32_t size, bool shuffle, uint32_t num_lanes,
                   const OrderKey& key)
    : LaneOrder(num_lanes),
      begin_(begin),
      size_(size),
      permutation_(shuffle ? Permutation(size, key.seed, Purpose::kShuffle, key.epoch, key.stream)
                           : Permutation::identity(size)) {}

MapOrder::MapOrder(std::shared_ptr<const std::vector<uint32_t>> list, bool shuffle,
                   uint32_t num_lanes, const OrderKey& key)
    : LaneOrder(num_lanes),
      size_(list->size()),
      list_(std::move(list)),
      permutation_(shuffle ? Permutation(size_, key.seed, Purpose::kShuffle, key.epoch, key.stream)
                           : Permutation::identity(size_)) {}

void shuffle_through_buffer(std::vector<uint32_t>& items, uint32_t capacity, RandomStream& random) {
  const size_t initial = std::min(kInitialFill, capacity);
  std::vector<uint32_t> buffer;
  buffer.reserve(std::min<size_t>(capacity, items.size()) + 2);
  size_t in = 0, out = 0;
  const auto emit = [&] {
    const size_t pick = random.below(buffer.size());
    std::swap(buffer[pick], buffer.back());
    items[out++] = buffer.back();  // out never overtakes in: an item is read before one is written
    buffer.pop_back();
  };
  while (in < items.size()) {
    buffer.push_back(items[in++]);
    if (buffer.size() < capacity && in < items.size()) buffer.push_back(items[in++]);
    if (buffer.size() >= initial) emit();
  }
  while (!buffer.empty()) emit();
}

ShardRange nemo_shard_range(uint32_t num_shards, uint32_t world, uint32_t rank, bool scatter) {
  if (!scatter) return {0, num_shards};
  const uint32_t each = num_shards / world;
  return {rank * each, (rank + 1) * each};
}

std::unique_ptr<LaneOrder> make_tar_order(std::span<const uint32_t> starts, uint32_t end,
                                          const TarOrderOptions& options, uint32_t num_lanes,
                                          const OrderKey& key) {
  const uint32_t num_shards = static_cast<uint32_t>(starts.size());
  const bool shuffle = options.shuffle_n > 0;
  const auto shard_end = [&](uint32_t s) { return s + 1 < num_shards ? starts[s + 1] : end; };
  const uint64_t total = num_shards == 0 ? 0 : end - starts[0];
  // Samples of shards order(first..last), whole, appended to `out`.
  const auto append_shards = [&](const Permutation& order, uint32_t first, uint32_t last,
                                 std::vector<uint32_t>& out) {
    for (uint32_t k = first; k < last; ++k) {
      const uint32_t shard = static_cast<uint32_t>(order(k));
      for (uint32_t i = starts[shard]; i < shard_end(shard); ++i) out.push_back(i);
    }
  };
  const auto shard_order = [&](uint32_t n, uint64_t stream) {
    return shuffle ? Permutation(n, key.seed, Purpose::kShuffle, key.epoch, stream)
                   : Permutation::identity(n);
  };

  std::vector<std::vector<uint32_t>> lanes(num_lanes);
  const uint64_t share = total / num_lanes, rest = total % num_lanes;
  if (options.split == ShardSplit::kScatter) {
    // One order of all shards, cut into as many equal runs of samples as there are lanes.
    std::vector<uint32_t> all;
    all.reserve(total);
    append_shards(shard_order(num_shards, key.stream), 0, num_shards, all);
    auto at = all.begin();
    for (uint32_t v = 0; v < num_lanes; ++v) {
      const auto next = at + static_cast<int64_t>(share + (v < rest ? 1 : 0));
      lanes[v].assign(at, next);
      at = next;
    }
  } else if (options.split == ShardSplit::kReplicate) {
    for (uint32_t v = 0; v < num_lanes; ++v) {
      lanes[v].reserve(total);
      append_shards(shard_order(num_shards, lane_stream(key.stream, v)), 0, num_shards, lanes[v]);
    }
  } else {
    for (uint32_t v = 0; v < num_lanes; ++v) {
      const ShardRange range = nemo_shard_range(num_shards, num_lanes, v, true);
      const uint32_t count = range.last - range.first;
      const Permutation order = shard_order(count, lane_stream(key.stream, v));
      for (uint32_t k = 0; k < count; ++k) {
        const uint32_t shard = range.first + static_cast<uint32_t>(order(k));
        for (uint32_t i = starts[shard]; i < shard_end(shard); ++i) lanes[v].push_back(i);
      }
    }
  }
  for (uint32_t v = 0; v < num_lanes; ++v) {
    if (shuffle && options.shuffle_samples) {
      RandomStream random(key.seed, Purpose::kShuffle, key.epoch,
                          lane_stream(key.stream ^ 0x5348554646ull, v));
      shuffle_through_buffer(lanes[v], options.shuffle_n, random);
    }
    // An epoch is one pass over the data by all lanes together.
    if (options.split == ShardSplit::kReplicate) lanes[v].resize(share + (v < rest ? 1 : 0));
  }
  return std::make_unique<TableOrder>(std::move(lanes));
}

}  // namespace aerie::data
