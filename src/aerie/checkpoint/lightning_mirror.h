// A Lightning .ckpt beside every native checkpoint of a run (aerie.lightning_checkpoints), under
// the names and by the rules by which NeMo finds its own: `<stem>.ckpt`, one `<stem>-last.ckpt`,
// and
// `-EMA` files with averages. So NeMo can be started in the folder of the run and goes on.
//
// Files that carry our mark inside are ours to replace and remove; NeMo's own are renamed at most.
// Used by the checkpoint writer's thread alone.
#pragma once

#include <functional>
#include <set>
#include <string>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/checkpoint/state.h"
#include "aerie/checkpoint/train_state.h"

namespace aerie::train {

class LightningMirror {
 public:
  // Writes a file (and its `-EMA`) of a snapshot that has been waited for; each appears whole or
  // not at all.
  using Write = std::function<Status(const std::string& path, const TrainState& state,
                                     const StateSnapshot& snapshot)>;
  LightningMirror(Env& env, std::string folder, Write write);

  // After a restart: which of the files are ours.
  Status adopt();

  Status write(const std::string& stem, const TrainState& state, StateSnapshot& snapshot);
  // `<stem>-last.ckpt`; once it is whole, earlier ones go. NeMo refuses a folder with two of them:
  // one of NeMo's own gets the ending `.superseded`.
  Status write_last(const std::string& stem, const TrainState& state, StateSnapshot& snapshot);
  // The file of a stem that retention has dropped.
  Status remove(const std::string& stem);

 private:
  Status remove_file(const std::string& name);

  Env& env_;
  std::string folder_;
  Write write_;
  std::set<std::string> ours_;  // names in the folder, without those of averages
};

// Whether a .ckpt was written by us.
bool is_own_lightning_file(Env& env, const std::string& path);

}  // namespace aerie::train
