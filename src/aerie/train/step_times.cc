#include "aerie/train/step_times.h"

#include <algorithm>

#include "aerie/base/format_text.h"
#include "aerie/base/strings.h"

namespace aerie::train {
namespace {

constexpr int64_t kWarmUp = 20;

std::string ms_text(double seconds) {
  return format_text("%.4g ms", seconds * 1e3);
}

}  // namespace

void StepTimes::add(int64_t step, double seconds, bool first_run) {
  if (++seen_ <= kWarmUp) return;
  if (first_run) {
    ++first_runs_;
    slowest_first_run_s_ = std::max(slowest_first_run_s_, seconds);
    return;
  }
  seconds_.push_back(static_cast<float>(seconds));
  if (seconds <= slowest_s_) return;
  slowest_s_ = seconds;
  slowest_step_ = step;
}

double StepTimes::median_s() const {
  if (seconds_.empty()) return 0.0;
  std::vector<float> copy = seconds_;
  const auto middle = copy.begin() + static_cast<std::ptrdiff_t>(copy.size() / 2);
  std::nth_element(copy.begin(), middle, copy.end());
  return static_cast<double>(*middle);
}

std::string StepTimes::sentence() const {
  if (seconds_.empty()) return "";
  std::string out = str_cat("step time after the first ", kWarmUp, ": median ", ms_text(median_s()),
                            ", slowest ", ms_text(slowest_s_), " (step ", slowest_step_, ")");
  if (first_runs_ > 0)
    out += str_cat("; ", first_runs_,
                   " more ran a shape of batch for the first or second time, the slowest in ",
                   ms_text(slowest_first_run_s_));
  return out;
}

}  // namespace aerie::train
