#include "aerie/train/run_checkpointer.h"

#include <algorithm>
#include <utility>

#include "aerie/base/log.h"
#include "aerie/base/spans.h"
#include "aerie/base/strings.h"
#include "aerie/base/system.h"

namespace aerie::train {
namespace {

// Checkpoints with a value of the monitor compete for the best k.
bool competes(const SaveRequest& request, const config::CheckpointCallbackConfig& params) {
  return request.healthy && request.top_k && request.monitor.has_value() && params.save_top_k != 0;
}

// A run that stops before its end needs this one to go on, also without save_last.
bool stops(const SaveRequest& request) {
  return request.reason == SaveReason::kSignal || request.reason == SaveReason::kTimeLimit;
}

// A file system takes 255 bytes. Numbers in a name grow, and around it come marks such as
// "-unhealthy" and ".<name>.aerie-new".
constexpr size_t kMaxStemBytes = 200;

bool at_end(const SaveRequest& request) {
  return request.reason == SaveReason::kTrainEnd || request.state.finished;
}

}  // namespace

RunCheckpointer::RunCheckpointer(Env& env, Clock& clock, RunCheckpointerOptions options)
    : env_(env),
      clock_(clock),
      options_(std::move(options)),
      store_(env, options_.folder.checkpoints),
      best_(options_.rules.newest ? 1 : options_.params.save_top_k, options_.params.mode_max) {
  if (options_.write_lightning)
    lightning_.emplace(env, options_.folder.checkpoints, options_.write_lightning);
  if (options_.write_mm)
    mm_.emplace(
        env, options_.params.dirpath.empty() ? options_.folder.path : options_.folder.checkpoints,
        options_.write_mm, options_.mm_latest);
  thread_ = std::thread([this] { run(); });
}

RunCheckpointer::~RunCheckpointer() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Status RunCheckpointer::adopt_existing() {
  // A template that cannot be filled in is better found now than at the first save.
  constexpr const char* kKey = "exp_manager.checkpoint_callback_params.filename";
  const auto stem = stem_for({});
  if (!stem.ok()) return stem.status().with_context(kKey);
  if (stem->size() > kMaxStemBytes)
    return invalid_argument(str_cat("makes names of ", stem->size(),
                                    " bytes for checkpoints; at most ", kMaxStemBytes,
                                    " leave room for what is added to them"))
        .with_context(kKey)
        .with_hint("shorten it, or exp_manager.name where it is not given");
  if (lightning_) AERIE_RETURN_IF_ERROR(lightning_->adopt());
  if (mm_) AERIE_RETURN_IF_ERROR(mm_->adopt());
  AERIE_ASSIGN_OR_RETURN(std::vector<CheckpointInfo> existing, store_.list());
  std::lock_guard lock(mutex_);
  // The oldest first, as they came.
  std::reverse(existing.begin(), existing.end());
  for (const CheckpointInfo& info : existing) {
    if (!info.manifest.ok()) continue;  // reported where the run looked for its start
    if (options_.rules.newest && !info.is_unhealthy) {
      adopt_newest(info);
      continue;
    }
    if (info.is_last || info.is_unhealthy) {
      if (info.is_last && !last_stem_.empty()) outdated_[last_stem_] = last_step_;
      if (info.is_unhealthy) {
        outdated_[info.stem] = info.step;
      } else {
        last_stem_ = info.stem;
        last_step_ = info.step;
      }
      continue;
    }
    const auto state = store_.read_state(info.stem);
    if (!state.ok()) {
      log_warn("train", "checkpoint ", info.path,
               " does not count among the best: ", state.status().to_string());
      continue;
    }
    const auto value = state->judged_by(options_.monitor);
    // Earlier versions told their own only by the metric in the name.
    const bool ours = state->saved_as.empty()
                          ? metric_from_stem(info.stem, options_.monitor).has_value()
                          : state->saved_as == info.stem;
    if (ours && value) best_.add({info.stem, *value, info.step});
  }
  return ok_status();
}

bool RunCheckpointer::superseded(const SaveRequest& waiting, const SaveRequest& newer) const {
  const config::CheckpointCallbackConfig& params = options_.params;
  if (options_.rules.newest) return false;  // each is wanted
  // An unhealthy one takes the place of no healthy one.
  if (waiting.healthy && !newer.healthy) return false;
  if (!params.save_last && stops(waiting)) return false;
  if (!competes(waiting, params)) return true;
  if (params.save_top_k < 0) return false;  // all are kept
  // The earlier of two equal ones stays.
  const double value = *waiting.monitor;
  int64_t better = best_.not_worse_than(value);
  if (writing_ && competes(*writing_, params) && !best_.better(value, *writing_->monitor)) ++better;
  if (competes(newer, params) && best_.better(*newer.monitor, value)) ++better;
  return better >= params.save_top_k;
}

Status RunCheckpointer::save(SaveRequest request, std::unique_ptr<StateSnapshot> snapshot) {
  std::optional<Job> dropped;  // its memory goes after the lock
  {
    std::unique_lock lock(mutex_);
    // An idle writer takes up what waits at once.
    changed_.wait(lock, [this] { return !waiting_.has_value() || writing_.has_value(); });
    if (waiting_ && superseded(waiting_->request, request)) dropped = std::exchange(waiting_, {});
    if (dropped) ++superseded_;
    changed_.wait(lock, [this] { return !waiting_.has_value(); });
    waiting_ = Job{std::move(request), std::move(snapshot)};
    if (dropped)
      log_info("train", "step ", dropped->request.state.step,
               ": not written, the checkpoint of step ", waiting_->request.state.step,
               " came while the one before was being written");
  }
  changed_.notify_all();
  return ok_status();
}

std::vector<SaveReport> RunCheckpointer::take_reports() {
  std::lock_guard lock(mutex_);
  return std::exchange(reports_, {});
}

Status RunCheckpointer::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !waiting_.has_value() && !writing_.has_value(); });
  return last_error_;
}

