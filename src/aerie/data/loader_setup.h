// What a loader works out before its first batch: sizes, memory, warnings.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "aerie/base/status.h"
#include "aerie/data/epoch_plan.h"
#include "aerie/data/loader.h"
#include "aerie/data/storage.h"

namespace aerie::data {

struct LoaderSetup {
  int num_workers = 0;  // threads; for "auto" the most there can be
  bool auto_workers = false;
  int prefetch_factor = 2;
  int num_slots = 0;  // batches in the ring, the consumer's included
  uint32_t lanes_per_rank = 1;
  bool fixed_lanes = false;  // virtual_ranks is given
  uint64_t budget_bytes = 0;
  uint64_t worker_bytes = 0;  // decoders' buffers, all workers; part of the budget
  BatchSizes sizes;
  std::shared_ptr<const EpochPlan> first_plan;  // epoch 0
  std::string example_path;                     // of the data set
  StorageInfo storage;                          // where that lies
  uint64_t left_out = 0;                        // Dataset::left_out()
};

// How the loader has its epochs planned.
Result<Sampler::Options> loader_sampler_options(const LoaderConfig& config,
                                                const LoaderOptions& options);

Result<LoaderSetup> set_up_loader(const Dataset& dataset, BatchAssembler& assembler,
                                  const LoaderConfig& config, const LoaderOptions& options,
                                  const Sampler& sampler);

// Disk, cores and memory: one line each, with the key to change.
void warn_about_machine(const Dataset& dataset, const LoaderSetup& setup);

}  // namespace aerie::data
