#include "aerie/train/fresh_start.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "aerie/base/log.h"
#include "aerie/base/parse.h"
#include "aerie/base/path.h"
#include "aerie/base/process.h"
#include "aerie/base/strings.h"
#include "aerie/checkpoint/checkpoint_store.h"
#include "aerie/metrics/metrics_log.h"
#include "aerie/train/run_lock.h"

namespace aerie::train {

namespace {

constexpr char kMovingPrefix[] = ".run_";
constexpr char kMovingSuffix[] = ".moving";

// Everything a run writes straight into its folder.
constexpr std::array kRunFiles = {
    "metrics.jsonl",      "bad_samples.jsonl",  "cmd-args.log", "git-info.log",
    "config.yaml",        "hparams.yaml",       "report.html",  "trace.json",
    "nemo_error_log.txt", "lightning_logs.txt",
};

bool is_run_file(const std::string& name, const std::vector<std::string>& copied_files) {
  return std::find(kRunFiles.begin(), kRunFiles.end(), name) != kRunFiles.end() ||
         starts_with(name, "events.out.tfevents.") || starts_with(name, "nemo_log_globalrank-") ||
         is_mm_file(name) ||
         std::any_of(copied_files.begin(), copied_files.end(),
                     [&](const std::string& path) { return base_name(path) == name; });
}

// version_<k> with TensorBoard's files alone; one with more is a run of its own.
bool is_event_folder(Env& env, const std::string& path) {
  if (!starts_with(base_name(path), "version_")) return false;
  const auto entries = env.list_dir(path);
  return entries.ok() && !entries->empty() &&
         std::all_of(entries->begin(), entries->end(), [](const DirEntry& entry) {
           return !entry.is_dir &&
                  (starts_with(entry.name, "events.out.tfevents.") || entry.name == "hparams.yaml");
         });
}

// What a run, aerie's or NeMo's, leaves in its checkpoint folder.
bool is_checkpoint(Env& env, const std::string& folder, const DirEntry& entry) {
  if (entry.is_dir)
    return !starts_with(entry.name, ".") &&
           looks_like_checkpoint(env, join_path(folder, entry.name));
  return ends_with(entry.name, ".ckpt");
}
bool is_checkpoint_file(Env& env, const std::string& folder, const DirEntry& entry) {
  return is_checkpoint(env, folder, entry) ||
         (!entry.is_dir &&
          (ends_with(entry.name, ".nemo") || ends_with(entry.name, "-unfinished")));
}

struct Move {
  std::string from;
  std::string to;  // below the folder that everything moves to
};

// The checkpoint folder itself is moved where it is the run's own; a dirpath elsewhere may be
// shared, and behind a link the folder is elsewhere too: of those only what a run writes.
Result<std::vector<Move>> moves_of(Env& env, const RunFolder& folder,
                                   const std::vector<std::string>& copied_files) {
  std::vector<Move> out;
  bool whole_checkpoints = false;
  std::vector<DirEntry> entries;
  if (env.exists(folder.path)) {
    AERIE_ASSIGN_OR_RETURN(entries, env.list_dir(folder.path));
  }
  // First what may lie on another device.
  for (const DirEntry& entry : entries) {
    const std::string path = join_path(folder.path, entry.name);
    if (!entry.is_dir || entry.name != "checkpoints" || folder.checkpoints != path) continue;
    whole_checkpoints = true;
    AERIE_ASSIGN_OR_RETURN(const std::vector<DirEntry> inside, env.list_dir(path));
    if (!inside.empty()) out.push_back({path, entry.name});
  }
  if (!whole_checkpoints && env.exists(folder.checkpoints)) {
    AERIE_ASSIGN_OR_RETURN(const std::vector<DirEntry> inside, env.list_dir(folder.checkpoints));
    for (const DirEntry& entry : inside)
      if (is_checkpoint_file(env, folder.checkpoints, entry))
        out.push_back({join_path(folder.checkpoints, entry.name), "checkpoints/" + entry.name});
  }
  for (const DirEntry& entry : entries) {
    const std::string path = join_path(folder.path, entry.name);
    if (entry.is_dir
            ? entry.name == "nonfinite" || entry.name == "tf_logs" || is_event_folder(env, path)
            : is_run_file(entry.name, copied_files))
      out.push_back({path, entry.name});
  }
  return out;
}

// The folder an interrupted move went to; empty: there was none.
Result<std::string> interrupted_move(Env& env, const std::string& folder) {
  if (!env.exists(folder)) return std::string();
  AERIE_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, env.list_dir(folder));
  for (const DirEntry& entry : entries)
    if (entry.is_dir && starts_with(entry.name, kMovingPrefix) &&
        ends_with(entry.name, kMovingSuffix))
      return entry.name;
  return std::string();
}

// Carries out the moves into `moving` and gives it its final name.
Status carry_out(Env& env, const RunFolder& folder, const std::vector<Move>& moves,
                 const std::string& moving, const std::string& target) {
  std::vector<const Move*> done;
  const auto move = [&]() -> Status {
    for (const Move& one : moves) {
      const std::string to = join_path(moving, one.to);
      if (env.exists(to)) return io_error(str_cat("'", to, "' is there already"));
      AERIE_RETURN_IF_ERROR(env.create_dirs(parent_path(to)));
      AERIE_RETURN_IF_ERROR(env.rename(one.from, to));
      done.push_back(&one);
    }
    return ok_status();
  };
  if (const Status moved = move(); !moved.ok()) {
    for (auto it = done.rbegin(); it != done.rend(); ++it)
      (void)env.rename(join_path(moving, (*it)->to), (*it)->from);
    // Empty unless an earlier start had begun the same.
    (void)env.remove_dir(join_path(moving, "checkpoints"));
    (void)env.remove_dir(moving);
    return Status(moved)
        .with_context(str_cat("run folder ", folder.path,
                              " holds an earlier run, which cannot be moved to ",
                              base_name(target)))
        .with_hint(
            "choose another exp_manager.name, version or explicit_log_dir, or move the "
            "earlier run away (mount points and links to other disks cannot be renamed)");
  }
  AERIE_RETURN_IF_ERROR(env.fsync_dir(moving));
  if (folder.checkpoints != folder.path && env.exists(folder.checkpoints))
    AERIE_RETURN_IF_ERROR(env.fsync_dir(folder.checkpoints));
  AERIE_RETURN_IF_ERROR(env.rename(moving, target));
  return env.fsync_dir(folder.path);
}

}  // namespace

