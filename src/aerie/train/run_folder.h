// The folder of a run, as NeMo's exp_manager lays it out, and how a run finds the checkpoint it
// goes on from.
//
//   <exp_dir>/<name>[/<version>]/   no version level when resume_if_exists is true
//     cmd-args.log git-info.log config.yaml hparams.yaml metrics.jsonl events.out.tfevents.*
//     report.html
//     checkpoints/   native checkpoints and <name>.nemo
//     run_<k>/       loose files of the start before, when a run is resumed; the whole earlier run,
//                    when one starts from nothing (fresh_start.h)
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "aerie/base/clock.h"
#include "aerie/base/env.h"
#include "aerie/config/schema/trainer_config.h"

namespace aerie::train {

struct RunFolder {
  std::string path;         // log_dir
  std::string checkpoints;  // dirpath, or <log_dir>/checkpoints
  std::string name;         // of the experiment: prefix of checkpoint stems, name of the .nemo
  std::string version;      // empty: none
  // The version was made up (a date, the next number): where another process was quicker, the next
  // one will do.
  bool version_is_free = false;
};

// <k> of the next run_<k> in the folder of a run.
Result<int64_t> next_run_number(Env& env, const std::string& folder);

// Decides where a run lives; creates nothing. `env_version` is NEMO_EXPM_VERSION or empty: it
// counts where exp_manager gives no version, as in NeMo also for runs that resume.
Result<RunFolder> choose_run_folder(Env& env, Clock& clock, const config::ExpManagerConfig& exp,
                                    const std::string& env_version);

// Files under mmcv's names in the folder of a run: checkpoints (iter_N.pth, latest.pth, ...) and
// logs by the time of a start. Resumed runs leave them where they are.
bool is_mm_file(const std::string& name);

// Where the event files of a start go: the run's folder or, where NeMo leaves the version to its
// logger (resume_if_exists without one), the next <log_dir>/version_<k>.
std::string event_folder(Env& env, const RunFolder& folder, const config::ExpManagerConfig& exp);

// What a resuming run found in the checkpoint folder.
struct ResumePlan {
  enum class Kind { kFresh, kNative, kForeign };
  Kind kind = Kind::kFresh;
  std::string path;      // kNative: the checkpoint's directory; kForeign: a Lightning .ckpt or
                         // mmcv's .pth
  std::string sentence;  // one line for the user: what was found and chosen, and why
  // What looks like a checkpoint and cannot be used, one line each.
  std::vector<std::string> warnings;
};

// exp_manager's rules (resume_if_exists and friends). Native checkpoints are only listed here: the
// newest valid one is chosen by CheckpointStore. Errors: an `-end` checkpoint without
// resume_past_end, no checkpoint without resume_ignore_no_checkpoint, several `-last.ckpt`, only
// unfinished ones.
Result<ResumePlan> plan_resume(Env& env, const RunFolder& folder,
                               const config::ExpManagerConfig& exp);

// Creates the folder; a resumed run first moves the loose files of the previous one into run_<k>.
Status prepare_run_folder(Env& env, const RunFolder& folder, bool resumed);

// Files that describe the run: cmd-args.log, config.yaml, hparams.yaml, git-info.log, and copies
// of files_to_copy. Written atomically.
struct RunDescription {
  std::string command;
  std::string config_yaml;
  std::string git_info;  // empty: not written
  std::vector<std::string> files_to_copy;
};
Status describe_run(Env& env, const RunFolder& folder, const RunDescription& description);

// Text of git-info.log for a working directory (absolute): commit and branch of the git tree it
// lies in, read from git's files without running git; empty outside of one.
std::string git_info(Env& env, const std::string& folder);

// `{name:.3f}` templates of checkpoint_callback_params.filename: "x--{val_loss:.3f}-{step}" and the
// values give "x--val_loss=5.123-step=2500" (without the names when auto_insert_metric_name is
// off). Unknown names are an error. A metric that was never measured leaves no trace: its field
// goes together with one separator and with a "label=" written before it.
struct StemValue {
  std::string name;
  double value = 0.0;
  bool integer = false;
  bool measured = true;
};
Result<std::string> format_stem(const std::string& pattern, const std::vector<StemValue>& values,
                                bool insert_names);

// The number behind "<metric>=" in a stem, as NeMo reads its top-k back after a restart.
std::optional<double> metric_from_stem(const std::string& stem, const std::string& metric);

}  // namespace aerie::train
