// A run that starts from nothing in a folder that another run has used: that run is kept, not
// overwritten.
#pragma once

#include <string>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/train/run_folder.h"

namespace aerie::train {

// Fails when metrics.jsonl records a checkpoint that was written and the checkpoint folder holds
// none: most likely its disk is not mounted, and starting again would begin a second history.
Status check_recorded_saves(Env& env, const RunFolder& folder);

// Moves everything a run wrote to the folder, checkpoints and .nemo included, to run_<k> and
// returns that name; empty when there was nothing. `copied_files`: names of files_to_copy. Files of
// others stay. All or nothing: where a rename is not possible (mount point, other device)
// everything is put back and the start is refused; a move that a crash cut in two is finished by
// the next call of finish_interrupted_move().
Result<std::string> set_previous_run_aside(Env& env, const RunFolder& folder,
                                           const std::vector<std::string>& copied_files);
Status finish_interrupted_move(Env& env, const RunFolder& folder,
                               const std::vector<std::string>& copied_files);

// Removes temporary files in the folders of a run whose writers are gone: the names that
// Env::atomic_replace and the archive writers give them, of files only the run writes. The caller
// holds the lock of the run.
Status remove_leftovers(Env& env, const RunFolder& folder);

}  // namespace aerie::train
