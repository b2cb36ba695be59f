// What a loader works out before its first batch: sizes, memory, warnings. Used by loader.cc, and
// by `data stats`, which tells what a loader would do.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "aerie/base/status.h"
#include "aerie/data/epoch_plan.h"
#include "aerie/data/loader.h"
#include "aerie/data/speech/batch_builder.h"

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

// How the loader has its epochs planned.
Result<Sampler::Options> loader_sampler_options(const config::AerieConfig& aerie,
                                                const LoaderOptions& options);
// Samples that shorter recordings are filled up to.
int64_t loader_min_samples(const config::AerieConfig& aerie, int sample_rate);

// The batches of an epoch as the manifest lets expect them (of a large one, evenly spaced ones).
struct PlanShapes {
  std::vector<int64_t> needs;  // longest row of each batch, in samples
  std::vector<int64_t> rows;
  Capacities capacities;
  double padding_share = 0.0;  // of rows x capacity
};
PlanShapes plan_shapes(const EpochPlan& plan, const AudioDataset& dataset,
                       const Perturber& perturber, int64_t min_samples, int64_t max_shapes,
                       int64_t capacity_multiple);

// Fills `rules` and the setup. The budget object must outlive the rules.
Result<LoaderSetup> set_up_loader(std::shared_ptr<const AudioDataset> dataset,
                                  const config::DatasetConfig& config,
                                  const config::AerieConfig& aerie, const LoaderOptions& options,
                                  const Sampler& sampler, BuildRules& rules);

// Disk, cores and memory: one line each, with the key to change.
void warn_about_machine(const AudioDataset& dataset, const LoaderSetup& setup);

}  // namespace aerie::data
