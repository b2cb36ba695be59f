// The data sets of a NEST run as the loop's sources. No torch here.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/data/batching.h"
#include "aerie/models/nest/config/nest_config.h"
#include "aerie/train/job.h"
#include "aerie/train/loader_source.h"

namespace aerie::train {

struct NestDataOptions : DataOptions {
  // Of a run that is gone on with: its rule, and what its batches may have been made with.
  data::Packing packing = data::Packing::kLhotse;
  std::vector<data::Batching> earlier_batching;
};

struct NestData {
  std::unique_ptr<LoaderSource> train;                    // null: not asked for
  std::vector<std::unique_ptr<LoaderSource>> evaluation;  // validation or test
  std::vector<ValidationSet> sets;                        // of them, with the limits applied
};

// Opens manifests, shard indexes and noise; starts the loaders. Errors name the node.
Result<NestData> open_nest_data(const config::RunConfig& run, const NestDataOptions& options);

// "12,345 utterances, 20 h 31 min", after filters.
std::string amount_of_data(const std::vector<LoaderSource*>& sources);

// overfit_batches is given.
bool overfits(const config::TrainerConfig& trainer);

}  // namespace aerie::train
