// The folder of a run about to begin and what it starts from. Rank 0 chooses, locks and describes
// the folder; the others are told, and read the checkpoint that it found.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aerie/base/clock.h"
#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/base/temp_dir.h"
#include "aerie/config/value.h"
#include "aerie/train/run.h"
#include "aerie/train/run_folder.h"
#include "aerie/train/run_lock.h"
#include "aerie/train/run_start.h"

namespace aerie::train {

struct RunPlace {
  // False under fast_dev_run, which keeps nothing, as exp_manager does nothing under it: no folder,
  // no checkpoints, no loggers.
  bool keep = true;
  std::unique_ptr<TempDir> scratch;  // without keep, on rank 0
  RunFolder folder;
  ResumePlan plan;
  std::vector<std::unique_ptr<RunLock>> locks;  // rank 0
  StartPoint point;
  std::string config_yaml;
  Result<config::Value> previous_config = not_found("no earlier start");

  bool resumed() const { return plan.kind != ResumePlan::Kind::kFresh; }
};

// Also opens the log files of this rank.
Result<RunPlace> open_run_place(Job& job, const RunOptions& options, Clock& clock);

}  // namespace aerie::train
