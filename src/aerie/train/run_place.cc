#include "aerie/train/run_place.h"

#include <optional>
#include <unistd.h>
#include <utility>

#include <nlohmann/json.hpp>

#include "aerie/base/early_log.h"
#include "aerie/base/log.h"
#include "aerie/base/strings.h"
#include "aerie/checkpoint/checkpoint_store.h"
#include "aerie/train/rank_talk.h"
#include "aerie/train/run_start.h"

namespace aerie::train {

namespace {

std::string working_directory() {
  char buffer[4096];
  return getcwd(buffer, sizeof buffer) != nullptr ? buffer : "";
}

// Named as NeMo names them: one a rank, and the warnings of rank 0.
Status add_log_files(const std::string& folder, const config::ExpManagerConfig& exp_manager,
                     const dist::ProcessGroup* ranks) {
  const int rank = ranks == nullptr ? 0 : ranks->rank();
  const int local_rank = ranks == nullptr ? 0 : ranks->world().local_rank;
  if ((exp_manager.log_local_rank_0_only && local_rank != 0) ||
      (exp_manager.log_global_rank_0_only && rank != 0))
    return ok_status();
  AERIE_RETURN_IF_ERROR(add_log_file(
      str_cat(folder, "/nemo_log_globalrank-", rank, "_localrank-", local_rank, ".txt"),
      LogLevel::kInfo));
  return rank == 0 ? add_log_file(folder + "/nemo_error_log.txt", LogLevel::kWarn) : ok_status();
}

// What the other ranks are told.
std::string told(const RunPlace& place) {
  nlohmann::json json;
  json["path"] = place.folder.path;
  json["checkpoints"] = place.folder.checkpoints;
  json["name"] = place.folder.name;
  json["version"] = place.folder.version;
  json["kind"] = static_cast<int>(place.plan.kind);
  // The one that was found whole, where there are several.
  json["start"] = place.point.loaded != nullptr ? place.point.loaded->info().path : place.plan.path;
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Status follow(const std::string& text, Env& env, const config::ExpManagerConfig& exp_manager,
              const dist::ProcessGroup& ranks, RunPlace* place) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return internal_error("rank 0 told no run folder");
  place->folder.path = json.value("path", std::string());
  place->folder.checkpoints = json.value("checkpoints", std::string());
  place->folder.name = json.value("name", std::string());
  place->folder.version = json.value("version", std::string());
  place->plan.kind = static_cast<ResumePlan::Kind>(json.value("kind", 0));
  place->plan.path = json.value("start", std::string());
  if (!place->keep) return ok_status();
  const auto missing = [&](const std::string& what) {
    return not_found(str_cat(what, " is not there on ", ranks.host_of(ranks.rank())))
        .with_hint("exp_manager.exp_dir must be a folder that all machines share");
  };
  if (!env.exists(place->folder.path)) return missing(place->folder.path);
  AERIE_RETURN_IF_ERROR(add_log_files(place->folder.path, exp_manager, &ranks));
  if (place->resumed() && !env.exists(place->plan.path)) return missing(place->plan.path);
  return ok_status();
}

// Everything that writes.
Result<std::string> lead(Job& job, const RunOptions& options, Clock& clock,
                         std::optional<EarlyLog>& early_log, RunPlace* place) {
  Env& env = *options.env;
  const config::LoopConfig& run = job.config();
  if (place->keep) {
    config::LoopConfig start = run;
    if (!options.resume_folder.empty()) {
      start.exp_manager.explicit_log_dir = options.resume_folder;
      start.exp_manager.resume_if_exists = start.exp_manager.resume_ignore_no_checkpoint = true;
      // Where the run has saved something, that and not what it once began with.
      const std::string& dirpath = run.exp_manager.checkpoint_callback_params.dirpath;
      const auto saved =
          env.list_dir(dirpath.empty() ? options.resume_folder + "/checkpoints" : dirpath);
      if (saved.ok() && !saved->empty()) start.exp_manager.resume_from_checkpoint.clear();
    }
    AERIE_ASSIGN_OR_RETURN(OpenedRunFolder opened, open_run_folder(env, clock, start));
    place->folder = std::move(opened.folder);
    place->plan = std::move(opened.plan);
    place->locks = std::move(opened.locks);
  } else {
    place->scratch = std::make_unique<TempDir>();
    place->folder = {place->scratch->path(), place->scratch->file("checkpoints"), "fast_dev_run",
                     ""};
    log_info("train", "fast_dev_run: ", run.trainer.fast_dev_run,
             " batches of everything; nothing is logged or saved");
  }
  const RunFolder& folder = place->folder;
  for (const std::string& warning : place->plan.warnings) log_warn("train", warning);
  if (!place->plan.sentence.empty()) log_info("train", place->plan.sentence);
  // Read before the files of the previous start are moved away.
  place->previous_config = load_run_config(folder.path);
  AERIE_RETURN_IF_ERROR(
      prepare_run_folder(env, folder, place->resumed()).with_context(folder.path));
  if (place->keep)
    AERIE_RETURN_IF_ERROR(add_log_files(folder.path, run.exp_manager, options.ranks.get()));
  early_log.reset();
  AERIE_RETURN_IF_ERROR(
      describe_run(env, folder,
                   {options.command, place->config_yaml, git_info(env, working_directory()),
                    run.exp_manager.files_to_copy}));
  if (place->keep) log_info("train", "run folder: ", folder.path);
  if (place->keep && options.on_folder) options.on_folder(folder.path);
  AERIE_ASSIGN_OR_RETURN(place->point, find_start_point(env, folder, place->plan));
  if (place->point.loaded != nullptr)
    log_info("train", "resuming from ", place->point.loaded->info().path, " at step ",
             place->point.state.step);
  return told(*place);
}

}  // namespace

Result<RunPlace> open_run_place(Job& job, const RunOptions& options, Clock& clock) {
  RunPlace place;
  std::optional<EarlyLog> early_log(std::in_place);  // until the log files are open
  place.keep = job.config().trainer.fast_dev_run == 0;
  AERIE_ASSIGN_OR_RETURN(place.config_yaml, job.config_yaml());
  dist::ProcessGroup* ranks = options.ranks.get();
  AERIE_ASSIGN_OR_RETURN(const std::string text, from_first_rank(ranks, [&] {
                           return lead(job, options, clock, early_log, &place);
                         }));
  if (leads(ranks)) return place;
  Env& env = *options.env;
  AERIE_RETURN_IF_ERROR(follow(text, env, job.config().exp_manager, *ranks, &place));
  early_log.reset();
  // The very checkpoint that rank 0 opened, whatever appears beside it.
  AERIE_ASSIGN_OR_RETURN(place.point, find_start_point(env, place.folder, place.plan));
  return place;
}

}  // namespace aerie::train
