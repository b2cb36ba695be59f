// How a run ended and whether its result can be trusted: the words of the log, the closing lines
// and the report.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace aerie::metrics {

enum class StopReason {
  kFinished,
  kSignal,
  kTimeLimit,
  kEarlyStopping,
  kFastDevRun,
  kAlreadyFinished,
};
const char* stop_reason_name(StopReason reason);

// "finished after step 1000", "stopped after step 12: signal (SIGTERM)": the one wording of the
// log, the closing lines and the report.
// `reason`: as stop_reason_name() gives it.
std::string stop_sentence(const std::string& reason, int64_t step, const std::string& why);

// Whether a run that ends can be trusted. A step is bad when it was skipped or gave a loss or a
// gradient that is not finite; single ones are no sign of harm (16-mixed skips one whenever its
// loss scale has grown too far, a broken recording spoils one batch).
class StepHealth {
 public:
  static constexpr size_t kWindow = 10;

  void add(bool bad);
  // The last two steps, or at least half of the last kWindow (of all, when there were fewer).
  bool unhealthy() const;
  // "the last 7 steps were not finite or skipped", "1 of the last 10 steps ..."; empty: none was.
  std::string sentence() const;
  const std::vector<bool>& recent_bad() const { return bad_; }  // oldest first
  void restore(std::vector<bool> recent_bad) { bad_ = std::move(recent_bad); }

 private:
  int64_t bad_at_end() const;
  std::vector<bool> bad_;
};

}  // namespace aerie::metrics
