// The batches of an epoch, for all lanes: a pure function of the data's shape, the options, the
// seed and the epoch. Nothing is read; any batch can be asked for at any time, which is why the
// position of a run is two numbers (epoch, step).
//
// Promises, for any combination of options: all lanes have the same number of steps. With drop_last
// false every sample appears exactly once per epoch, unless sampling repeats or drops by design
// (is_concat, bucketing_weights, replicate); a lane's batch may then be smaller than the others' or
// empty in the last step of a bucket. With drop_last every batch is full, no sample appears twice,
// and fewer than one batch per bucket and lane are lost.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/data/bucketing.h"
#include "aerie/data/lane_order.h"
#include "aerie/data/sampling_config.h"

namespace aerie::data {

// The samples of a data set as the sampler sees them. Groups are contiguous ranges: one for plain
// data, one per bucket (classic bucketing) or per member (is_concat).
struct SampleGroup {
  uint32_t begin = 0;
  uint32_t end = 0;
  std::vector<uint32_t> shard_starts;  // sharded data: first sample of each shard; else empty
};
struct SampleSet {
  std::vector<SampleGroup> groups;
  std::vector<double> lengths;  // per sample; NaN: unknown. Empty: samples have none
  // Samples lie in shards that are read from their start: orders keep close to them.
  bool sharded = false;

  uint32_t size() const { return groups.empty() ? 0 : groups.back().end; }
  double length(uint64_t i) const {
    return lengths.empty() ? std::numeric_limits<double>::quiet_NaN() : lengths[i];
  }
};

struct PlannedSample {
  uint32_t sample = 0;
  // Unique in the epoch; selects the random streams of this reading of the sample.
  uint64_t position = 0;
};

class EpochPlan {
 public:
  uint32_t epoch() const { return epoch_; }
  uint32_t num_lanes() const { return num_lanes_; }
  uint64_t num_steps() const { return num_steps_; }
  uint64_t num_samples() const;  // in all batches of all lanes
  bool is_rest() const { return !sections_.empty() && sections_[0].rest != nullptr; }
  // The batch of one lane in one step; `out` is replaced. Returns its section (bucket).
  uint32_t batch(uint64_t step, uint32_t lane, std::vector<PlannedSample>& out) const;
  // What is left after `step` whole steps and, of the next, the first `micro` of the
  // `lanes_per_rank` lanes of every rank, in its order.
  std::vector<PlannedSample> rest_after(uint64_t step, uint32_t micro,
                                        uint32_t lanes_per_rank) const;

 private:
  friend class Sampler;
  struct Section {
    std::shared_ptr<const LaneOrder> order;
    uint32_t bucket = 0;
    uint32_t batch_size = 0;
    uint64_t steps = 0;
    uint64_t position_base = 0;
    // batch_duration without buckets: first item of each batch, + end. Batch k is that of lane
    // k % lanes in step k / lanes; item i is the i / lanes-th of lane i % lanes in `order`.
    std::vector<uint64_t> batch_starts;
    // The same as earlier versions did it: first item of each step in every lane, + end.
    std::vector<uint64_t> starts;
    // Of the rest of an epoch: the samples of `order` with the positions they had in the whole.
    std::shared_ptr<const std::vector<PlannedSample>> rest;
  };
  struct StepPlace {
    uint32_t section;
    uint64_t local;
  };
  StepPlace place(uint64_t step, uint32_t lane) const;
  PlannedSample item(const Section& section, uint64_t number) const;
  // Of lane `lane` or, with batch_starts, of all lanes: items that are in batches.
  static uint64_t planned(const Section& section);
  void add_section(Section section, bool drop_last);
  void chain_all();

  uint32_t epoch_ = 0;
  uint32_t num_lanes_ = 1;
  uint64_t num_steps_ = 0;
  std::vector<Section> sections_;
  // One section after another: per order, the sections and the step each begins at.
  struct Chain {
    std::vector<uint32_t> sections;
    std::vector<uint64_t> first_step;
  };
  std::vector<Chain> chains_;  // one for all lanes, or one per lane
  // Interleaved: the section of each step, and its number inside the section.
  std::vector<uint32_t> step_section_, step_local_;
};

class Sampler {
 public:
  struct Options {
    uint64_t seed = 0;
    bool compat_nemo = false;
    uint32_t virtual_ranks = 1;
    ShuffleLevel shuffle_level = ShuffleLevel::kSample;
    Packing packing = Packing::kLhotse;
  };

