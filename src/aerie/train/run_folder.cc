#include "aerie/train/run_folder.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "aerie/archive/lightning_checkpoint.h"
#include "aerie/archive/native_checkpoint.h"
#include "aerie/archive/torch_file.h"
#include "aerie/base/format_text.h"
#include "aerie/base/parse.h"
#include "aerie/base/path.h"
#include "aerie/base/strings.h"
#include "aerie/checkpoint/checkpoint_store.h"
#include "aerie/checkpoint/mm_mirror.h"
#include "aerie/train/run_lock.h"

namespace aerie::train {

namespace {

// A part of a path that comes from the configuration. Separators are allowed (NeMo's names may
// nest); stepping up is not.
Status check_name(const std::string& key, const std::string& name) {
  if (name.find('\0') != std::string::npos)
    return invalid_argument(str_cat("exp_manager.", key, " contains a zero byte"));
  for (const std::string& part : split(name, '/'))
    if (part == "..")
      return invalid_argument(
          str_cat("exp_manager.", key, " '", name, "' leaves the experiment folder"));
  return ok_status();
}

bool is_loose_file(const DirEntry& entry) {
  if (entry.is_dir) return false;
  // Event files stay for TensorBoard; the metrics are cut back and continued; the list of bad
  // samples grows.
  return !starts_with(entry.name, "events.out.tfevents") && entry.name != "metrics.jsonl" &&
         entry.name != "bad_samples.jsonl" && entry.name != kLockName && !is_mm_file(entry.name);
}

// How a run goes on from one of mmcv's files: from the native checkpoint that ours stand for.
Status resume_from_mm_file(Env& env, const std::string& path, ResumePlan* out) {
  AERIE_ASSIGN_OR_RETURN(const std::string native, native_checkpoint_of(env, path));
  out->kind = native.empty() ? ResumePlan::Kind::kForeign : ResumePlan::Kind::kNative;
  out->path = native.empty() ? path : native;
  out->sentence = native.empty() ? str_cat("resuming weights, optimizer and iteration from ", path,
                                           "; the order of the data starts anew")
                                 : str_cat("resuming from ", path,
                                           ", exactly: by the native checkpoint ", native);
  return ok_status();
}

// A file that mmcv wrote into the folder of the run after our checkpoints. Empty: none.
std::string mm_file_beyond(Env& env, const std::string& folder, int64_t step) {
  const auto latest = latest_mm_file(env, folder);
  if (!latest.ok() || latest->empty()) return "";
  auto source = archive::file_source(env, *latest);
  if (!source.ok()) return "";
  const auto file = archive::read_torch_file(std::move(source).value());
  if (!file.ok() || mm_mark(*file)) return "";
  return mm_iterations(*file, *latest).value_or(-1) > step ? *latest : "";
}

}  // namespace

bool is_mm_file(const std::string& name) {
  if (ends_with(name, ".pth"))
    return name == "latest.pth" || starts_with(name, "iter_") || starts_with(name, "epoch_") ||
           starts_with(name, "best_");
  // 20240131_235959.log, .log.json
  const size_t dot = name.find('.');
  return dot == 15 && name[8] == '_' &&
         name.substr(0, dot).find_first_not_of("0123456789_") == std::string::npos &&
         (name.substr(dot) == ".log" || name.substr(dot) == ".log.json");
}

namespace {

// Lightning's numbering: one above the highest version_<k>.
std::string next_version(Env& env, const std::string& folder) {
  int64_t next = 0;
  if (auto entries = env.list_dir(folder); entries.ok()) {
    for (const DirEntry& entry : *entries) {
      if (!starts_with(entry.name, "version_")) continue;
      char* end = nullptr;
      const int64_t number = std::strtoll(entry.name.c_str() + 8, &end, 10);
      if (*end == '\0') next = std::max(next, number + 1);
    }
  }
  return str_cat("version_", next);
}

}  // namespace

std::string event_folder(Env& env, const RunFolder& folder, const config::ExpManagerConfig& exp) {
  if (!folder.version.empty() || !exp.explicit_log_dir.empty()) return folder.path;
  return str_cat(folder.path, "/", next_version(env, folder.path));
}

Result<int64_t> next_run_number(Env& env, const std::string& folder) {
  AERIE_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, env.list_dir(folder));
  int64_t next = 0;
  for (const DirEntry& entry : entries) {
    if (!entry.is_dir || !starts_with(entry.name, "run_")) continue;
    if (const auto number = parse_int64(entry.name.substr(4), 0); number.ok())
      next = std::max(next, *number + 1);
  }
  return next;
}

