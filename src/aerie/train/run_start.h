// Where a run lives and what it starts from: shared by training, dry runs and evaluation.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aerie/base/clock.h"
#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/checkpoint/checkpoint_store.h"
#include "aerie/config/schema/loop_config.h"
#include "aerie/config/value.h"
#include "aerie/train/job.h"
#include "aerie/train/run_folder.h"
#include "aerie/train/run_lock.h"

namespace aerie::train {

// The folder of the run (exp_manager, NEMO_EXPM_VERSION, trainer.default_root_dir); creates
// nothing.
Result<RunFolder> run_folder_of(Env& env, Clock& clock, const config::LoopConfig& run);

// The folder of a run that is about to write there, with what it starts from.
struct OpenedRunFolder {
  RunFolder folder;
  ResumePlan plan;
  // Held until the run has ended: the folder, and the one of the checkpoints where it is elsewhere.
  std::vector<std::unique_ptr<RunLock>> locks;
};
// Locks the folder, clears away what killed processes left, decides how the run starts, and moves
// an earlier run aside where this one starts from nothing.
Result<OpenedRunFolder> open_run_folder(Env& env, Clock& clock, const config::LoopConfig& run);

// A checkpoint that was opened and verified, and the state in it; a fresh run has neither.
struct StartPoint {
  std::unique_ptr<LoadedCheckpoint> loaded;
  TrainState state;
};
// For plans of native checkpoints: the newest that is whole. Damaged ones are logged and passed
// over.
Result<StartPoint> find_start_point(Env& env, const RunFolder& folder, const ResumePlan& plan);
// The configuration of the last start in a folder: config.yaml, or hparams.yaml, which holds the
// same, where that is gone.
Result<config::Value> load_run_config(const std::string& folder);
// Configurations of earlier starts, as far as they can be read: those of this folder and of the
// one that holds the checkpoint.
std::vector<config::Value> earlier_configs(Env& env, const RunFolder& folder,
                                           const ResumePlan& plan);
// Weights and optimizer state into the engine, as the plan says; point.state gets the counters of a
// Lightning checkpoint. Frees point.loaded.
Status load_start_point(Env& env, Job& job, BuiltEngine& engine, const ResumePlan& plan,
                        StartPoint& point);

}  // namespace aerie::train
