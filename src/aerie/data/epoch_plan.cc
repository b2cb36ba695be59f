#include "aerie/data/epoch_plan.h"

#include <algorithm>

#include "aerie/base/check.h"

namespace aerie::data {

uint64_t EpochPlan::num_samples() const {
  uint64_t total = 0;
  for (const Section& section : sections_) {
    if (!section.batch_starts.empty()) {
      total += section.batch_starts.back();
      continue;
    }
    for (uint32_t v = 0; v < num_lanes_; ++v)
      total += std::min(planned(section), section.order->lane_size(v));
  }
  return total;
}

uint64_t EpochPlan::planned(const Section& section) {
  if (!section.batch_starts.empty()) return section.batch_starts.back();
  return section.starts.empty() ? section.steps * section.batch_size : section.starts.back();
}

PlannedSample EpochPlan::item(const Section& section, uint64_t number) const {
  if (section.rest != nullptr) return (*section.rest)[number];
  return {section.order->at(static_cast<uint32_t>(number % num_lanes_), number / num_lanes_),
          section.position_base + number};
}

void EpochPlan::add_section(Section section, bool drop_last) {
  const uint64_t most = section.order->max_lane();
  if (!section.batch_starts.empty()) {
    section.steps = (section.batch_starts.size() - 1) / num_lanes_;
  } else if (section.starts.empty()) {
    const uint64_t size = section.batch_size;
    section.steps = drop_last ? section.order->min_lane() / size : (most + size - 1) / size;
  } else {
    section.steps = section.starts.size() - 1;
  }
  section.position_base =
      sections_.empty() ? 0
                        : sections_.back().position_base + sections_.back().order->max_lane() *
                                                               static_cast<uint64_t>(num_lanes_);
  num_steps_ += section.steps;
  sections_.push_back(std::move(section));
}

// All sections in their order, the same for every lane.
void EpochPlan::chain_all() {
  Chain chain;
  uint64_t step = 0;
  for (uint32_t s = 0; s < sections_.size(); ++s) {
    chain.sections.push_back(s);
    chain.first_step.push_back(step);
    step += sections_[s].steps;
  }
  chains_.assign(1, std::move(chain));
}

EpochPlan::StepPlace EpochPlan::place(uint64_t step, uint32_t lane) const {
  if (!step_section_.empty()) return {step_section_[step], step_local_[step]};
  const Chain& chain = chains_.size() == 1 ? chains_[0] : chains_[lane];
  // The last section that begins at or before the step; empty sections begin where the next does.
  const size_t k =
      static_cast<size_t>(std::upper_bound(chain.first_step.begin(), chain.first_step.end(), step) -
                          chain.first_step.begin()) -
      1;
  return {chain.sections[k], step - chain.first_step[k]};
}

uint32_t EpochPlan::batch(uint64_t step, uint32_t lane, std::vector<PlannedSample>& out) const {
  AERIE_CHECK(step < num_steps_ && lane < num_lanes_, "step ", step, " of ", num_steps_, ", lane ",
              lane, " of ", num_lanes_);
  const StepPlace at = place(step, lane);
  const Section& section = sections_[at.section];
  out.clear();
  if (!section.batch_starts.empty()) {
    const uint64_t k = at.local * num_lanes_ + lane;
    for (uint64_t i = section.batch_starts[k]; i < section.batch_starts[k + 1]; ++i)
      out.push_back(item(section, i));
    return section.bucket;
  }
  const uint64_t first =
      section.starts.empty() ? at.local * section.batch_size : section.starts[at.local];
  const uint64_t wanted =
      section.starts.empty() ? first + section.batch_size : section.starts[at.local + 1];
  const uint64_t last = std::min(wanted, section.order->lane_size(lane));
  for (uint64_t j = first; j < last; ++j) out.push_back(item(section, j * num_lanes_ + lane));
  return section.bucket;
}

std::vector<PlannedSample> EpochPlan::rest_after(uint64_t step, uint32_t micro,
                                                 uint32_t lanes_per_rank) const {
  std::vector<PlannedSample> out, batch_samples;
  for (uint64_t s = step; s < num_steps_; ++s) {
    for (uint32_t lane = 0; lane < num_lanes_; ++lane) {
      if (s == step && lane % lanes_per_rank < micro) continue;
      batch(s, lane, batch_samples);
      out.insert(out.end(), batch_samples.begin(), batch_samples.end());
    }
  }
  // What drop_last left out under the old batches may fill a batch of the new ones.
  for (const Section& section : sections_) {
    if (!section.batch_starts.empty()) {
      for (uint64_t i = planned(section); i < section.order->total(); ++i)
        out.push_back(item(section, i));
      continue;
    }
    for (uint64_t j = planned(section); j < section.order->max_lane(); ++j)
      for (uint32_t lane = 0; lane < num_lanes_; ++lane)
        if (j < section.order->lane_size(lane)) out.push_back(item(section, j * num_lanes_ + lane));
  }
  return out;
}

}  // namespace aerie::data
