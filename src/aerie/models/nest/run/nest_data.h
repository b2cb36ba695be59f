// The data sets of a NEST run as the loop's sources. No torch here.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/config/schema/nest_config.h"
#include "aerie/data/batching.h"
#include "aerie/train/bad_sample_log.h"
#include "aerie/train/loader_source.h"
#include "aerie/train/trainer.h"

namespace aerie::train {

struct NestDataOptions {
  Env* env = nullptr;
  bool train = true;
  bool validation = true;
  bool test = false;      // model.test_ds instead of model.validation_ds
  bool gpu = false;       // batches go to a GPU: page-locked memory, mixing there
  int64_t gpu_index = 0;  // which one
  bool quiet = false;     // no progress, no notes about the training set
  std::shared_ptr<BadSampleLog> bad_samples;  // bad_samples.jsonl; null: only logged
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

// overfit_batches is given.
bool overfits(const config::TrainerConfig& trainer);

}  // namespace aerie::train
