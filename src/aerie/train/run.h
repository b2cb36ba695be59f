// One training run, from a job (job.h) to the closing lines: run folder, resume, data, engine,
// loop, report.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/train/job.h"

namespace aerie::train {

struct RunOptions {
  std::string command;       // as typed, for cmd-args.log
  std::string version_text;  // for the report
  Env* env = nullptr;
  bool quiet = false;  // no progress line (tests)
  // What was decided before the run began, for its log.
  std::vector<std::string> notes;
  // The processes that train together, this one among them; null: it trains alone.
  std::shared_ptr<dist::ProcessGroup> ranks;
  // A restart after a lost rank: go on in this folder, from its newest checkpoint when there is
  // one, whatever exp_manager says about resuming. Empty: as configured.
  std::string resume_folder;
  std::function<void(const std::string& folder)> on_folder;  // told once it is known; may be empty
};

struct RunResult {
  std::string run_dir;          // empty: nothing was kept (fast_dev_run)
  std::string last_checkpoint;  // directory; empty: none
  std::string best_checkpoint;
  std::string archive;  // the exported model; empty: not written
  std::string report;
  std::string trace;  // trace.json; empty: not profiled
  std::string verdict;
  std::string stop_reason;
  std::string stop_sentence;  // "finished after step 1000"
  int64_t step = 0;
  bool healthy = true;     // see StepHealth
  std::string health;      // what was wrong with the latest steps; empty: nothing
  std::string advice;      // what to try then
  bool on_signal = false;  // stopped by a signal, to be gone on with
  int signal = 0;          // which one
};

// Trains. Stopped by a signal it has saved and returns ok.
Result<RunResult> run_training(Job& job, const RunOptions& options);

}  // namespace aerie::train
