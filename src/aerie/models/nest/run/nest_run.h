// One NEST training run, from a checked configuration to the closing lines: run folder, resume,
// data, engine, loop, report.
#pragma once

#include <string>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/config/schema/run_config_loader.h"

namespace aerie::train {

struct NestRunOptions {
  const config::LoadedConfig* config = nullptr;
  std::string command;       // as typed, for cmd-args.log
  std::string version_text;  // for the report
  Env* env = nullptr;
  bool quiet = false;  // no progress line (tests)
};

struct NestRunResult {
  std::string run_dir;          // empty: nothing was kept (fast_dev_run)
  std::string last_checkpoint;  // directory; empty: none
  std::string best_checkpoint;
  std::string nemo;  // empty: not written
  std::string report;
  std::string trace;  // trace.json; empty: not profiled
  std::string verdict;
  std::string stop_reason;
  std::string stop_sentence;  // "finished after step 1000"
  int64_t step = 0;
  bool healthy = true;     // see StepHealth
  std::string health;      // what was wrong with the latest steps; empty: nothing
  bool on_signal = false;  // stopped by a signal, to be gone on with
};

// Trains. Stopped by a signal it has saved and returns ok.
Result<NestRunResult> run_nest_training(const NestRunOptions& options);

}  // namespace aerie::train
