#include "aerie/train/run_checkpointer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "aerie/base/log.h"
#include "aerie/base/spans.h"

namespace aerie::train {
namespace {

// Checkpoints with a value of the monitor compete for the best k.
bool competes(const SaveRequest& request, const config::CheckpointCallbackConfig& params) {
  return request.top_k && request.monitor.has_value() && params.save_top_k != 0;
}

double monitor_value(const SaveRequest& request, const config::CheckpointCallbackConfig& params) {
  if (request.monitor && std::isfinite(*request.monitor)) return *request.monitor;
  const double infinity = std::numeric_limits<double>::infinity();
  return params.mode_max ? -infinity : infinity;
}

// A run that ends here needs this one to go on.
bool stops(const SaveRequest& request) {
  return request.reason == SaveReason::kSignal || request.reason == SaveReason::kTrainEnd ||
         request.reason == SaveReason::kTimeLimit ||
         (request.reason == SaveReason::kInterval && !request.monitor);
}

}  // namespace

RunCheckpointer::RunCheckpointer(Env& env, Clock& clock, RunCheckpointerOptions options)
    : env_(env),
      clock_(clock),
      options_(std::move(options)),
      store_(env, options_.folder.checkpoints) {
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
  AERIE_RETURN_IF_ERROR(
      stem_for({}).status().with_context("exp_manager.checkpoint_callback_params.filename"));
  AERIE_ASSIGN_OR_RETURN(const std::vector<CheckpointInfo> existing, store_.list());
  std::lock_guard lock(mutex_);
  for (const CheckpointInfo& info : existing) {
    if (info.is_last) {
      if (last_stem_.empty()) {
        last_stem_ = info.stem;
      } else {
        stale_.push_back(info.stem);
      }
    } else if (const auto value = metric_from_stem(info.stem, options_.monitor)) {
      best_[info.stem] = *value;
    }
  }
  return ok_status();
}

bool RunCheckpointer::superseded(const SaveRequest& waiting, const SaveRequest& newer) const {
  const config::CheckpointCallbackConfig& params = options_.params;
  if (!params.save_last && stops(waiting)) return false;
  if (!competes(waiting, params)) return true;
  if (params.save_top_k < 0) return false;  // all are kept
  const double value = monitor_value(waiting, params);
  // The earlier of two equal ones stays.
  const auto beats = [&](double other, bool earlier) {
    return earlier && other == value ? true : params.mode_max ? other > value : other < value;
  };
  int64_t better = 0;
  for (const auto& [stem, other] : best_) better += beats(other, true) ? 1 : 0;
  if (writing_ && competes(*writing_, params) && beats(monitor_value(*writing_, params), true))
    ++better;
  if (competes(newer, params) && beats(monitor_value(newer, params), false)) ++better;
  return better >= params.save_top_k;
}

Status RunCheckpointer::save(SaveRequest request, std::unique_ptr<StateSnapshot> snapshot) {
  std::optional<Job> dropped;  // its memory goes after the lock
  {
    std::unique_lock lock(mutex_);
    // An idle writer takes up what waits at once.
    changed_.wait(lock, [this] { return !waiting_.has_value() || writing_.has_value(); });
    if (waiting_ && superseded(waiting_->request, request)) dropped = std::exchange(waiting_, {});
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
  const auto better = [this](const auto& a, const auto& b) {
    return options_.params.mode_max ? a.second > b.second : a.second < b.second;
  };
  const auto best = std::min_element(best_.begin(), best_.end(), better);
  return best == best_.end() ? "" : best->first;
}

std::string RunCheckpointer::nemo_path() const {
  // NeMo's rule: the prefix stands in for the experiment's name.
  const std::string& prefix = options_.params.prefix;
  return str_cat(options_.folder.checkpoints, "/", prefix.empty() ? options_.folder.name : prefix,
                 options_.params.postfix);
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
    reports_.push_back(std::move(report));
    writing_.reset();
    changed_.notify_all();
  }
}

SaveReport RunCheckpointer::write(Job& job) {
  SaveReport report;
  report.step = job.request.state.step;
  report.reason = job.request.reason;
  const double start = clock_.monotonic_s();
  const SpanScope span("write checkpoint");
  try {
    report.status = write_all(job, &report);
  } catch (const std::exception& error) {
    report.status = internal_error(error.what());
  }
  report.write_ms = (clock_.monotonic_s() - start) * 1e3;
  return report;
}

Result<std::string> RunCheckpointer::stem_for(const SaveRequest& request) const {
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

Status RunCheckpointer::write_all(Job& job, SaveReport* report) {
  AERIE_ASSIGN_OR_RETURN(std::string stem, stem_for(job.request));
  const config::CheckpointCallbackConfig& params = options_.params;

  WeightsOnly weights(*job.snapshot);
  StateSnapshot& snapshot =
      params.save_weights_only ? static_cast<StateSnapshot&>(weights) : *job.snapshot;

  std::map<std::string, double> best;
  std::string last;
  std::vector<std::string> stale;
  {
    std::lock_guard lock(mutex_);
    best = best_;
    last = last_stem_;
    stale = stale_;
  }
  bool in_top_k = competes(job.request, params);
  const double value = monitor_value(job.request, params);
  const auto poorest = [&] {
    return std::max_element(best.begin(), best.end(), [&](const auto& a, const auto& b) {
      return params.mode_max ? a.second > b.second : a.second < b.second;
    });
  };
  if (in_top_k && params.save_top_k > 0 && static_cast<int64_t>(best.size()) >= params.save_top_k) {
    const double limit = poorest()->second;
    in_top_k = params.mode_max ? value > limit : value < limit;
  }
  if (in_top_k) {
    std::string unique = stem;
    for (int k = 1; best.contains(unique); ++k) unique = str_cat(stem, "-v", k);
    stem = unique;
    AERIE_ASSIGN_OR_RETURN(const uint64_t bytes, store_.save(stem, job.request.state, snapshot));
    report->bytes += bytes;
    report->stem = stem;
    best[stem] = value;
    // Known from here on, even if what follows fails.
    {
      std::lock_guard lock(mutex_);
      best_ = best;
      writing_->top_k = false;  // counted among the best now
    }
    // More than one too many where a run was killed between writing the new and removing the old.
    while (params.save_top_k > 0 && static_cast<int64_t>(best.size()) > params.save_top_k) {
      const std::string evict = poorest()->first;
      AERIE_RETURN_IF_ERROR(store_.remove(evict));
      best.erase(evict);
    }
  }
  // Without save_last a run that stops still leaves what it needs to go on.
  const bool write_last = params.save_last || (!in_top_k && stops(job.request));
  if (write_last) {
    const std::string new_last = stem + "-last";
    AERIE_ASSIGN_OR_RETURN(const uint64_t bytes,
                           store_.save(new_last, job.request.state, snapshot));
    report->bytes += bytes;
    if (report->stem.empty()) report->stem = new_last;
    // The earlier one goes only after the new one is whole.
    if (!last.empty() && last != new_last) AERIE_RETURN_IF_ERROR(store_.remove(last));
    last = new_last;
    for (const std::string& leftover : stale)
      if (leftover != new_last) AERIE_RETURN_IF_ERROR(store_.remove(leftover));
    stale.clear();
  }
  const auto better = [&](const auto& a, const auto& b) {
    return params.mode_max ? a.second > b.second : a.second < b.second;
  };
  const auto first = std::min_element(best.begin(), best.end(), better);
  const bool has_best = first != best.end();
  const bool is_best = has_best && in_top_k && first->first == stem;
  {
    std::lock_guard lock(mutex_);
    best_ = std::move(best);
    last_stem_ = std::move(last);
    stale_ = std::move(stale);
  }
  const bool at_end = job.request.reason == SaveReason::kTrainEnd || job.request.state.finished;
  // save_best_model: written whenever there is a new best, so that the end finds it in place.
  const bool wanted = params.save_best_model && has_best
                          ? is_best && (params.always_save_nemo || params.save_nemo_on_train_end)
                          : params.always_save_nemo || (params.save_nemo_on_train_end && at_end);
  const bool nemo = options_.write_nemo && wanted;
  if (nemo) {
    AERIE_RETURN_IF_ERROR(job.snapshot->wait());
    AERIE_RETURN_IF_ERROR(env_.create_dirs(options_.folder.checkpoints));
    AERIE_RETURN_IF_ERROR(options_.write_nemo(nemo_path(), *job.snapshot));
  }
  return ok_status();
}

}  // namespace aerie::train
