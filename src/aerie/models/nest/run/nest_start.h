// Where a NEST run lives and what it starts from: shared by training, dry runs and evaluation. No
// torch here.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aerie/base/clock.h"
#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/checkpoint/checkpoint_store.h"
#include "aerie/config/schema/nest_config.h"
#include "aerie/config/schema/run_config_loader.h"
#include "aerie/config/value.h"
#include "aerie/data/batching.h"
#include "aerie/models/nest/run/nest_engine.h"
#include "aerie/train/cadence.h"
#include "aerie/train/run_folder.h"
#include "aerie/train/run_lock.h"

namespace aerie::train {

// The folder of the run (exp_manager, NEMO_EXPM_VERSION, trainer.default_root_dir); creates
// nothing.
Result<RunFolder> run_folder_of(Env& env, Clock& clock, const config::RunConfig& run);

// The folder of a run that is about to write there, with what it starts from.
struct OpenedRunFolder {
  RunFolder folder;
  ResumePlan plan;
  // Held until the run has ended: the folder, and the one of the checkpoints where it is elsewhere.
  std::vector<std::unique_ptr<RunLock>> locks;
};
// Locks the folder, clears away what killed processes left, decides how the run starts, and moves
// an earlier run aside where this one starts from nothing.
Result<OpenedRunFolder> open_run_folder(Env& env, Clock& clock, const config::RunConfig& run);

// A checkpoint that was opened and verified, and the state in it; a fresh run has neither.
struct StartPoint {
  std::unique_ptr<LoadedCheckpoint> loaded;
  TrainState state;
};
// For plans of native checkpoints: the newest that is whole. Damaged ones are logged and passed
// over.
Result<StartPoint> find_start_point(Env& env, const RunFolder& folder, const ResumePlan& plan);
// The keys that made the batches of earlier starts, as far as their config.yaml tell: those of this
// folder and of the one that holds the checkpoint.
std::vector<data::Batching> earlier_batching(Env& env, const RunFolder& folder,
                                             const ResumePlan& plan);
// Weights and optimizer state into the engine, as the plan says; point.state gets the counters of a
// Lightning checkpoint. Frees point.loaded.
Status load_start_point(Env& env, NestEngine& engine, const config::RunConfig& run,
                        const ResumePlan& plan, StartPoint& point);

// The M of the schedules: trainer.max_steps, else sched.max_steps, else what the epochs give.
// `planned`: of the whole run as far as steps and epochs bound it.
std::optional<int64_t> schedule_steps(const config::RunConfig& run, std::optional<int64_t> planned);
std::optional<int64_t> schedule_steps(const config::RunConfig& run, const Cadence& cadence);

// The resolved `model` node with what NeMo appends to it: model_config.yaml of a .nemo.
Result<std::string> nemo_model_config(const config::Value& resolved);
// A .nemo of the snapshot's weights; the model's own also where averages are kept, as NeMo's is at
// the end of a run. Atomic.
Status write_nemo_snapshot(Env& env, const std::string& path, const std::string& model_yaml,
                           const StateSnapshot& snapshot);

}  // namespace aerie::train
