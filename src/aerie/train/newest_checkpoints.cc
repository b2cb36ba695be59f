// RunCheckpointer by mmcv's rules, and mmcv's files by Lightning's.
#include <algorithm>
#include <cmath>

#include "aerie/base/format_text.h"
#include "aerie/base/log.h"
#include "aerie/base/strings.h"
#include "aerie/train/run_checkpointer.h"

namespace aerie::train {
namespace {

constexpr const char* kBestPrefix = "best_";

bool is_numbered(const std::string& stem) {
  for (const std::string_view prefix : {"iter_", "epoch_"})
    if (starts_with(stem, prefix))
      return stem.find_first_not_of("0123456789", prefix.size()) == std::string::npos &&
             stem.size() > prefix.size();
  return false;
}

}  // namespace

std::string RunCheckpointer::mm_name(const SaveRequest& request) const {
  const TrainState& state = request.state;
  if (options_.rules.by_epoch) {
    if (request.epochs_done > 0) return str_cat("epoch_", request.epochs_done);
    // One that was stopped inside an epoch has done no whole one since.
    if (state.batch_in_epoch == 0 && state.epoch > 0) return str_cat("epoch_", state.epoch);
    if (state.epoch_batches > 0 && state.batch_in_epoch >= state.epoch_batches)
      return str_cat("epoch_", state.epoch + 1);
  }
  return str_cat("iter_", state.step);
}

// Under the mutex; the oldest come first.
void RunCheckpointer::adopt_newest(const CheckpointInfo& info) {
  if (info.is_last) {
    // By the rules of earlier versions.
    outdated_[info.stem] = info.step;
    return;
  }
  const bool best = starts_with(info.stem, kBestPrefix);
  if (!best && !is_numbered(info.stem)) return;
  const auto state = store_.read_state(info.stem);
  if (!state.ok() || state->saved_as != info.stem) return;  // damaged, or somebody's copy
  if (best) {
    if (const auto value = state->judged_by(options_.monitor); value)
      best_.add({info.stem, *value, info.step});
    return;
  }
  regular_.push_back(info.stem);
  last_stem_ = info.stem;
  last_step_ = info.step;
}

Status RunCheckpointer::write_stem(const std::string& stem, const Job& job, StateSnapshot& snapshot,
                                   SaveReport* report) {
  AERIE_ASSIGN_OR_RETURN(const uint64_t bytes, store_.save(stem, job.request.state, snapshot));
  report->bytes += bytes;
  report->stem = stem;
  if (!mm_) return ok_status();
  return mm_->write(stem, str_cat(options_.folder.checkpoints, "/", stem), job.request.state,
                    snapshot, !starts_with(stem, kBestPrefix));
}

Status RunCheckpointer::remove_stem(const std::string& stem) {
  if (mm_) AERIE_RETURN_IF_ERROR(mm_->remove(stem));
  return store_.remove(stem);
}

Status RunCheckpointer::write_newest(Job& job, StateSnapshot& snapshot, SaveReport* report) {
  if (job.request.reason == SaveReason::kValidation)
    return write_best_of_newest(job, snapshot, report);
  const config::CheckpointCallbackConfig& params = options_.params;
  const bool stops =
      job.request.reason == SaveReason::kSignal || job.request.reason == SaveReason::kTimeLimit;
  const bool ends = job.request.reason == SaveReason::kTrainEnd;
  if ((ends && !params.save_last) || (params.save_top_k == 0 && !stops && !ends))
    return ok_status();
  const std::string stem = mm_name(job.request);
  AERIE_RETURN_IF_ERROR(write_stem(stem, job, snapshot, report));
  {
    std::lock_guard lock(mutex_);
    std::erase(regular_, stem);
    regular_.push_back(stem);
    last_stem_ = stem;
    last_step_ = job.request.state.step;
  }
  const auto most = static_cast<size_t>(std::max<int64_t>(1, params.save_top_k));
  while (params.save_top_k >= 0 && regular_.size() > most) {
    AERIE_RETURN_IF_ERROR(remove_stem(regular_.front()));
    std::lock_guard lock(mutex_);
    regular_.erase(regular_.begin());
  }
  return remove_outdated(job.request.state.step);
}

Status RunCheckpointer::write_best_of_newest(Job& job, StateSnapshot& snapshot,
                                             SaveReport* report) {
  const std::optional<double>& value = job.request.monitor;
  if (!value || !std::isfinite(*value) || !best_.admits(*value)) return ok_status();
  std::string monitor = options_.monitor;
  std::replace(monitor.begin(), monitor.end(), '/', '_');
  const std::string stem = str_cat(kBestPrefix, monitor, "_", mm_name(job.request));
  AERIE_RETURN_IF_ERROR(write_stem(stem, job, snapshot, report));
  {
    std::lock_guard lock(mutex_);
    best_.add({stem, *value, job.request.state.step});
  }
  log_info("train", "best ", options_.monitor, " so far, ", format_text("%.6g", *value),
           ": kept as ", stem);
  while (best_.too_many()) {
    const std::string gone = best_.poorest();
    AERIE_RETURN_IF_ERROR(remove_stem(gone));
    std::lock_guard lock(mutex_);
    best_.remove(gone);
  }
  return ok_status();
}

Status RunCheckpointer::mirror_mm(const Job& job, StateSnapshot& snapshot,
                                  const SaveReport& report) {
  if (!mm_ || report.stem.empty() || !job.request.healthy) return ok_status();
  const std::string native = str_cat(options_.folder.checkpoints, "/", report.stem);
  AERIE_RETURN_IF_ERROR(mm_->write(str_cat("iter_", job.request.state.step), native,
                                   job.request.state, snapshot,
                                   /*latest=*/true));
  std::set<std::string> names{str_cat("iter_", job.request.state.step)};
  for (const BestCheckpoints::Entry& entry : best_.entries())
    names.insert(str_cat("iter_", entry.step));
  if (!last_stem_.empty()) names.insert(str_cat("iter_", last_step_));
  return mm_->retain(names);
}

}  // namespace aerie::train
