#include "aerie/train/run_start.h"

#include <cstdlib>
#include <utility>
#include <vector>

#include "aerie/base/log.h"
#include "aerie/base/path.h"
#include "aerie/base/signals.h"
#include "aerie/base/strings.h"
#include "aerie/config/resolver.h"
#include "aerie/config/yaml.h"
#include "aerie/train/fresh_start.h"

namespace aerie::train {

Result<RunFolder> run_folder_of(Env& env, Clock& clock, const config::LoopConfig& run) {
  config::ExpManagerConfig exp = run.exp_manager;
  // NeMo's exp_manager ignores Lightning's folder.
  if (!exp.present) exp.exp_dir = run.trainer.default_root_dir;
  const char* version = std::getenv("NEMO_EXPM_VERSION");
  return choose_run_folder(env, clock, exp, version != nullptr ? version : "");
}

namespace {

// The path without links and dots, also where its last parts do not exist yet.
std::string real_path(const std::string& given) {
  char* resolved = ::realpath(given.c_str(), nullptr);
  std::string out = resolved != nullptr ? resolved : "";
  std::free(resolved);
  if (!out.empty()) return out;
  const std::string parent = parent_path(given);
  return parent == given ? given : join_path(real_path(parent), base_name(given));
}

// Whether `path` is `folder` or lies in it, however they are spelt.
bool lies_in(const std::string& path, const std::string& folder) {
  return starts_with(real_path(path) + "/", real_path(folder) + "/");
}

// Locks the run folder under a name that is free, where the name is not given.
Result<std::unique_ptr<RunLock>> lock_run_folder(Env& env, Clock& clock,
                                                 const config::LoopConfig& run,
                                                 const RunLockOptions& options, RunFolder* folder) {
  constexpr int kMaxNames = 100;
  for (int attempt = 1;; ++attempt) {
    AERIE_ASSIGN_OR_RETURN(*folder, run_folder_of(env, clock, run));
    // What is refused before anything is there leaves nothing behind.
    if (!env.exists(folder->path))
      AERIE_RETURN_IF_ERROR(plan_resume(env, *folder, run.exp_manager).status());
    auto lock = RunLock::acquire(env, clock, folder->path, options);
    // Two runs that begin in the same second pick the same name.
    const bool taken = lock.status().code() == StatusCode::kUnavailable;
    if (!taken || !folder->version_is_free || attempt >= kMaxNames) return lock;
  }
}

}  // namespace

Result<OpenedRunFolder> open_run_folder(Env& env, Clock& clock, const config::LoopConfig& run) {
  const config::ExpManagerConfig& exp = run.exp_manager;
  RunLockOptions options;
  options.stop = [] { return caught_signal() != 0; };
  OpenedRunFolder out;
  AERIE_ASSIGN_OR_RETURN(auto lock, lock_run_folder(env, clock, run, options, &out.folder));
  out.locks.push_back(std::move(lock));
  const RunFolder& folder = out.folder;
  if (!run.aerie.ignore_missing_checkpoints && exp.resume_from_checkpoint.empty())
    AERIE_RETURN_IF_ERROR(check_recorded_saves(env, folder));
  // dirpath: two runs with different folders must not mix their checkpoints either.
  if (!lies_in(folder.checkpoints, folder.path)) {
    AERIE_ASSIGN_OR_RETURN(auto other, RunLock::acquire(env, clock, folder.checkpoints, options));
    out.locks.push_back(std::move(other));
  }

  AERIE_RETURN_IF_ERROR(finish_interrupted_move(env, folder, exp.files_to_copy));
  AERIE_RETURN_IF_ERROR(remove_leftovers(env, folder));
  AERIE_RETURN_IF_ERROR(CheckpointStore(env, folder.checkpoints).clean_up());
  AERIE_ASSIGN_OR_RETURN(out.plan, plan_resume(env, folder, exp));
  // A checkpoint of another folder makes this a new run here; one of this folder continues it.
  const bool continues =
      out.plan.kind != ResumePlan::Kind::kFresh &&
      (lies_in(out.plan.path, folder.path) || lies_in(out.plan.path, folder.checkpoints));
  if (continues) return out;
  AERIE_ASSIGN_OR_RETURN(const std::string aside,
                         set_previous_run_aside(env, folder, exp.files_to_copy));
  if (!aside.empty())
    log_info("train", "the earlier run in ", folder.path, " was moved to ", aside);
  return out;
}

Result<StartPoint> find_start_point(Env& env, const RunFolder& folder, const ResumePlan& plan) {
  StartPoint out;
  if (plan.kind != ResumePlan::Kind::kNative) return out;
  if (plan.path == folder.checkpoints) {
    const CheckpointStore store(env, folder.checkpoints);
    AERIE_ASSIGN_OR_RETURN(
        out.loaded, store.newest_valid([](const CheckpointInfo& info, const Status& status) {
          log_warn("train", "checkpoint ", info.path,
                   info.is_unhealthy && info.manifest.ok() ? " is passed over: "
                                                           : " is damaged and passed over: ",
                   status.to_string());
        }));
    if (out.loaded == nullptr)
      return data_error(str_cat("no valid checkpoint in ", folder.checkpoints))
          .with_hint("remove the damaged ones to start from scratch");
  } else {
    const size_t slash = plan.path.find_last_of('/');
    const CheckpointStore other(env, slash == std::string::npos ? "." : plan.path.substr(0, slash));
    AERIE_ASSIGN_OR_RETURN(out.loaded, other.open(plan.path.substr(slash + 1)));
  }
  out.state = out.loaded->state();
  return out;
}

Result<config::Value> load_run_config(const std::string& folder) {
  auto yaml = config::load_yaml(folder + "/config.yaml");
  if (yaml.ok()) return yaml;
  auto copy = config::load_yaml(folder + "/hparams.yaml");
  return copy.ok() ? std::move(copy) : std::move(yaml);
}

std::vector<config::Value> earlier_configs(Env& env, const RunFolder& folder,
                                           const ResumePlan& plan) {
  constexpr size_t kMaxStarts = 1000;
  std::vector<std::string> folders{folder.path};
  if (const auto entries = env.list_dir(folder.path); entries.ok())
    for (const DirEntry& entry : *entries)
      if (entry.is_dir && starts_with(entry.name, "run_") && folders.size() < kMaxStarts)
        folders.push_back(str_cat(folder.path, "/", entry.name));
  folders.push_back(parent_path(parent_path(plan.path)));
  std::vector<config::Value> out;
  for (const std::string& path : folders) {
    const auto yaml = load_run_config(path);
    if (!yaml.ok()) continue;
    config::ResolveOptions options;
    options.unset_env_is_missing = true;
    auto resolved = config::resolve_all(*yaml, options);
    if (resolved.ok()) out.push_back(std::move(resolved).value());
  }
  return out;
}

Status load_start_point(Env& env, Job& job, BuiltEngine& engine, const ResumePlan& plan,
                        StartPoint& point) {
  if (point.loaded != nullptr) {
    AERIE_RETURN_IF_ERROR(engine.engine->restore(*point.loaded));
    point.loaded.reset();
    return ok_status();
  }
  if (plan.kind == ResumePlan::Kind::kForeign) {
    AERIE_ASSIGN_OR_RETURN(point.state, job.import_checkpoint(env, engine, plan.path));
    point.state.data_cursor_json.clear();
    return ok_status();
  }
  return job.load_initial_weights(env, engine);
}

}  // namespace aerie::train
