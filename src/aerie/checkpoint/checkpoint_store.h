// Native checkpoints: one directory each, checkpoints/<stem>/, of safetensors files and JSON.
//
//   model.safetensors      weights and buffers under NeMo's names
//   optimizer.safetensors  moments, "exp_avg.<name>" and so on
//   ema.safetensors        averaged weights, when EMA is on
//   state.json             TrainState and the engine's scalars
//   manifest.json          format version, and size and checksum of every other file; written last
//
// A checkpoint is written under a temporary name, synced, and renamed: a directory with its final
// name is whole, or it is reported as damaged and passed over. docs/formats/checkpoint.md describes
// the format.
//
// Only directories that carry our mark in their name, `.<stem>.aerie-new`, `.aerie-old` or
// `.aerie-gone`, are ever deleted: what is to go is renamed first. Everything else in the folder
// may be the user's.
//
// save() may run in a background thread; one save at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/checkpoint/state.h"
#include "aerie/checkpoint/train_state.h"

namespace aerie::train {

// Ends the name of a checkpoint whose latest step was not finite.
inline constexpr char kUnhealthySuffix[] = "-unhealthy";

struct CheckpointInfo {
  std::string path;  // the directory
  std::string stem;
  int64_t step = 0;
  bool is_last = false;
  bool is_unhealthy = false;  // saved after a step that was not finite
  Status manifest;            // why the manifest cannot be used, where it cannot; step is then 0
};

// Something in the folder that looks like a checkpoint and is none.
struct UnusableCheckpoint {
  std::string path;
  std::string why;
};

// Whether a directory holds files of a checkpoint, whole or damaged.
bool looks_like_checkpoint(Env& env, const std::string& dir);

// The name of the newest checkpoint where NeMo is to work in the same folder: it takes folders
// whose names end in `last` for its own, and counts those with the monitor in their name.
std::string native_last_stem(int64_t step);

class LoadedCheckpoint : public StateSource {
 public:
  virtual const TrainState& state() const = 0;
  virtual const CheckpointInfo& info() const = 0;
};

class CheckpointStore {
 public:
  // `folder` is <log_dir>/checkpoints; created on the first save. `env` outlives the store.
  CheckpointStore(Env& env, std::string folder);

  // Writes <folder>/<stem> and returns the bytes written. While it works, an empty marker
  // `<stem>-unfinished` stands beside it, as NeMo's does. An existing checkpoint of that name is
  // replaced only after the new one is whole.
  Result<uint64_t> save(const std::string& stem, const TrainState& state, StateSnapshot& snapshot);
  Status remove(const std::string& stem);

  // Every directory that looks like a checkpoint, newest step first, by its manifest alone.
  Result<std::vector<CheckpointInfo>> list() const;
  // What list() leaves out although its owner may count on it: directories of checkpoint files
  // without a manifest, and `-last` as a link or a file.
  Result<std::vector<UnusableCheckpoint>> unusable() const;
  // The state in a checkpoint, verified, without the tensors.
  Result<TrainState> read_state(const std::string& stem) const;
  // Opens and verifies all checksums.
  Result<std::unique_ptr<LoadedCheckpoint>> open(const std::string& stem) const;
  // The newest healthy one that verifies. Every damaged one that may be newer, and every unhealthy
  // one, is reported through `report` and passed over. Nothing when there is none.
  Result<std::unique_ptr<LoadedCheckpoint>> newest_valid(
      const std::function<void(const CheckpointInfo&, const Status&)>& report) const;
  // Removes what an interrupted save or removal left behind and puts back what had been moved
  // aside; the log names each. What carries no mark of ours (also remainders of versions before the
  // marks, and Lightning's unfinished files) is named and left alone.
  Status clean_up();

  const std::string& folder() const { return folder_; }

 private:
  std::string marked(const std::string& stem, const char* mark) const;
  Status clean_up_directory(const std::string& name);
  Status clean_up_file(const DirEntry& entry);
  Result<uint64_t> write(const std::string& stem, const TrainState& state, StateSnapshot& snapshot);

  Env& env_;
  std::string folder_;
};

}  // namespace aerie::train