std::string RunCheckpointer::last_stem() const {
  std::lock_guard lock(mutex_);
  return last_stem_;
}

std::string RunCheckpointer::best_stem() const {
  std::lock_guard lock(mutex_);
  return best_.best();
}

std::string RunCheckpointer::archive_path() const {
  // NeMo's rule: the prefix stands in for the experiment's name.
  const std::string& prefix = options_.params.prefix;
  std::string name =
      str_cat(prefix.empty() ? options_.folder.name : prefix, options_.params.postfix);
  // One name inside the folder, as stems are; the experiment's may nest.
  std::replace(name.begin(), name.end(), '/', '_');
  return str_cat(options_.folder.checkpoints, "/", name);
}

void RunCheckpointer::run() {
  set_span_thread_name("checkpoint writer");
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return waiting_.has_value() || stop_; });
    if (!waiting_.has_value()) return;
    Job job = std::move(*waiting_);
    waiting_.reset();
    writing_ = job.request;
    lock.unlock();
    changed_.notify_all();
    SaveReport report = write(job);
    job.snapshot.reset();
    lock.lock();
    last_error_ = report.status;
    report.superseded = std::exchange(superseded_, 0);
    reports_.push_back(std::move(report));
    writing_.reset();
    changed_.notify_all();
  }
}

SaveReport RunCheckpointer::write(Job& job) {
  SaveReport report;
  report.step = job.request.state.step;
  report.reason = job.request.reason;
  const double start = clock_.monotonic_s(), cpu = thread_cpu_s();
  const SpanScope span("write checkpoint");
  try {
    report.status = write_all(job, &report);
  } catch (const std::exception& error) {
    report.status = internal_error(error.what());
  }
  report.write_ms = (clock_.monotonic_s() - start) * 1e3;
  report.cpu_ms = (thread_cpu_s() - cpu) * 1e3;
  return report;
}

