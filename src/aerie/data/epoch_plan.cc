#include "aerie/data/epoch_plan.h"

#include <algorithm>

#include "aerie/base/check.h"

namespace aerie::data {

uint64_t EpochPlan::num_samples() const {
  uint64_t total = 0;
  for (const Section& section : sections_)
    for (uint32_t v = 0; v < num_lanes_; ++v) {
      const uint64_t end =
          section.starts.empty() ? section.steps * section.batch_size : section.starts.back();
      total += std::min(end, section.order->lane_size(v));
    }
  return total;
}

void EpochPlan::add_section(Section section, bool drop_last) {
  const uint64_t most = section.order->max_lane();
  if (section.starts.empty()) {
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
  const uint64_t first =
      section.starts.empty() ? at.local * section.batch_size : section.starts[at.local];
  const uint64_t wanted =
      section.starts.empty() ? first + section.batch_size : section.starts[at.local + 1];
  const uint64_t last = std::min(wanted, section.order->lane_size(lane));
  out.clear();
  for (uint64_t j = first; j < last; ++j) {
    const uint64_t item = j * num_lanes_ + lane;
    out.push_back(section.rest != nullptr
                      ? (*section.rest)[item]
                      : PlannedSample{section.order->at(lane, j), section.position_base + item});
  }
  return section.bucket;
}

std::vector<PlannedSample> EpochPlan::rest_after(uint64_t step, uint32_t micro) const {
  std::vector<PlannedSample> out, batch_samples;
  for (uint64_t s = step; s < num_steps_; ++s) {
    for (uint32_t lane = s == step ? micro : 0; lane < num_lanes_; ++lane) {
      batch(s, lane, batch_samples);
      out.insert(out.end(), batch_samples.begin(), batch_samples.end());
    }
  }
  // What drop_last left out under the old batches may fill a batch of the new ones.
  for (const Section& section : sections_) {
    const uint64_t planned =
        section.starts.empty() ? section.steps * section.batch_size : section.starts.back();
    for (uint64_t j = planned; j < section.order->max_lane(); ++j)
      for (uint32_t lane = 0; lane < num_lanes_; ++lane) {
        if (j >= section.order->lane_size(lane)) continue;
        const uint64_t item = j * num_lanes_ + lane;
        out.push_back(section.rest != nullptr ? (*section.rest)[item]
                                              : PlannedSample{section.order->at(lane, j),
                                                              section.position_base + item});
      }
  }
  return out;
}

}  // namespace aerie::data