Status check_recorded_saves(Env& env, const RunFolder& folder) {
  const std::string metrics = join_path(folder.path, "metrics.jsonl");
  if (!env.exists(metrics)) return ok_status();
  AERIE_ASSIGN_OR_RETURN(const std::string moving, interrupted_move(env, folder.path));
  if (!moving.empty()) return ok_status();
  if (env.exists(folder.checkpoints)) {
    AERIE_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, env.list_dir(folder.checkpoints));
    if (std::any_of(entries.begin(), entries.end(), [&](const DirEntry& entry) {
          return is_checkpoint(env, folder.checkpoints, entry) ||
                 (entry.is_dir && ends_with(entry.name, "-old"));  // one that clean_up() puts back
        }))
      return ok_status();
  }
  std::string saved;
  AERIE_RETURN_IF_ERROR(metrics::scan_lines(env, metrics, [&](std::string_view line) {
    // Only few lines are worth parsing.
    if (line.find("\"saved\"") == std::string_view::npos) return;
    const auto record = metrics::Record::from_json(line);
    if (!record.ok() || record->text("event") != "saved") return;
    for (const auto& [name, value] : record->fields())
      if (name == "ok" && std::get_if<bool>(&value) != nullptr && std::get<bool>(value))
        saved = record->text("stem");
  }));
  if (saved.empty()) return ok_status();
  return invalid_argument(str_cat(metrics, " records the checkpoint ", saved, ", but ",
                                  folder.checkpoints,
                                  env.exists(folder.checkpoints) ? " holds none" : " is missing"))
      .with_hint(
          "mount the disk with the checkpoints, or set aerie.ignore_missing_checkpoints=true "
          "to start again (what is left of the earlier run moves to run_<k>)");
}

