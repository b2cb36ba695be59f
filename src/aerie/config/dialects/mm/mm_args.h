// The command line of mm-style training programs (mmseg's tools/train.py, BEVFusion's): which
// configuration, and what changes it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aerie/base/status.h"

namespace aerie::config::mm {

struct MmArgs {
  std::string config;                // the file
  std::vector<std::string> words;    // further words, in order: a checkpoint for `aerie eval`
  std::string work_dir;              // --work-dir, --run-dir
  std::vector<int64_t> gpu_ids;      // --gpu-ids, --gpu-id
  std::optional<int64_t> gpus;       // --gpus: how many
  std::vector<std::string> options;  // --options, --cfg-options: KEY=VALUE
  // --model.a.b V, BEVFusion's form. What has no dot must be a key of the file, else it is an
  // unknown_option().
  std::vector<std::pair<std::string, std::string>> changes;
  std::string load_from;
  std::string resume_from;
  bool auto_resume = false;
  bool no_validate = false;
  std::optional<int64_t> seed;
  bool diff_seed = false;
  bool deterministic = false;
  bool dump_precision = false;
  std::string launcher = "none";
  std::optional<int64_t> local_rank;
  bool allow_unknown = false;
  bool help = false;
  std::vector<std::string> warnings;  // of deprecated spellings
};

// The error that names the nearest option.
Status unknown_option(std::string_view name);

// Whether a command's arguments are in this dialect: a .py file, or an option that only it has.
bool is_mm_command_line(const std::vector<std::string>& args);

// Unknown options are errors that name the nearest; `_` in a name is `-` (BEVFusion writes
// --load_from). `--options` and `--cfg-options` exclude each
// other.
Result<MmArgs> parse_mm_args(const std::vector<std::string>& args);

// The lines of `--help`.
std::string_view mm_options_help();

}  // namespace aerie::config::mm