Result<RunFolder> choose_run_folder(Env& env, Clock& clock, const config::ExpManagerConfig& exp,
                                    const std::string& env_version) {
  RunFolder out;
  out.name = exp.name.empty() ? "default" : exp.name;
  AERIE_RETURN_IF_ERROR(check_name("name", out.name));
  if (!exp.explicit_log_dir.empty()) {
    // NeMo's rule: it wins over exp_dir, name and version.
    out.path = exp.explicit_log_dir;
  } else {
    const std::string base = exp.exp_dir.empty() ? "./nemo_experiments" : exp.exp_dir;
    out.path = str_cat(base, "/", out.name);
    out.version = !exp.version.empty() ? exp.version : env_version;
    // A run that resumes must find its folder: no version is made up for it.
    if (out.version.empty() && !exp.resume_if_exists) {
      out.version_is_free = true;
      if (exp.use_datetime_version) {
        out.version = folder_time(clock.wall_ns());
        // Two runs in one second: the second one waits for the next name rather than mixing with
        // the first.
        for (int k = 1; env.exists(str_cat(out.path, "/", out.version)); ++k)
          out.version = str_cat(folder_time(clock.wall_ns()), "_", k);
      } else {
        out.version = next_version(env, out.path);
      }
    }
    AERIE_RETURN_IF_ERROR(check_name("version", out.version));
    if (!out.version.empty()) out.path += "/" + out.version;
  }
  const std::string& dirpath = exp.checkpoint_callback_params.dirpath;
  out.checkpoints = dirpath.empty() ? out.path + "/checkpoints" : dirpath;
  return out;
}

