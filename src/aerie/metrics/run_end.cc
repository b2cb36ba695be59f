#include "aerie/metrics/run_end.h"

#include <algorithm>

#include "aerie/base/strings.h"

namespace aerie::metrics {

const char* stop_reason_name(StopReason reason) {
  switch (reason) {
    case StopReason::kFinished:
      return "finished";
    case StopReason::kSignal:
      return "signal";
    case StopReason::kTimeLimit:
      return "time limit";
    case StopReason::kEarlyStopping:
      return "early stopping";
    case StopReason::kFastDevRun:
      return "fast_dev_run";
    case StopReason::kAlreadyFinished:
      return "already finished";
  }
  return "";
}

std::string stop_sentence(const std::string& reason, int64_t step, const std::string& why) {
  if (reason == stop_reason_name(StopReason::kFinished))
    return str_cat("finished after step ", step);
  if (reason == stop_reason_name(StopReason::kAlreadyFinished))
    return str_cat("already finished at step ", step, "; raise ", why);
  return str_cat("stopped after step ", step, ": ", reason,
                 why.empty() ? "" : str_cat(" (", why, ")"));
}

void StepHealth::add(bool bad) {
  if (bad_.size() >= kWindow) bad_.erase(bad_.begin());
  bad_.push_back(bad);
}

int64_t StepHealth::bad_at_end() const {
  const auto good = std::find(bad_.rbegin(), bad_.rend(), false);
  return good - bad_.rbegin();
}

bool StepHealth::unhealthy() const {
  const auto bad = std::count(bad_.begin(), bad_.end(), true);
  return bad_at_end() >= 2 || (bad > 0 && 2 * static_cast<size_t>(bad) >= bad_.size());
}

std::string StepHealth::sentence() const {
  const auto bad = std::count(bad_.begin(), bad_.end(), true);
  if (bad == 0) return "";
  if (bad_at_end() == bad)
    return bad == 1 ? "the last step was not finite or skipped"
                    : str_cat("the last ", bad, " steps were not finite or skipped");
  return str_cat(bad, " of the last ", bad_.size(), " steps ", bad == 1 ? "was" : "were",
                 " not finite or skipped");
}

}  // namespace aerie::metrics
