// The rest of an epoch that a run goes on with in other batches.
#include <algorithm>
#include <utility>

#include "aerie/data/epoch_plan.h"

namespace aerie::data {

Result<Sampler> Sampler::with(const Batching& batching, uint32_t virtual_ranks,
                              Packing packing) const {
  SamplingConfig config = config_;
  static_cast<Batching&>(config) = batching;
  Options options = options_;
  options.virtual_ranks = virtual_ranks;
  options.packing = packing;
  return make(set_, config, options);
}

size_t Sampler::section_of(uint32_t sample) const {
  if (mode_ == Mode::kDurationBuckets) return buckets_.find(set_->length(sample));
  if (mode_ != Mode::kClassicBuckets) return 0;
  const auto after =
      std::upper_bound(set_->groups.begin(), set_->groups.end(), sample,
                       [](uint32_t value, const SampleGroup& group) { return value < group.end; });
  return static_cast<size_t>(after - set_->groups.begin());
}

// What fills no batch of its bucket goes to the next longer one, where batches are not larger: of
// the rest of an epoch less than one batch is lost, not one a bucket.
void Sampler::carry_to_longer(std::vector<std::vector<PlannedSample>>& lists) const {
  for (size_t b = 0; b < lists.size(); ++b) {
    const uint64_t step = uint64_t{bucket_batch_sizes_[b]} * options_.virtual_ranks;
    const uint64_t over = lists[b].size() % step;
    if (over == 0) continue;
    size_t to = b + 1;
    while (to < lists.size() &&
           (bucket_info_[to].samples == 0 || bucket_batch_sizes_[to] > bucket_batch_sizes_[b]))
      ++to;
    if (to == lists.size()) continue;
    const auto from = lists[b].end() - static_cast<std::ptrdiff_t>(over);
    lists[to].insert(lists[to].end(), from, lists[b].end());
    lists[b].erase(from, lists[b].end());
  }
}

std::shared_ptr<const EpochPlan> Sampler::plan_rest(uint32_t epoch,
                                                    const std::vector<PlannedSample>& rest) const {
  auto plan = std::make_shared<EpochPlan>();
  plan->epoch_ = epoch;
  plan->num_lanes_ = options_.virtual_ranks;
  const size_t buckets = mode_ == Mode::kPlain || mode_ == Mode::kConcat
                             ? 1
                             : std::max<size_t>(1, bucket_batch_sizes_.size());
  std::vector<std::vector<PlannedSample>> lists(buckets);
  std::vector<uint32_t> in_order;  // of the buckets, as their first samples come
  for (const PlannedSample& sample : rest) {
    const size_t bucket = section_of(sample.sample);
    if (bucket >= buckets) continue;  // longer than the last of the new bins
    if (lists[bucket].empty()) in_order.push_back(static_cast<uint32_t>(bucket));
    lists[bucket].push_back(sample);
  }
  if (mode_ == Mode::kDurationBuckets) {
    if (config_.drop_last && !packs_one_by_one()) carry_to_longer(lists);
    // Duration buckets are numbered by length, as in a whole epoch.
    in_order.clear();
    for (uint32_t b = 0; b < buckets; ++b)
      if (!lists[b].empty()) in_order.push_back(b);
  }
  for (const uint32_t bucket : in_order) {
    auto ids = std::make_shared<std::vector<uint32_t>>();
    for (const PlannedSample& sample : lists[bucket]) ids->push_back(sample.sample);
    EpochPlan::Section section;
    section.bucket = bucket;
    section.batch_size =
        buckets == 1 && mode_ != Mode::kDurationBuckets ? batch_size_ : bucket_batch_sizes_[bucket];
    section.order = std::make_shared<MapOrder>(std::move(ids), /*shuffle=*/false, plan->num_lanes_,
                                               OrderKey{options_.seed, epoch, 0});
    section.rest = std::make_shared<const std::vector<PlannedSample>>(std::move(lists[bucket]));
    if (mode_ == Mode::kDurationBuckets && packs_one_by_one()) pack(*plan, section);
    plan->add_section(std::move(section), config_.drop_last);
  }
  if (mode_ == Mode::kDurationBuckets) {
    interleave(*plan);
  } else {
    plan->chain_all();
  }
  return plan;
}

}  // namespace aerie::data
