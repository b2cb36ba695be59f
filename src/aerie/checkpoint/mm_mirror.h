// mmcv's files of a run: `iter_N.pth` or `epoch_N.pth` beside every native checkpoint, in the
// folder of the run, and `latest.pth`, a link to the newest. Programs that read mmcv's checkpoints
// take them; a run of ours that is told to go on from one takes the native checkpoint that it
// names.
//
// Files that carry our mark inside are ours to replace and remove; others stay as they are.
// Used by the checkpoint writer's thread alone.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "aerie/archive/torch_file.h"
#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/checkpoint/state.h"
#include "aerie/checkpoint/train_state.h"

namespace aerie::train {

// What one of our files says of itself, in meta.aerie.
struct MmMark {
  std::string native;  // the checkpoint beside it: relative to the file's folder, or absolute
  int64_t step = 0;
};

// Nothing: another program wrote the file. Errors: it cannot be read.
std::optional<MmMark> mm_mark(const archive::TorchFile& file);
Result<std::optional<MmMark>> read_mm_mark(Env& env, const std::string& path);

// The folder of the native checkpoint that one of our files stands for: the one it names, or
// another of the same step beside that. Empty: it is gone, or the file is not ours.
Result<std::string> native_checkpoint_of(Env& env, const std::string& path);

// Iterations done when mmcv wrote a file. Its runner of iterations writes one less than it has done
// (meta.iter of iter_100.pth is 99); the name tells. Nothing: the file does not say.
std::optional<int64_t> mm_iterations(const archive::TorchFile& file, const std::string& path);

// The newest of mmcv's files in a folder, as mmcv finds it: latest.pth, else the highest number.
// Empty: there is none.
Result<std::string> latest_mm_file(Env& env, const std::string& folder);

class MmMirror {
 public:
  // Writes a file of a snapshot that has been waited for; it appears whole or not at all.
  using Write = std::function<Status(const std::string& path, const MmMark& mark,
                                     const TrainState& state, const StateSnapshot& snapshot)>;
  MmMirror(Env& env, std::string folder, Write write, bool link);

  // After a restart: which of the files are ours.
  Status adopt();

  // `<name>.pth` of the native checkpoint `native`. `latest`: it is the newest.
  Status write(const std::string& name, const std::string& native, const TrainState& state,
               StateSnapshot& snapshot, bool latest);
  Status remove(const std::string& name);
  // Removes ours but for these.
  Status retain(const std::set<std::string>& names);

 private:
  Env& env_;
  std::string folder_;
  Write write_;
  bool link_;
  std::set<std::string> ours_;  // without ".pth"
};

}  // namespace aerie::train