Result<ResumePlan> plan_resume(Env& env, const RunFolder& folder,
                               const config::ExpManagerConfig& exp) {
  ResumePlan out;
  std::vector<std::string> ends, last_files, unfinished;
  std::vector<std::string> native, unhealthy;
  if (exp.resume_if_exists && env.exists(folder.checkpoints)) {
    AERIE_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, env.list_dir(folder.checkpoints));
    for (const DirEntry& entry : entries) {
      if (ends_with(entry.name, "-unfinished"))
        unfinished.push_back(entry.name.substr(0, entry.name.size() - 11));
    }
    AERIE_ASSIGN_OR_RETURN(const std::vector<UnusableCheckpoint> unusable,
                           CheckpointStore(env, folder.checkpoints).unusable());
    for (const UnusableCheckpoint& one : unusable)
      out.warnings.push_back(str_cat(one.path, " is passed over: ", one.why));
    const auto is_unfinished = [&](const std::string& stem) {
      return std::find(unfinished.begin(), unfinished.end(), stem) != unfinished.end();
    };
    for (const DirEntry& entry : entries) {
      if (entry.is_dir) {
        const std::string path = str_cat(folder.checkpoints, "/", entry.name);
        // Native checkpoints appear whole under their names: a marker beside one only says that the
        // process ended before it could remove the marker.
        if (starts_with(entry.name, ".") || !env.exists(path + "/manifest.json")) continue;
        (ends_with(entry.name, "-end")             ? ends
         : ends_with(entry.name, kUnhealthySuffix) ? unhealthy
                                                   : native)
            .push_back(path);
      } else if (ends_with(entry.name, "last.ckpt") || ends_with(entry.name, "end.ckpt")) {
        if (is_unfinished(entry.name.substr(0, entry.name.size() - 5))) continue;
        (ends_with(entry.name, "end.ckpt") ? ends : last_files)
            .push_back(str_cat(folder.checkpoints, "/", entry.name));
      }
    }
  }
  if (!ends.empty()) {
    if (!exp.resume_past_end)
      return invalid_argument(
                 str_cat("found ", ends.front(), ", which says that this run has already ended"))
          .with_hint(
              "set exp_manager.resume_past_end=true to train on, or choose another "
              "exp_manager.name");
    native.insert(native.end(), ends.begin(), ends.end());
  }
  if (!native.empty()) {
    // NeMo may have gone on in the folder (aerie.lightning_checkpoints): then its file is newer.
    int64_t newest = 0;
    AERIE_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> stored,
                           CheckpointStore(env, folder.checkpoints).list());
    if (!stored.empty()) newest = stored.front().step;
    if (last_files.size() == 1) {
      const auto theirs = archive::read_lightning_checkpoint(env, last_files[0]);
      if (theirs.ok() && theirs->global_step > newest) {
        out.kind = ResumePlan::Kind::kForeign;
        out.path = last_files[0];
        out.sentence = str_cat("resuming weights and optimizer from the Lightning checkpoint ",
                               out.path, " of step ", theirs->global_step,
                               ", which has come further than the native ones, step ", newest);
        return out;
      }
      if (!theirs.ok())
        out.sentence = str_cat(last_files[0], " cannot be read and is passed over (",
                               theirs.status().message(), "); ");
    }
    if (const std::string theirs = mm_file_beyond(env, folder.path, newest); !theirs.empty()) {
      AERIE_RETURN_IF_ERROR(resume_from_mm_file(env, theirs, &out));
      return out;
    }
    out.kind = ResumePlan::Kind::kNative;
    out.path = folder.checkpoints;
    out.sentence += str_cat("found ", native.size(), " checkpoint", native.size() == 1 ? "" : "s",
                            " in ", folder.checkpoints, "; the newest valid one is used");
    return out;
  }
  if (last_files.size() > 1)
    return invalid_argument(str_cat("more than one checkpoint ends in last.ckpt: ", last_files[0],
                                    ", ", last_files[1]))
        .with_hint("leave only the one to resume from");
  if (last_files.size() == 1) {
    out.kind = ResumePlan::Kind::kForeign;
    out.path = last_files[0];
    out.sentence =
        str_cat("resuming weights and optimizer from the Lightning checkpoint ", out.path);
    return out;
  }
  if (exp.resume_if_exists) {
    AERIE_ASSIGN_OR_RETURN(const std::string latest, latest_mm_file(env, folder.path));
    if (!latest.empty()) {
      AERIE_RETURN_IF_ERROR(resume_from_mm_file(env, latest, &out));
      return out;
    }
  }
  if (!exp.resume_from_checkpoint.empty()) {
    if (!env.exists(exp.resume_from_checkpoint))
      return invalid_argument(str_cat("exp_manager.resume_from_checkpoint ",
                                      exp.resume_from_checkpoint, " does not exist"));
    if (ends_with(exp.resume_from_checkpoint, ".pth")) {
      AERIE_RETURN_IF_ERROR(resume_from_mm_file(env, exp.resume_from_checkpoint, &out));
      return out;
    }
    AERIE_ASSIGN_OR_RETURN(const FileStat stat, env.stat(exp.resume_from_checkpoint));
    out.kind = stat.is_dir ? ResumePlan::Kind::kNative : ResumePlan::Kind::kForeign;
    out.path = exp.resume_from_checkpoint;
    // A run's folder, or its checkpoints: the newest of them.
    if (stat.is_dir && !env.exists(join_path(out.path, archive::kNativeManifest))) {
      const auto newest = archive::find_native_checkpoint(env, out.path);
      if (!newest.ok())
        return invalid_argument(str_cat("exp_manager.resume_from_checkpoint ", out.path,
                                        " holds no checkpoint (", newest.status().message(), ")"))
            .with_hint("name a run's folder, one of its checkpoints, or a file");
      out.path = *newest;
    }
    out.sentence = str_cat("resuming from ", out.path);
    return out;
  }
  if (!exp.resume_if_exists) return out;
  // Better asked than guessed: its weights may give nothing but NaN, and starting from scratch is
  // not what was asked for.
  if (!unhealthy.empty())
    return invalid_argument(str_cat("the only checkpoint in ", folder.checkpoints, " is ",
                                    unhealthy.front(), ", saved after a step that was not finite"))
        .with_hint(
            "remove it to start from scratch, or set exp_manager.resume_from_checkpoint to it to "
            "go on all the same");
  if (!unfinished.empty())
    out.sentence =
        str_cat("only unfinished checkpoints in ", folder.checkpoints, ": starting from scratch");
  if (!exp.resume_ignore_no_checkpoint)
    return invalid_argument(str_cat("resume_if_exists is set, but there is no checkpoint in ",
                                    folder.checkpoints))
        .with_hint("set exp_manager.resume_ignore_no_checkpoint=true to start from scratch");
  if (out.sentence.empty())
    out.sentence = str_cat("no checkpoint in ", folder.checkpoints, ": starting from scratch");
  return out;
}