  // Checks the combination of keys; estimates bins where asked for. `set` is shared, not copied.
  static Result<Sampler> make(std::shared_ptr<const SampleSet> set, const SamplingConfig& config,
                              const Options& options);

  std::shared_ptr<const EpochPlan> plan(uint32_t epoch) const;
  // Batches of what another plan left of the epoch: each sample once, in the order they had, with
  // the random streams they had.
  std::shared_ptr<const EpochPlan> plan_rest(uint32_t epoch,
                                             const std::vector<PlannedSample>& rest) const;
  // The sampler of the same data with other batches.
  Result<Sampler> with(const Batching& batching, uint32_t virtual_ranks, Packing packing) const;
  Batching batching() const { return config_; }

  uint32_t num_lanes() const { return options_.virtual_ranks; }
  Packing packing() const { return options_.packing; }
  // Batches are packed to batch_duration one by one, and the last sample may make one too long.
  bool packs_as_lhotse() const {
    return options_.packing == Packing::kLhotse && packs_one_by_one() &&
           config_.bucket_batch_size.empty();
  }
  bool packs_within_budget() const {
    return options_.packing == Packing::kWithinBudget && packs_one_by_one();
  }
  // Samples per batch and lane, the largest of any section.
  uint32_t max_batch_size() const { return max_batch_size_; }
  const SampleSet& set() const { return *set_; }
  // Empty unless buckets are by duration; one entry per bucket: its interval and size.
  struct BucketInfo {
    double low_s = 0.0;
    double longest_s = 0.0;
    uint32_t batch_size = 0;
    uint64_t samples = 0;
  };
  const std::vector<BucketInfo>& buckets() const { return bucket_info_; }
  uint64_t dropped_too_long() const { return dropped_; }  // beyond the last bucket_duration_bins
  // Differs when anything that decides the order differs (not the epoch).
  uint64_t fingerprint() const { return fingerprint_; }

 private:
  enum class Mode : uint8_t { kPlain, kConcat, kClassicBuckets, kDurationBuckets };
  Sampler() = default;
  Status set_up_concat();
  Status set_up_classic();
  Status set_up_durations();
  std::shared_ptr<const LaneOrder> group_order(size_t group, uint32_t epoch, uint64_t stream,
                                               bool shuffle) const;
  std::shared_ptr<const LaneOrder> concat_order(uint32_t epoch) const;
  void plan_durations(EpochPlan& plan) const;
  void interleave(EpochPlan& plan) const;
  bool packs_one_by_one() const {
    return config_.batch_duration && !config_.use_bucketing && !buckets_.upper_bounds;
  }
  // The section of a sample: its bucket or, in mixtures and plain data, 0.
  size_t section_of(uint32_t sample) const;
  void carry_to_longer(std::vector<std::vector<PlannedSample>>& lists) const;
  void pack(EpochPlan& plan, EpochPlan::Section& section) const;
  void pack_as_lhotse(EpochPlan& plan, EpochPlan::Section& section) const;
  void pack_within_budget(EpochPlan& plan, EpochPlan::Section& section) const;
  double cost_of(uint32_t sample) const;

  std::shared_ptr<const SampleSet> set_;
  SamplingConfig config_;
  Options options_;
  Mode mode_ = Mode::kPlain;
  uint32_t batch_size_ = 1;
  uint32_t max_batch_size_ = 1;
  uint32_t shuffle_n_ = 0;
  std::vector<BucketRepeat> repeats_;
  std::vector<uint32_t> bucket_batch_sizes_;
  std::vector<double> concat_p_;
  DurationBuckets buckets_;
  std::vector<std::shared_ptr<const std::vector<uint32_t>>> bucket_samples_;
  std::vector<BucketInfo> bucket_info_;
  uint64_t dropped_ = 0;
  double longest_s_ = 0.0;  // stands in for unknown durations
  uint64_t fingerprint_ = 0;
};

// p_i = (n_i / sum n)^(1 / temperature), normalised.
std::vector<double> temperature_probabilities(std::span<const uint64_t> sizes, double temperature);

}  // namespace aerie::data
