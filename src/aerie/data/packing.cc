// batch_duration without buckets: how many samples of an order make a batch.
#include <algorithm>
#include <cmath>

#include "aerie/data/epoch_plan.h"

namespace aerie::data {

void Sampler::pack(EpochPlan& plan, EpochPlan::Section& section) const {
  if (packs_as_lhotse())
    pack_as_lhotse(plan, section);
  else
    pack_within_budget(plan, section);
}

double Sampler::cost_of(uint32_t sample) const {
  const double d = set_->length(sample);
  return effective_duration(std::isnan(d) ? longest_s_ : d, config_.quadratic_duration.value_or(0));
}

// Lhotse's DynamicCutSampler: a batch is taken from one order for all lanes and dealt to the next
// of them. The sample that makes it too long is still in it, as there.
void Sampler::pack_as_lhotse(EpochPlan& plan, EpochPlan::Section& section) const {
  const uint32_t lanes = plan.num_lanes_;
  const uint64_t most = static_cast<uint64_t>(config_.batch_size.value_or(kMaxBatch));
  const uint64_t total = section.order->total();
  std::vector<uint64_t>& starts = section.batch_starts;
  starts.assign(1, 0);
  double longest = 0.0;
  for (uint64_t i = 0; i < total; ++i) {
    longest =
        std::max(longest, cost_of(section.order->at(static_cast<uint32_t>(i % lanes), i / lanes)));
    const uint64_t count = i + 1 - starts.back();
    if (count >= most || static_cast<double>(count + 1) * longest > *config_.batch_duration) {
      starts.push_back(i + 1);
      longest = 0.0;
    }
  }
  if (starts.back() < total && !config_.drop_last) starts.push_back(total);
  // A last step that has not a batch for every lane is left out, or its samples are shared out
  // anew.
  const uint64_t whole = (starts.size() - 1) / lanes * lanes;
  if (whole == starts.size() - 1) return;
  const uint64_t left = starts.back() - starts[whole];
  starts.resize(whole + 1);
  if (config_.drop_last) return;
  for (uint32_t lane = 0; lane < lanes; ++lane)
    starts.push_back(starts.back() + left / lanes + (lane < left % lanes ? 1 : 0));
}

// The rule of earlier versions, for runs that began with it: all lanes have equally many samples in
// a step, and it ends before the sample that does not fit.
void Sampler::pack_within_budget(EpochPlan& plan, EpochPlan::Section& section) const {
  const double limit = *config_.batch_duration * (1 + 1e-12);
  const uint64_t most = static_cast<uint64_t>(config_.batch_size.value_or(1 << 20));
  const LaneOrder& order = *section.order;
  const uint64_t end = config_.drop_last ? order.min_lane() : order.max_lane();
  section.starts.assign(1, 0);
  double longest = 0.0;
  for (uint64_t j = 0; j < end; ++j) {
    double cost = 0.0;
    for (uint32_t v = 0; v < plan.num_lanes_; ++v) {
      if (j >= order.lane_size(v)) continue;
      cost = std::max(cost, cost_of(order.at(v, j)));
    }
    const uint64_t count = j - section.starts.back();
    const double with = std::max(longest, cost);
    if (count > 0 && (static_cast<double>(count + 1) * with > limit || count >= most)) {
      section.starts.push_back(j);
      longest = cost;
    } else {
      longest = with;
    }
  }
  // What remains is a batch that the data's end cut short.
  const uint64_t count = end - section.starts.back();
  const bool full =
      count > 0 && (static_cast<double>(count + 1) * longest > limit || count >= most);
  if (count > 0 && (full || !config_.drop_last)) section.starts.push_back(end);
}

}  // namespace aerie::data
