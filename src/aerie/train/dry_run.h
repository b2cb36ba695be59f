// `aerie train --dry-run` for any family: everything a run does, once, before hours are spent on
// it. Opens the data, builds the engine, loads what the run would start from, trains on a few
// batches, validates on one, saves and loads (in a temporary folder where the run would write,
// removed afterwards), and says what the run will need. Leaves nothing behind except the indexes
// that data sets keep.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/config/schema/devices.h"
#include "aerie/metrics/nvml.h"
#include "aerie/train/job.h"
#include "aerie/train/measure.h"
#include "aerie/train/run_folder.h"

namespace aerie::train {

struct JobDryRunOptions {
  Env* env = nullptr;
  int64_t steps = 3;             // batches that are trained on and timed; one more comes first
  std::function<bool()> stop;    // may be empty
  std::string initialised_from;  // weights that a fresh run reads; empty: not said
};

struct JobDryRun {
  std::string training_data, validation_data, loader;  // as JobData says
  int64_t batches_per_epoch = 0, steps_per_epoch = 0, planned_steps = -1;
  int64_t validation_batches = 0;
  std::string engine;
  int64_t parameters = 0;
  std::string start;    // where the weights come from
  std::string run_dir;  // where the run would live
  Measurement measured;
  std::string throughput_unit;
  int64_t split = 1;                                    // parts a batch had to be cut into to fit
  std::vector<std::pair<std::string, double>> numbers;  // of one validation batch
  double validation_batch_ms = 0.0, save_ms = 0.0, load_ms = 0.0;
  uint64_t checkpoint_bytes = 0, archive_bytes = 0, free_bytes = 0;
  double peak_gib = 0.0, total_gib = 0.0;
  double device_used_gib = 0.0;  // the most the driver saw, contexts and other programs included
  bool on_gpu = false;
  double step_s = 0.0, epoch_s = 0.0;
  double total_s = -1.0;           // of the whole run; -1: without end
  std::vector<double> rates;       // learning rates of the first step
  std::vector<std::string> notes;  // what the user should know

  std::string to_text() const;
  std::string to_json() const;
};

// A row of the text: its name, what is to be said.
std::string dry_run_row(const char* name, const std::string& text);

// A family's own adds what it alone tries.
class JobDryRunner {
 public:
  JobDryRunner(Job& job, const JobDryRunOptions& options)
      : job_(job), options_(options), env_(*options.env), run_(job.config()) {}
  virtual ~JobDryRunner() = default;
  Result<JobDryRun> go();

 protected:
  virtual Status before_steps() { return ok_status(); }
  virtual Status before_validation() { return ok_status(); }
  MeasureOptions measure_options(int64_t warmup, int64_t steps) const;
  bool splits(const Status& status) const;  // out of memory, which smaller parts may help
  double memory_now() const;  // in GiB: what the driver sees, else what the engine knows of
  Status check_stop() const;

  Job& job_;
  const JobDryRunOptions options_;
  Env& env_;
  const config::LoopConfig& run_;
  JobData data_;
  Cadence cadence_;
  BuiltEngine engine_;
  JobDryRun out_;

 private:
  Status open_data();
  Status build_engine();
  Status train();
  Status validate();
  Status save_and_load();
  void estimate();

  config::DevicePlan devices_;
  std::unique_ptr<metrics::NvmlSampler> nvml_;
  RunFolder folder_;
  int64_t start_step_ = 0;
};

}  // namespace aerie::train
