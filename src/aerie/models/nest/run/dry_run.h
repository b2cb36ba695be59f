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
#include "aerie/train/measure.h"

namespace aerie::train {

struct DryRunOptions {
  const config::LoadedConfig* config = nullptr;
  Env* env = nullptr;
  int64_t real_steps = 3;      // batches of the data set that are trained on
  std::function<bool()> stop;  // may be empty
};

struct DryRunSet {
  std::string name;  // "train", "validation", or the set's own
  uint64_t samples = 0;
  double audio_s = 0.0;        // of the clips whose duration is known
  int64_t batches = 0;         // an epoch, or a validation
  int64_t worst_rows = 0;      // the largest batch
  double worst_seconds = 0.0;  // its longest clip
  std::string loader;          // one line about it
};

// The largest batch of a bucket, trained on once.
struct DryRunBucket {
  int64_t bucket = 0;  // counted from 0, the shortest clips first
  int64_t rows = 0;
  double seconds = 0.0;  // of its longest clip
  double step_ms = 0.0;
  double memory_gib = 0.0;  // the most so far: of the driver, else of the engine
};

struct DryRunReport {
  std::vector<DryRunSet> sets;        // the training set first
  std::vector<DryRunBucket> buckets;  // in the order they were tried, small ones first
  double memory_before_gib = 0.0;     // before the first of them
  std::string engine;
  int64_t parameters = 0;
  std::string start;        // where the weights come from
  std::string run_dir;      // where the run would live
  Measurement worst;        // on the largest batch
  int64_t worst_split = 1;  // parts it had to be cut into to fit
  Measurement real;         // on batches of the data set
  double validation_batch_ms = 0.0;
  double save_ms = 0.0, load_ms = 0.0;
  uint64_t checkpoint_bytes = 0, nemo_bytes = 0, free_bytes = 0;
  double peak_gib = 0.0, total_gib = 0.0;
  double device_used_gib = 0.0;  // the most the driver saw, contexts and other programs included
  bool on_gpu = false;
  double step_s = 0.0, epoch_s = 0.0;  // epochs with their validations
  double total_s = -1.0;               // of the whole run; -1: without end
  int64_t steps_per_epoch = 0, planned_steps = -1;
  std::vector<std::string> notes;  // what the user should know

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
