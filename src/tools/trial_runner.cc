#include "trial_runner.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <unistd.h>
#include <utility>

#include "aerie/base/env.h"
#include "aerie/base/path.h"
#include "aerie/base/signals.h"
#include "aerie/base/strings.h"
#include "aerie/data/storage.h"
#include "aerie/models/bev/config/bev_loader.h"
#include "aerie/ui/report.h"
#include "peer_process.h"

namespace aerie::tools {

namespace {

constexpr int kDeepest = 4;  // folders below the one that a trial was given
constexpr int kKilled = 128 + SIGKILL;
constexpr int kWrongUse = 2;  // of a command line or a configuration

// The folder at or below `folder` that holds metrics.jsonl; empty: none.
std::string run_below(const std::string& folder, int depth) {
  Env& env = Env::real();
  if (env.exists(join_path(folder, "metrics.jsonl"))) return folder;
  if (depth == 0) return "";
  const auto entries = env.list_dir(folder);
  if (!entries.ok()) return "";
  for (const DirEntry& entry : *entries) {
    if (!entry.is_dir) continue;
    if (std::string found = run_below(join_path(folder, entry.name), depth - 1); !found.empty())
      return found;
  }
  return "";
}

// Something that exists where the data does: lists and patterns of files (`audio_{0..7}.tar`,
// `audio__OP_0..7_CL_.tar`) stand for their folder.
std::string place_of(const std::string& written) {
  const std::string path = expand_user(written);
  const size_t pattern = std::min(path.find("_OP_"), path.find_first_of("{[(*?"));
  return pattern == std::string::npos ? path : parent_path(path.substr(0, pattern) + "-");
}

// Of the first path of the data that is there.
std::string storage_of(const advisor::RunFacts& facts) {
  for (const std::string& written : facts.data_paths)
    if (const std::string path = place_of(written); Env::real().exists(path))
      return data::storage_info(path).kind();
  return "";
}

// DD:HH:MM:SS, which every dialect takes.
std::string clock_text(double seconds) {
  const auto whole = std::max<int64_t>(1, std::llround(seconds));
  char text[32];
  std::snprintf(text, sizeof text, "00:%02d:%02d:%02d", static_cast<int>(whole / 3600 % 24),
                static_cast<int>(whole / 60 % 60), static_cast<int>(whole % 60));
  return text;
}

// What the program said about its own end; without that the end of what it printed.
std::string last_words(const std::string& text) {
  const size_t error = text.rfind("\nerror: ");
  if (error != std::string::npos) return std::string(trim(text.substr(error + 8)));
  return starts_with(text, "error: ") ? std::string(trim(text.substr(7))) : tail_of(text);
}

}  // namespace

Result<std::string> path_of_this_program() {
  char path[4096];
  const ssize_t size = ::readlink("/proc/self/exe", path, sizeof path);
  if (size <= 0 || size == static_cast<ssize_t>(sizeof path))
    return io_error("this program's own file cannot be found");
  return std::string(path, static_cast<size_t>(size));
}

TrialRunner::TrialRunner(std::string program, std::vector<std::string> config_args, bool native)
    : program_(std::move(program)),
      config_args_(std::move(config_args)),
      native_(native),
      scratch_(std::make_unique<TempDir>()) {}

Result<TrialRunner> TrialRunner::make(std::vector<std::string> config_args) {
  AERIE_ASSIGN_OR_RETURN(std::string program, path_of_this_program());
  const bool native = bev::is_bev_command_line(Env::real(), config_args);
  TrialRunner out(std::move(program), std::move(config_args), native);
  if (!native) return out;
  // In our own keys, so that changes have one name in every dialect.
  std::vector<std::string> show{out.program_, "config", "show"};
  show.insert(show.end(), out.config_args_.begin(), out.config_args_.end());
  AERIE_ASSIGN_OR_RETURN(const ProcessOutput shown, run_process(show, {}, /*with_errors=*/false));
  if (shown.exit_code != 0) {
    AERIE_ASSIGN_OR_RETURN(const ProcessOutput again, run_process(show, {}));
    return invalid_argument(tail_of(again.text));
  }
  AERIE_RETURN_IF_ERROR(Env::real().write_file(out.scratch_->file("config.yaml"), shown.text));
  return out;
}

Status trial_error(int exit_code, const std::string& text, const std::string& what) {
  const std::string words = last_words(text);
  // Of several ranks each says in its log how it ended; the process that started them says nothing.
  const bool said = starts_with(text, "error: ") || text.find("\nerror: ") != std::string::npos;
  const auto says = [&](const char* part) {
    return (said ? words : text).find(part) != std::string::npos;
  };
  const bool killed = exit_code == kKilled;
  const bool out_of_memory =
      killed || says("out of memory") || says("not fit into memory") || says("for want of memory");
  if (exit_code == kWrongUse && !out_of_memory) return Status(StatusCode::kInvalidArgument, words);
  return Status(out_of_memory    ? StatusCode::kOutOfMemory
                : exit_code == 3 ? StatusCode::kDataError
                                 : StatusCode::kUnavailable,
                str_cat(what, killed ? " was killed: " : " failed: ", words));
}

Status TrialRunner::error_of(const ProcessOutput& output, const std::string& what) const {
  if (caught_signal() != 0) return Status(StatusCode::kCancelled, "stopped");
  std::string text = output.text;
  // Of a file that the reader never saw.
  const std::string own = scratch_->file("config.yaml");
  for (size_t at = 0; (at = text.find(own, at)) != std::string::npos;)
    text.replace(at, own.size(), "the configuration");
  return trial_error(output.exit_code, text, what);
}

std::vector<std::string> TrialRunner::command(const std::vector<std::string>& before,
                                              std::vector<std::string> overrides) const {
  std::vector<std::string> out{program_, "train"};
  if (native_)
    out.push_back(scratch_->file("config.yaml"));
  else
    out.insert(out.end(), config_args_.begin(), config_args_.end());
  out.insert(out.end(), before.begin(), before.end());
  if (native_ && !overrides.empty()) out.push_back("--cfg-options");
  for (std::string& one : overrides) {
    one.erase(0, one.find_first_not_of('+'));
    if (native_ && ends_with(one, "=null")) one.replace(one.size() - 4, 4, "None");
    out.push_back(native_ ? one : "++" + one);
  }
  return out;
}

// Never in the folder of the run itself, and from nothing.
std::vector<std::string> TrialRunner::place_in(const std::string& folder,
                                               std::vector<std::string>& overrides) const {
  overrides.insert(overrides.end(),
                   {"exp_manager.resume_if_exists=false", "exp_manager.resume_from_checkpoint=null",
                    "exp_manager.checkpoint_callback_params.dirpath=null"});
  if (native_) return {"--work-dir", folder};
  overrides.emplace_back("exp_manager.explicit_log_dir=null");
  overrides.push_back("exp_manager.exp_dir=" + folder);
  return {};
}

Result<std::string> TrialRunner::train(const std::vector<std::string>& changes,
                                       const TrialLength& length) {
  const std::string folder = scratch_->file(str_cat("trial", ++count_));
  std::vector<std::string> overrides{"trainer.log_every_n_steps=1"};
  if (length.seconds > 0.0) {
    overrides.push_back("trainer.max_steps=1000000");
    overrides.push_back(str_cat("trainer.min_steps=", length.steps));
    overrides.push_back(str_cat("trainer.max_time=", clock_text(length.seconds)));
  } else {
    overrides.push_back(str_cat("trainer.max_steps=", length.steps));
  }
  overrides.insert(overrides.end(), changes.begin(), changes.end());
  std::vector<std::string> before = place_in(folder, overrides);
  if (!native_)
    overrides.emplace_back("exp_manager.checkpoint_callback_params.save_nemo_on_train_end=false");
  AERIE_ASSIGN_OR_RETURN(const ProcessOutput output,
                         run_process(command(before, std::move(overrides)), {}));
  if (caught_signal() != 0) return Status(StatusCode::kCancelled, "stopped");
  std::string run = run_below(folder, kDeepest);
  // 4: finished, but unhealthy, which is for the reader of the records to say.
  if ((output.exit_code != 0 && output.exit_code != 4) || run.empty())
    return error_of(output, str_cat("a trial of ", length.steps, " steps"));
  return run;
}

Result<std::string> TrialRunner::dry_run(const std::vector<std::string>& changes) {
  // Its folder is not that of the run, and it starts from nothing.
  const std::string folder = scratch_->file(str_cat("trial", ++count_));
  std::vector<std::string> overrides = changes;
  std::vector<std::string> before = place_in(folder, overrides);
  before.insert(before.end(), {"--dry-run", "--json"});
  AERIE_ASSIGN_OR_RETURN(const ProcessOutput output,
                         run_process(command(before, std::move(overrides)), {}));
  if (output.exit_code != 0 || caught_signal() != 0) return error_of(output, "a dry run");
  // Behind the lines of the log.
  const size_t begin = starts_with(output.text, "{") ? 0 : output.text.find("\n{");
  const size_t end = output.text.rfind('}');
  if (begin == std::string::npos || end == std::string::npos || end < begin)
    return error_of(output, "a dry run printed no result and");
  return output.text.substr(begin, end + 1 - begin);
}

std::vector<std::string> TrialRunner::train_args(const std::vector<std::string>& changes) const {
  const std::vector<std::string> all = command({}, changes);
  return {all.begin() + 2, all.end()};
}

Result<advisor::Diagnosis> diagnose_folder(const std::string& folder) {
  // Of versions that did not record their words; all of those runs were of speech.
  ui::ReportWords words;
  words.throughput = "audio_s_per_s";
  for (const char* key : {"manifest_filepath", "tarred_audio_filepaths", "noise_manifest"})
    words.data_settings.push_back({str_cat("model.train_ds.", key), key});
  AERIE_ASSIGN_OR_RETURN(const ui::ReportInput input,
                         ui::load_report_input(Env::real(), folder, words));
  advisor::RunFacts facts = advisor::read_facts(input);
  const std::string storage = storage_of(facts);
  return advisor::diagnose(std::move(facts), storage);
}

std::string missing_data(const advisor::RunFacts& facts) {
  for (const std::string& written : facts.data_paths)
    if (!Env::real().exists(place_of(written))) return written;
  return "";
}

}  // namespace aerie::tools
