// What a loader works out before its first batch: sizes, memory, warnings. Used by loader.cc only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "aerie/base/status.h"
#include "aerie/data/batch_builder.h"
#include "aerie/data/epoch_plan.h"
#include "aerie/data/loader.h"

namespace aerie::data {

struct LoaderSetup {
  int num_workers = 0;  // threads; for "auto" the most there can be
  bool auto_workers = false;
  int prefetch_factor = 2;
  int num_slots = 0;  // batches in the ring, the consumer's included
  uint32_t lanes_per_rank = 1;
  uint64_t budget_bytes = 0;
  uint64_t worker_bytes = 0;  // decoders' buffers, all workers; part of the budget
  double expected_padding = 0.0;
  std::shared_ptr<const EpochPlan> first_plan;  // epoch 0
};

// Fills `rules` and the setup. The budget object must outlive the rules.
Result<LoaderSetup> set_up_loader(std::shared_ptr<const AudioDataset> dataset,
                                  const config::DatasetConfig& config,
                                  const config::AerieConfig& aerie, const LoaderOptions& options,
                                  const Sampler& sampler, BuildRules& rules);

// Disk, cores and memory: one line each, with the key to change.
void warn_about_machine(const AudioDataset& dataset, const LoaderSetup& setup);

}  // namespace aerie::data