Result<std::string> set_previous_run_aside(Env& env, const RunFolder& folder,
                                           const std::vector<std::string>& copied_files) {
  AERIE_ASSIGN_OR_RETURN(const std::vector<Move> moves, moves_of(env, folder, copied_files));
  if (moves.empty()) return std::string();
  AERIE_ASSIGN_OR_RETURN(const int64_t number, next_run_number(env, folder.path));
  const std::string name = str_cat("run_", number);
  const std::string moving = join_path(folder.path, str_cat(".", name, kMovingSuffix));
  AERIE_RETURN_IF_ERROR(env.create_dirs(moving));
  AERIE_RETURN_IF_ERROR(env.fsync_dir(folder.path));
  AERIE_RETURN_IF_ERROR(carry_out(env, folder, moves, moving, join_path(folder.path, name)));
  return name;
}

Status finish_interrupted_move(Env& env, const RunFolder& folder,
                               const std::vector<std::string>& copied_files) {
  AERIE_ASSIGN_OR_RETURN(const std::string moving, interrupted_move(env, folder.path));
  if (moving.empty()) return ok_status();
  AERIE_ASSIGN_OR_RETURN(std::vector<Move> moves, moves_of(env, folder, copied_files));
  const std::string name =
      moving.substr(1, moving.size() - 1 - (sizeof kMovingSuffix - 1));  // run_<k>
  log_info("train", "an earlier start was ended while it moved the run before it to ", name,
           "; the rest follows");
  return carry_out(env, folder, moves, join_path(folder.path, moving),
                   join_path(folder.path, name));
}

namespace {

// ".<file>.tmp-<pid>-<time>-<counter>": the file it was to become and who wrote it.
bool parse_temporary(const std::string& name, std::string* file, int64_t* pid) {
  const size_t at = name.rfind(".tmp-");
  if (!starts_with(name, ".") || at == std::string::npos || at < 2) return false;
  const std::vector<std::string> parts = split(name.substr(at + 5), '-');
  if (parts.size() != 3) return false;
  for (const std::string& part : parts)
    if (part.empty() || part.find_first_not_of("0123456789") != std::string::npos) return false;
  const auto number = parse_int64(parts[0]);
  if (!number.ok()) return false;
  *file = name.substr(1, at - 1);
  *pid = *number;
  return true;
}

}  // namespace

Status remove_leftovers(Env& env, const RunFolder& folder) {
  const int64_t self = this_process().pid;
  for (const std::string& place :
       {folder.path, folder.checkpoints, join_path(folder.path, "nonfinite")}) {
    if (!env.exists(place)) continue;
    AERIE_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, env.list_dir(place));
    for (const DirEntry& entry : entries) {
      std::string file;
      int64_t pid = 0;
      if (entry.is_dir || entry.is_symlink || !parse_temporary(entry.name, &file, &pid)) continue;
      const bool ours = is_run_file(file, {}) || file == kLockName || ends_with(file, ".nemo") ||
                        (starts_with(file, "step_") && ends_with(file, ".json"));
      if (!ours) continue;
      const std::string path = join_path(place, entry.name);
      const auto stat = env.stat(path);
      if (!stat.ok()) continue;
      // But for its lock this process has not written there yet: a name with its number is of an
      // earlier one.
      const bool alive =
          pid == self ? file == kLockName : pid_may_have_written(pid, stat->mtime_ns);
      if (alive) continue;
      log_info("train", "removing ", path, ", left by a process that was killed");
      AERIE_RETURN_IF_ERROR(env.remove_file(path));
    }
  }
  return ok_status();
}

}  // namespace aerie::train
