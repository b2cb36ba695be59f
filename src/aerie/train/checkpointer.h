// Decides which checkpoints exist (best k, last) and writes them in the background. Implemented by
// RunCheckpointer (run_checkpointer.h) on top of CheckpointStore; the loop knows only this.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aerie/checkpoint/lightning_mirror.h"
#include "aerie/checkpoint/mm_mirror.h"
#include "aerie/checkpoint/train_state.h"
#include "aerie/train/engine.h"

namespace aerie::train {

enum class SaveReason { kValidation, kInterval, kEpochEnd, kSignal, kTrainEnd, kTimeLimit };
const char* save_reason_name(SaveReason reason);  // "validation", "interval", ...

// Which checkpoints a run makes and keeps. Lightning's rules unless a family says otherwise: the
// best k by the monitor, and the last.
struct CheckpointRules {
  // mmcv's: save_top_k counts the newest of those made every so many steps or epochs; a validation
  // makes one only where it is the best so far and `best` asks for it.
  bool newest = false;
  bool best = false;
  bool by_epoch = false;  // named `epoch_N`, not `iter_N`
};

// Files beside the native checkpoints. Each may be empty.
struct Exports {
  // A model archive at the given path, atomically; called in the thread that writes checkpoints.
  std::function<Status(const std::string& path, const StateSnapshot& snapshot)> write_archive;
  // A Lightning checkpoint, one beside every native one.
  LightningMirror::Write write_lightning;
  // mmcv's `iter_N.pth`, one beside every native one, in the folder of the run.
  MmMirror::Write write_mm;
  bool mm_latest = true;  // and `latest.pth`
  CheckpointRules rules;
};

struct SaveRequest {
  TrainState state;
  SaveReason reason = SaveReason::kValidation;
  std::optional<double> monitor;  // value of the monitored metric; NaN counts as worst
  bool top_k = true;              // may become one of the best; false: only the last one
  // False: the latest step was not finite. It is written as `-unhealthy` and takes the place of
  // no other.
  bool healthy = true;
  int64_t epochs_done = 0;  // it is made at the end of this one, counted from 1; 0: anywhere
  // Latest value of every metric, for the names of checkpoints.
  std::map<std::string, double> metrics;
};

// A finished (or failed) background save.
struct SaveReport {
  std::string stem;
  int64_t step = 0;
  SaveReason reason = SaveReason::kValidation;
  double write_ms = 0.0;  // in the background
  double cpu_ms = 0.0;    // of the writer, meanwhile
  uint64_t bytes = 0;
  int64_t superseded = 0;  // saves meanwhile that gave way to newer ones and were not written
  Status status;           // a failed save is retried with the next one; training goes on
};

class Checkpointer {
 public:
  virtual ~Checkpointer() = default;
  // Takes the snapshot and returns; waits only where an earlier one that must be kept is waiting
  // for the disk.
  virtual Status save(SaveRequest request, std::unique_ptr<StateSnapshot> snapshot) = 0;
  // Saves finished since the last call.
  virtual std::vector<SaveReport> take_reports() = 0;
  // Waits until everything handed over is on disk or has failed.
  virtual Status drain() = 0;
};

}  // namespace aerie::train