Result<std::string> RunCheckpointer::stem_for(const SaveRequest& request) const {
  if (options_.rules.newest) return mm_name(request);
  const std::string pattern =
      !options_.params.filename.empty()
          ? options_.params.filename
          : str_cat(options_.folder.name, "--{", options_.monitor, ":.4f}-{epoch}");
  std::vector<StemValue> values{{"step", static_cast<double>(request.state.step), true},
                                {"global_step", static_cast<double>(request.state.step), true},
                                {"epoch", static_cast<double>(request.state.epoch), true}};
  // The latest of every metric; one that was never measured has no value to put into a name.
  std::map<std::string, std::optional<double>> known;
  for (const std::string& name : options_.metrics) known[name];
  known["train_loss"];
  known[options_.monitor] = request.monitor;
  for (const auto& [name, value] : request.metrics)
    if (!known[name]) known[name] = value;
  for (const auto& [name, value] : known)
    values.push_back({name, value.value_or(0.0), false, value.has_value()});
  AERIE_ASSIGN_OR_RETURN(std::string stem,
                         format_stem(pattern, values, options_.params.auto_insert_metric_name));
  // A stem is one name inside the checkpoint folder.
  std::replace(stem.begin(), stem.end(), '/', '_');
  // Names that begin with a dot are those of unfinished saves: nobody goes on from them.
  if (starts_with(stem, ".")) stem[0] = '_';
  // A template of nothing but metrics, before the first was measured.
  if (stem.empty()) stem = str_cat("step=", request.state.step);
  return stem;
}

namespace {

// The model's own tensors: save_weights_only.
class WeightsOnly final : public StateSnapshot {
 public:
  explicit WeightsOnly(StateSnapshot& whole) : whole_(whole) {}
  Status wait() override {
    AERIE_RETURN_IF_ERROR(whole_.wait());
    tensors_.clear();
    for (const SnapshotTensor& tensor : whole_.tensors())
      if (tensor.file == "model") tensors_.push_back(tensor);
    return ok_status();
  }
  const std::vector<SnapshotTensor>& tensors() const override { return tensors_; }
  const std::string& scalars_json() const override { return whole_.scalars_json(); }

 private:
  StateSnapshot& whole_;
  std::vector<SnapshotTensor> tensors_;
};

}  // namespace

// The writer thread changes best_, last_stem_ and outdated_ under the mutex and may read them
// without it.
Status RunCheckpointer::write_all(Job& job, SaveReport* report) {
  AERIE_ASSIGN_OR_RETURN(std::string stem, stem_for(job.request));
  const config::CheckpointCallbackConfig& params = options_.params;
  WeightsOnly weights(*job.snapshot);
  StateSnapshot& snapshot =
      params.save_weights_only ? static_cast<StateSnapshot&>(weights) : *job.snapshot;
  if (job.request.monitor) {
    job.request.state.monitor_name = options_.monitor;
    job.request.state.monitor = job.request.monitor;
  } else {
    job.request.state.monitor_name.clear();
    job.request.state.monitor.reset();
  }

  if (options_.rules.newest && job.request.healthy) return write_newest(job, snapshot, report);
  const bool in_top_k = competes(job.request, params) && best_.admits(*job.request.monitor);
  if (!job.request.healthy) {
    if (params.save_last || stops(job.request))
      AERIE_RETURN_IF_ERROR(write_unhealthy(job, snapshot, report));
  } else {
    if (in_top_k) AERIE_RETURN_IF_ERROR(write_best(job, snapshot, &stem, report));
    // Without save_last a run that stops still leaves what it needs to go on.
    if (params.save_last || (!in_top_k && stops(job.request)))
      AERIE_RETURN_IF_ERROR(write_last(job, snapshot, stem, report));
    if (!report->stem.empty() || at_end(job.request)) {
      if (!params.save_last && !stops(job.request) && !last_stem_.empty()) {
        // Left by a run that was stopped; the one that went on from it has come further.
        std::lock_guard lock(mutex_);
        outdated_[std::exchange(last_stem_, {})] = last_step_;
      }
      AERIE_RETURN_IF_ERROR(remove_outdated(job.request.state.step));
    }
  }

  AERIE_RETURN_IF_ERROR(mirror_mm(job, snapshot, *report));

  const std::string best = best_.best();
  // save_best_model: written whenever there is a new best, so that the end finds it in place.
  bool wanted =
      params.save_best_model && !best.empty()
          ? in_top_k && best == stem && (params.always_save_nemo || params.save_nemo_on_train_end)
          : params.always_save_nemo || (params.save_nemo_on_train_end && at_end(job.request));
  // Weights that give no finite loss take the place of no others.
  if (!job.request.healthy && env_.exists(archive_path())) wanted = false;
  if (!options_.write_archive || !wanted) return ok_status();
  AERIE_RETURN_IF_ERROR(job.snapshot->wait());
  AERIE_RETURN_IF_ERROR(env_.create_dirs(options_.folder.checkpoints));
  return options_.write_archive(archive_path(), *job.snapshot);
}