Status prepare_run_folder(Env& env, const RunFolder& folder, bool resumed) {
  AERIE_RETURN_IF_ERROR(env.create_dirs(folder.path));
  if (!resumed) return ok_status();
  AERIE_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, env.list_dir(folder.path));
  std::vector<std::string> loose;
  for (const DirEntry& entry : entries)
    if (is_loose_file(entry)) loose.push_back(entry.name);
  if (loose.empty()) return ok_status();
  AERIE_ASSIGN_OR_RETURN(const int64_t next, next_run_number(env, folder.path));
  const std::string target = str_cat(folder.path, "/run_", next);
  AERIE_RETURN_IF_ERROR(env.create_dir(target));
  for (const std::string& name : loose)
    AERIE_RETURN_IF_ERROR(env.rename(str_cat(folder.path, "/", name), str_cat(target, "/", name)));
  return ok_status();
}

Status describe_run(Env& env, const RunFolder& folder, const RunDescription& description) {
  AERIE_RETURN_IF_ERROR(
      env.atomic_replace(folder.path + "/cmd-args.log", description.command + "\n"));
  AERIE_RETURN_IF_ERROR(env.atomic_replace(folder.path + "/config.yaml", description.config_yaml));
  AERIE_RETURN_IF_ERROR(env.atomic_replace(folder.path + "/hparams.yaml", description.config_yaml));
  if (!description.git_info.empty())
    AERIE_RETURN_IF_ERROR(env.atomic_replace(folder.path + "/git-info.log", description.git_info));
  for (const std::string& path : description.files_to_copy) {
    const std::string name = path.substr(path.rfind('/') + 1);
    AERIE_RETURN_IF_ERROR(env.copy_file(path, str_cat(folder.path, "/", name))
                              .with_context("exp_manager.files_to_copy"));
  }
  return ok_status();
}

std::string git_info(Env& env, const std::string& folder) {
  constexpr uint64_t kMaxSize = 64u << 20;
  const auto read = [&](const std::string& path) {
    auto text = env.read_file(path, kMaxSize);
    return text.ok() ? std::string(trim(*text)) : std::string();
  };
  const auto is_hash = [](const std::string& text) {
    return text.size() >= 40 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
  };
  std::string at = folder;
  while (!at.empty() && !env.exists(at + "/.git")) at = at.substr(0, at.find_last_of('/'));
  if (at.empty()) return "";
  std::string git = at + "/.git";
  if (const auto stat = env.stat(git); stat.ok() && !stat->is_dir) {
    // A linked work tree: the file names its folder, which names the shared one.
    const std::string line = read(git);
    if (!starts_with(line, "gitdir: ")) return "";
    git = line.substr(8);
    if (!starts_with(git, "/")) git = str_cat(at, "/", git);
  }
  std::string common = read(git + "/commondir");
  common = common.empty() ? git : starts_with(common, "/") ? common : str_cat(git, "/", common);
  const std::string head = read(git + "/HEAD");
  std::string hash = head, branch;
  if (starts_with(head, "ref: ")) {
    const std::string ref = head.substr(5);
    if (ref.find("..") != std::string::npos) return "";
    branch = ref.substr(ref.find_last_of('/') + 1);
    hash = read(str_cat(common, "/", ref));
    if (!is_hash(hash)) {
      for (const std::string& line : split(read(common + "/packed-refs"), '\n'))
        if (ends_with(line, " " + ref)) hash = line.substr(0, line.find(' '));
    }
  }
  if (!is_hash(hash)) return "";
  return str_cat("commit hash: ", hash, "\n", branch.empty() ? "" : "branch: ", branch,
                 branch.empty() ? "" : "\n");
}

