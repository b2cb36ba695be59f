#include "auto_batch.h"

#include <cmath>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "aerie/advisor/tune_search.h"
#include "aerie/advisor/tune_text.h"
#include "aerie/base/cache_dir.h"
#include "aerie/base/clock.h"
#include "aerie/base/file_lock.h"
#include "aerie/base/hash.h"
#include "aerie/base/log.h"
#include "aerie/base/path.h"
#include "aerie/base/signals.h"
#include "aerie/base/strings.h"
#include "aerie/config/yaml.h"
#include "aerie/data/cursor.h"
#include "aerie/train/run_folder.h"
#include "aerie/train/run_start.h"
#include "tune_trials.h"

namespace aerie::tools {

namespace {

using advisor::TuneSpace;

constexpr int kCacheVersion = 1;
constexpr double kSearchSeconds = 300.0;    // on a GPU
constexpr double kCpuSearchSeconds = 90.0;  // steps are timed there
constexpr double kCpuTrialSeconds = 4.0;

// Sizes and times of the files that a node names: what makes it other data.
void append_files(const config::Value& value, std::string& out) {
  if (value.is_string()) {
    const auto stat = Env::real().stat(expand_user(value.as_string()));
    if (stat.ok()) out += str_cat(value.as_string(), "|", stat->size, "|", stat->mtime_ns, "\n");
  } else if (value.is_list()) {
    for (const config::Value& item : value.as_list()) append_files(item, out);
  } else if (value.is_map()) {
    for (const config::MapEntry& entry : value.as_map()) append_files(entry.value, out);
  }
}

// Everything that memory and speed of a step hang on: model, training data, precision, engine,
// device.
Result<std::string> cache_key(const train::Job& job, const TuneHost& host) {
  AERIE_ASSIGN_OR_RETURN(const std::string yaml, job.config_yaml());
  AERIE_ASSIGN_OR_RETURN(config::Value tree, config::parse_yaml(yaml, "config.yaml"));
  config::Value kept{config::Map()};
  for (const char* node : {"model", "aerie"})
    if (const config::Value* value = tree.find(node); value != nullptr)
      AERIE_RETURN_IF_ERROR(kept.set(node, *value));
  for (const char* key : {"model.optim", "model.validation_ds", "model.test_ds", "aerie.seed"})
    kept.erase(key);
  for (const char* key : {"trainer.precision", "trainer.accumulate_grad_batches", "trainer.devices",
                          "trainer.num_nodes"})
    if (const config::Value* value = tree.find(key); value != nullptr)
      AERIE_RETURN_IF_ERROR(kept.set(key, *value));
  AERIE_ASSIGN_OR_RETURN(std::string text, config::emit_yaml(kept));
  if (const config::Value* data = tree.find("model.train_ds"); data != nullptr)
    append_files(*data, text);
  return str_cat("version ", kCacheVersion, "\n", job.task().family, "\n",
                 host.machine.gpu ? host.device : host.description, "\n", text);
}

// The file in the cache; empty: there is no cache folder.
std::string cache_file(const std::string& key) {
  const std::string folder = user_cache_dir();
  if (folder.empty()) return "";
  return join_path(folder, str_cat("batch_size/", sha256_hex(key).substr(0, 24), ".json"));
}

struct Found {
  int64_t batch = 0;
  std::string note;
};

std::optional<Found> read_cache(const std::string& file, const TuneSpace& space) {
  if (file.empty()) return std::nullopt;
  const auto text = Env::real().read_file(file);
  if (!text.ok()) return std::nullopt;
  const nlohmann::json entry = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  const auto damaged = [&] {
    log_warn("tune", file, " is damaged and is not used");
    return std::nullopt;
  };
  if (!entry.is_object() || entry.value("key", nlohmann::json()) != space.batch.key)
    return damaged();
  const nlohmann::json batch = entry.value("batch", nlohmann::json());
  if (!batch.is_number_integer() || batch.get<int64_t>() < 1 ||
      batch.get<int64_t>() > space.batch.most)
    return damaged();
  const auto text_of = [&](const char* name) {
    const nlohmann::json value = entry.value(name, nlohmann::json());
    return value.is_string() ? value.get<std::string>() : std::string("?");
  };
  return Found{batch.get<int64_t>(), str_cat("found on ", text_of("date"), " on ",
                                             text_of("device"), " for this model and data (", file,
                                             "; without that file it is found anew)")};
}

void write_cache(const std::string& file, const TuneSpace& space, const TuneHost& host,
                 const advisor::TuneResult& result) {
  if (file.empty()) return;
  const nlohmann::json entry{{"version", kCacheVersion},
                             {"key", space.batch.key},
                             {"unit", space.batch.unit},
                             {"batch", result.chosen.batch},
                             {"device", host.device},
                             {"date", iso_time(Clock::real().wall_ns())},
                             {"memory_used_gib", result.memory_used_gib},
                             {"memory_total_gib", result.memory_total_gib},
                             {"reasons", result.reasons}};
  const std::string text =
      entry.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  Env& env = Env::real();
  Status status = env.create_dirs(file.substr(0, file.rfind('/')));
  if (status.ok()) status = env.atomic_replace(file, text);
  if (!status.ok())
    log_warn("tune", "the batch size is not kept in the cache: ", status.to_string());
}

// One process looks for a size at a time: the others wait and take what it found. Nothing: there is
// no cache to find it in, or it took too long.
Result<std::optional<FileLock>> search_lock(const std::string& file, double patience_s) {
  if (file.empty() || !Env::real().create_dirs(parent_path(file)).ok())
    return std::optional<FileLock>();
  const double until = Clock::real().monotonic_s() + patience_s;
  for (bool told = false;; told = true) {
    auto lock = FileLock::acquire(file + ".lock", 0.5);
    if (lock.ok()) return std::optional<FileLock>(std::move(lock).value());
    if (lock.status().code() != StatusCode::kUnavailable || Clock::real().monotonic_s() > until)
      return std::optional<FileLock>();
    if (caught_signal() != 0) return Status(StatusCode::kCancelled, "stopped");
    if (!told)
      log_info("tune",
               "another process is looking for the batch size of this model and data: "
               "waiting for what it finds");
  }
}

// Of a run that this one goes on with: the size in its checkpoint.
Result<std::optional<Found>> resumed_batch(const train::Job& job, const TuneSpace& space,
                                           const TuneHost& host) {
  if (job.config().trainer.fast_dev_run > 0) return std::optional<Found>();
  Env& env = Env::real();
  AERIE_ASSIGN_OR_RETURN(const train::RunFolder folder,
                         train::run_folder_of(env, Clock::real(), job.config()));
  AERIE_ASSIGN_OR_RETURN(const train::ResumePlan plan,
                         train::plan_resume(env, folder, job.config().exp_manager));
  if (plan.kind != train::ResumePlan::Kind::kNative) return std::optional<Found>();
  AERIE_ASSIGN_OR_RETURN(const train::StartPoint point, train::find_start_point(env, folder, plan));
  const auto cursor = data::Cursor::parse(point.state.data_cursor_json);
  if (!cursor.ok()) return std::optional<Found>();
  int64_t batch = cursor->now.batch_size;
  if (cursor->now.batching && cursor->now.batching->batch_size)
    batch = *cursor->now.batching->batch_size;
  if (ends_with(space.batch.key, ".batch_duration")) {
    if (!cursor->now.batching || !cursor->now.batching->batch_duration)
      return std::optional<Found>();
    batch = std::llround(*cursor->now.batching->batch_duration);
  }
  if (batch < 1 || batch > space.batch.most) return std::optional<Found>();
  const std::string from = point.loaded != nullptr ? point.loaded->info().path : plan.path;
  return std::optional<Found>(Found{
      batch,
      str_cat("kept from ", from, ", which this run goes on from (now on ", host.device, ")")});
}

Result<Found> search(const TuneSpace& space, const TuneHost& host,
                     const std::vector<std::string>& config_args, const std::string& file) {
  log_info("tune", space.batch.key, " is auto: looking for the ",
           host.machine.gpu ? "largest that leaves 10 to 20 % of the GPU's memory free"
                            : "one past which throughput no longer grows",
           " (", host.description, ")");
  AERIE_ASSIGN_OR_RETURN(TrialRunner runner, TrialRunner::make(config_args));
  ProcessTrials trials(runner, space, host, kCpuTrialSeconds, /*say=*/true);
  advisor::TuneRules rules;
  rules.batch =
      host.machine.gpu ? advisor::BatchRule::kFillMemory : advisor::BatchRule::kThroughput;
  rules.budget_s = host.machine.gpu ? kSearchSeconds : kCpuSearchSeconds;
  AERIE_ASSIGN_OR_RETURN(const advisor::TuneResult result,
                         advisor::find_batch(space, rules, trials));
  write_cache(file, space, host, result);
  return Found{result.chosen.batch, str_cat("found now: ", result.reasons.back(),
                                            file.empty() ? "" : str_cat(" (kept in ", file, ")"))};
}

}  // namespace

Result<std::optional<AutoBatch>> settle_auto_batch(const models::Opened& opened,
                                                   const std::vector<std::string>& config_args,
                                                   bool started_by_others) {
  const models::Family& family = opened.dialect->family();
  const auto first = family.tune_space(*opened.config, {});
  if (!first.ok() || !first->batch.automatic) return std::optional<AutoBatch>();
  AERIE_ASSIGN_OR_RETURN(const std::unique_ptr<train::Job> job, family.make_job(*opened.config));
  AERIE_ASSIGN_OR_RETURN(const TuneHost host, tune_host(job->config().trainer));
  AERIE_ASSIGN_OR_RETURN(const TuneSpace space, family.tune_space(*opened.config, host.machine));

  AERIE_ASSIGN_OR_RETURN(std::optional<Found> found, resumed_batch(*job, space, host));
  if (!found && (started_by_others || job->config().trainer.num_nodes > 1))
    return unsupported("batch_size: auto is found by one process, and a launcher started several")
        .with_hint(
            "find it first with `aerie tune` and write the number, or let `aerie train` start "
            "the processes itself");
  std::string file;
  if (!found) {
    AERIE_ASSIGN_OR_RETURN(const std::string key, cache_key(*job, host));
    file = cache_file(key);
    found = read_cache(file, space);
  }
  if (!found) {
    const SignalCatcher signals;
    AERIE_ASSIGN_OR_RETURN(
        const std::optional<FileLock> lock,
        search_lock(file, 2.0 * (host.machine.gpu ? kSearchSeconds : kCpuSearchSeconds)));
    if (lock) found = read_cache(file, space);
    if (!found) {
      AERIE_ASSIGN_OR_RETURN(found, search(space, host, config_args, file));
    }
  }
  AutoBatch out;
  AERIE_ASSIGN_OR_RETURN(
      out.args, opened.dialect->with_changes(config_args, space.batch.changes(found->batch)));
  out.notes.push_back(
      str_cat("batch_size: auto is ", space.batch.key, "=", found->batch, ", ", found->note));
  advisor::TuneResult as_found;
  as_found.start = as_found.chosen = start_settings(space);
  if (const std::string rate = rate_sentence(space, as_found, advisor::RateRule::kKeep);
      !rate.empty())
    out.notes.push_back("learning rate: " + rate);
  return std::optional<AutoBatch>(std::move(out));
}

}  // namespace aerie::tools