Status RunCheckpointer::write_unhealthy(Job& job, StateSnapshot& snapshot, SaveReport* report) {
  AERIE_ASSIGN_OR_RETURN(std::string stem, stem_for(job.request));
  stem += kUnhealthySuffix;
  AERIE_ASSIGN_OR_RETURN(report->bytes, store_.save(stem, job.request.state, snapshot));
  report->stem = stem;
  log_warn("train", "the latest step was not finite: step ", job.request.state.step,
           " is saved as ", stem, "; a resumed run goes on from the newest healthy checkpoint",
           last_stem_.empty() ? "" : ", ", last_stem_);
  // One is enough.
  std::map<std::string, int64_t> kept;
  for (const auto& [other, step] : outdated_) {
    if (other == stem || !ends_with(other, kUnhealthySuffix)) {
      kept[other] = step;
    } else {
      AERIE_RETURN_IF_ERROR(store_.remove(other));
    }
  }
  kept[stem] = job.request.state.step;
  std::lock_guard lock(mutex_);
  outdated_ = std::move(kept);
  return ok_status();
}

Status RunCheckpointer::write_best(Job& job, StateSnapshot& snapshot, std::string* stem,
                                   SaveReport* report) {
  const int64_t step = job.request.state.step;
  // Saved twice at one step: the later value counts.
  const BestCheckpoints::Entry* same = best_.of_step(step);
  const std::string replaced = same != nullptr ? same->stem : best_.gives_way().value_or("");
  std::string unique = *stem;
  for (int k = 1;
       unique != replaced && env_.exists(str_cat(options_.folder.checkpoints, "/", unique)); ++k)
    unique = str_cat(*stem, "-v", k);
  *stem = unique;
  AERIE_ASSIGN_OR_RETURN(const uint64_t bytes, store_.save(unique, job.request.state, snapshot));
  report->bytes += bytes;
  report->stem = unique;
  {
    // Known from here on, even if what follows fails.
    std::lock_guard lock(mutex_);
    best_.add({unique, *job.request.monitor, step});
    writing_->top_k = false;  // counted among the best now
  }
  if (lightning_) AERIE_RETURN_IF_ERROR(lightning_->write(unique, job.request.state, snapshot));
  // More than one too many where a run was killed between writing the new and removing the old.
  std::string gone = same != nullptr && replaced != unique ? replaced : "";
  while (!gone.empty() || best_.too_many()) {
    if (gone.empty()) gone = best_.poorest();
    if (lightning_) AERIE_RETURN_IF_ERROR(lightning_->remove(gone));
    AERIE_RETURN_IF_ERROR(store_.remove(gone));
    std::lock_guard lock(mutex_);
    best_.remove(std::exchange(gone, {}));
  }
  return ok_status();
}

Status RunCheckpointer::write_last(Job& job, StateSnapshot& snapshot, const std::string& stem,
                                   SaveReport* report) {
  const std::string last = lightning_ ? native_last_stem(job.request.state.step) : stem + "-last";
  AERIE_ASSIGN_OR_RETURN(const uint64_t bytes, store_.save(last, job.request.state, snapshot));
  report->bytes += bytes;
  if (report->stem.empty()) report->stem = last;
  if (lightning_) AERIE_RETURN_IF_ERROR(lightning_->write_last(stem, job.request.state, snapshot));
  // The earlier one goes only after the new one is whole.
  std::lock_guard lock(mutex_);
  if (!last_stem_.empty() && last_stem_ != last) outdated_[last_stem_] = last_step_;
  outdated_.erase(last);
  last_stem_ = last;
  last_step_ = job.request.state.step;
  return ok_status();
}

Status RunCheckpointer::remove_outdated(int64_t step) {
  while (true) {
    const auto found = std::find_if(outdated_.begin(), outdated_.end(),
                                    [&](const auto& one) { return one.second <= step; });
    if (found == outdated_.end()) return ok_status();
    AERIE_RETURN_IF_ERROR(store_.remove(found->first));
    std::lock_guard lock(mutex_);
    outdated_.erase(found);
  }
}

}  // namespace aerie::train
