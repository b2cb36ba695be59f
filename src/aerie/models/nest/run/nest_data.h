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

// Opens manifests, shard indexes and noise; starts the loaders. Errors name the node.
Result<JobData> open_nest_data(const config::RunConfig& run, const NestDataOptions& options);

// Every source of NEST's data is one.
inline data::Loader& loader_of(const std::unique_ptr<BatchSource>& source) {
  return static_cast<LoaderSource&>(*source).loader();
}

}  // namespace aerie::train