namespace {

// Takes the place of a field without a value: `out` is what precedes it, `at` the position in the
// pattern behind it.
void leave_out_field(const std::string& pattern, std::string& out, size_t& at) {
  constexpr std::string_view kSeparators = "-_.,+ ";
  const auto separates = [&](char c) { return kSeparators.find(c) != std::string_view::npos; };
  if (!out.empty() && out.back() == '=') {
    const size_t before = out.find_last_of(kSeparators);
    out.resize(before == std::string::npos ? 0 : before + 1);
  }
  const bool more = at < pattern.size();
  if (more && separates(pattern[at]) && (out.empty() || separates(out.back()))) {
    ++at;
  } else if (!more) {
    while (!out.empty() && separates(out.back())) out.pop_back();
  }
}

}  // namespace

Result<std::string> format_stem(const std::string& pattern, const std::vector<StemValue>& values,
                                bool insert_names) {
  std::string out;
  size_t at = 0;
  while (at < pattern.size()) {
    const size_t open = pattern.find('{', at);
    out += pattern.substr(at, open == std::string::npos ? open : open - at);
    if (open == std::string::npos) break;
    const size_t close = pattern.find('}', open);
    if (close == std::string::npos)
      return invalid_argument(str_cat("checkpoint filename '", pattern, "' has a '{' without '}'"));
    const std::string field = pattern.substr(open + 1, close - open - 1);
    const size_t colon = field.find(':');
    const std::string name = field.substr(0, colon);
    const auto value = std::find_if(values.begin(), values.end(),
                                    [&](const StemValue& v) { return v.name == name; });
    if (value == values.end()) {
      std::vector<std::string> known;
      for (const StemValue& v : values) known.push_back(v.name);
      return invalid_argument(str_cat("checkpoint filename '", pattern, "' uses '", name, "'"))
          .with_hint(str_cat("known: ", join(known, ", ")));
    }
    const std::string before = out;
    if (insert_names) out += name + "=";
    int digits = -1;
    bool as_integer = value->integer;
    if (colon != std::string::npos) {
      // Python's ".3f", "d", "02d"; anything else is refused rather than guessed.
      const std::string spec = field.substr(colon + 1);
      char* end = nullptr;
      if (!spec.empty() && spec[0] == '.' && spec.back() == 'f') {
        digits = static_cast<int>(std::strtol(spec.c_str() + 1, &end, 10));
        if (end != spec.c_str() + spec.size() - 1 || digits < 0 || digits > 17)
          return invalid_argument(
              str_cat("checkpoint filename: format ':", spec, "' is not understood"));
        as_integer = false;
      } else if (!spec.empty() && spec.back() == 'd') {
        const int width = static_cast<int>(std::strtol(spec.c_str(), &end, 10));
        if (end != spec.c_str() + spec.size() - 1 || width < 0 || width > 18)
          return invalid_argument(
              str_cat("checkpoint filename: format ':", spec, "' is not understood"));
        const auto whole = static_cast<long long>(value->value);
        out += spec[0] == '0' ? format_text("%0*lld", width, whole)
                              : format_text("%*lld", width, whole);
        at = close + 1;
        if (!value->measured) leave_out_field(pattern, out = before, at);
        continue;
      } else {
        return invalid_argument(
                   str_cat("checkpoint filename: format ':", spec, "' is not understood"))
            .with_hint("use forms like {val_loss:.3f} or {step}");
      }
    }
    if (as_integer)
      out += format_text("%lld", static_cast<long long>(value->value));
    else if (std::isnan(value->value))
      out += "nan";
    else
      out += format_text("%.*f", digits >= 0 ? digits : 4, value->value);
    at = close + 1;
    if (!value->measured) leave_out_field(pattern, out = before, at);
  }
  return out;
}

std::optional<double> metric_from_stem(const std::string& stem, const std::string& metric) {
  const size_t at = stem.find(metric + "=");
  if (at == std::string::npos) return std::nullopt;
  const char* begin = stem.c_str() + at + metric.size() + 1;
  char* end = nullptr;
  const double value = std::strtod(begin, &end);
  if (end == begin) return std::nullopt;
  return value;
}

}  // namespace aerie::train
