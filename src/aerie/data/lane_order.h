// The order of samples in one epoch, dealt to lanes.
//
// A lane is what one rank reads (with virtual_ranks there are more lanes than ranks, a fixed
// number, so that the order does not change with the number of machines). A LaneOrder answers
// "which sample is the j-th of lane v" without reading anything; it is a pure function of (seed,
// epoch, stream), immutable, and any thread may ask.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "aerie/data/permutation.h"

namespace aerie::data {

class LaneOrder {
 public:
  virtual ~LaneOrder() = default;
  uint32_t num_lanes() const { return num_lanes_; }
  virtual uint64_t lane_size(uint32_t lane) const = 0;
  virtual uint32_t at(uint32_t lane, uint64_t j) const = 0;  // j < lane_size(lane)

  uint64_t total() const;
  uint64_t min_lane() const;
  uint64_t max_lane() const;

 protected:
  explicit LaneOrder(uint32_t num_lanes) : num_lanes_(num_lanes) {}

 private:
  uint32_t num_lanes_;
};

// What selects the random stream of an order. `stream` tells orders of one epoch apart (bucket,
// member of a mixture, repetition).
struct OrderKey {
  uint64_t seed = 0;
  uint32_t epoch = 0;
  uint64_t stream = 0;
};

// Samples that can be read in any order: lane v gets every num_lanes-th of the (shuffled) list, as
// a distributed sampler deals them. The list is [begin, begin + size) or, when `list` is given,
// its elements (kept alive by the caller's shared_ptr).
class MapOrder final : public LaneOrder {
 public:
  MapOrder(uint32_t begin, uint32_t size, bool shuffle, uint32_t num_lanes, const OrderKey& key);
  MapOrder(std::shared_ptr<const std::vector<uint32_t>> list, bool shuffle, uint32_t num_lanes,
           const OrderKey& key);
  uint64_t lane_size(uint32_t lane) const override {
    return lane < size_ ? (size_ - lane - 1) / num_lanes() + 1 : 0;
  }
  uint32_t at(uint32_t lane, uint64_t j) const override {
    const uint64_t image = permutation_(j * num_lanes() + lane);
    return list_ != nullptr ? (*list_)[image] : begin_ + static_cast<uint32_t>(image);
  }

 private:
  uint32_t begin_ = 0;
  uint64_t size_ = 0;
  std::shared_ptr<const std::vector<uint32_t>> list_;
  Permutation permutation_;
};

// Any order, written out: one list per lane. 4 bytes a sample.
class TableOrder final : public LaneOrder {
 public:
  explicit TableOrder(std::vector<std::vector<uint32_t>> lanes)
      : LaneOrder(static_cast<uint32_t>(lanes.size())), lanes_(std::move(lanes)) {}
  uint64_t lane_size(uint32_t lane) const override { return lanes_[lane].size(); }
  uint32_t at(uint32_t lane, uint64_t j) const override { return lanes_[lane][j]; }

 private:
  std::vector<std::vector<uint32_t>> lanes_;
};

enum class ShardSplit : uint8_t {
  kScatter,      // each lane reads its own part of the shards, to the sample: all are read once
  kReplicate,    // each lane reads from all shards, a lane's share of an epoch of them
  kNemoScatter,  // each lane owns floor(shards / lanes) whole shards; the rest is never read
};

struct TarOrderOptions {
  ShardSplit split = ShardSplit::kScatter;
  uint32_t shuffle_n = 0;       // 0: no shuffling at all; else the size of the sample buffer
  bool shuffle_samples = true;  // false: shards only, samples keep the order of the archive
};

// Samples of tar shards: shard s holds samples [starts[s], starts[s + 1]), the last one up to
// `end`. Shards are shuffled as a whole, then samples through a buffer of shuffle_n, so that
// reading stays close to sequential.
std::unique_ptr<LaneOrder> make_tar_order(std::span<const uint32_t> starts, uint32_t end,
                                          const TarOrderOptions& options, uint32_t num_lanes,
                                          const OrderKey& key);

// The shards NeMo gives rank `rank`: [first, last). Worker w of n then reads every n-th of them.
struct ShardRange {
  uint32_t first = 0;
  uint32_t last = 0;
};
ShardRange nemo_shard_range(uint32_t num_shards, uint32_t world, uint32_t rank, bool scatter);

// A shuffle buffer as webdataset's: filled to min(100, capacity) before the first item comes out,
// then growing by one per item until it holds `capacity`; each item that comes out is a random one.
void shuffle_through_buffer(std::vector<uint32_t>& items, uint32_t capacity, RandomStream& random);

}  // namespace aerie::data
