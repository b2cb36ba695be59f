// `aerie train --dry-run`: everything a run does, once, before hours are spent on it. Opens all
// manifests, shard indexes and noise, builds the model, loads the weights the run would start from,
// trains on the largest batch that every bucket of the data can give and on a few real ones,
// validates, saves and loads (in a temporary folder where the run would write, removed afterwards),
// and says what the run will need. Leaves nothing behind except the indexes that data sets keep.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/data/loader.h"
#include "aerie/models/nest/config/run_config_loader.h"
#include "aerie/train/dry_run.h"

namespace aerie::train {

struct DryRunOptions {
  const config::LoadedConfig* config = nullptr;
  Env* env = nullptr;
  std::function<bool()> stop;  // may be empty
};

struct DryRunSet {
  std::string name;  // "train", "validation", or the set's own
  uint64_t samples = 0;
  double audio_s = 0.0;        // of the clips whose duration is known
  int64_t batches = 0;         // an epoch, or a validation
  int64_t worst_rows = 0;      // the largest batch
  double worst_seconds = 0.0;  // its longest clip
};

// The largest batch of a bucket, trained on once.
struct DryRunBucket {
  int64_t bucket = 0;  // counted from 0, the shortest clips first
  int64_t rows = 0;
  double seconds = 0.0;  // of its longest clip
  double step_ms = 0.0;
  double memory_gib = 0.0;  // the most so far: of the driver, else of the engine
};

struct DryRunReport : JobDryRun {
  std::vector<DryRunSet> sets;        // the training set first
  std::vector<DryRunBucket> buckets;  // in the order they were tried, small ones first
  double memory_before_gib = 0.0;     // before the first of them
  Measurement worst;                  // on the largest batch, cut as the others

  std::string to_text() const;
  std::string to_json() const;
};

Result<DryRunReport> dry_run_nest(const DryRunOptions& options);

// Rows and samples of the largest batch an epoch of the loader can contain, by padded size.
struct BatchShape {
  int64_t rows = 0;
  int64_t samples = 0;
  int64_t bucket = 0;
  int64_t size() const { return rows * samples; }
};
BatchShape worst_batch(const data::Loader& loader, const config::DatasetConfig& dataset);
// The same of every bucket, the largest last.
std::vector<BatchShape> worst_batches(const data::Loader& loader,
                                      const config::DatasetConfig& dataset);

}  // namespace aerie::train
