#include "aerie/ui/verdict.h"

#include <algorithm>
#include <cstdio>

namespace aerie::ui {

namespace {

constexpr double kBusyShare = 0.8;

double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

}  // namespace

const char* bound_name(Bound bound) {
  switch (bound) {
    case Bound::kUnknown:
      return "unknown";
    case Bound::kLoader:
      return "loader-bound";
    case Bound::kLaunch:
      return "launch-bound";
    case Bound::kCompute:
      return "compute-bound";
  }
  return "";
}

Verdict judge(const std::vector<metrics::Record>& records, const ReportWords& words) {
  std::vector<const metrics::Record*> train;
  bool gpu = false;  // as its engine says: not every driver counts utilisation
  for (const auto& record : records) {
    if (record.kind() == metrics::RecordKind::kTrain) train.push_back(&record);
    if (const std::string engine = record.text("engine"); !engine.empty())
      gpu = engine.find("cuda") != std::string::npos;
  }
  Verdict out;
  if (train.empty()) {
    out.sentence = "no training step was logged: nothing to judge";
    return out;
  }
  if (train.size() > 3)
    train.erase(train.begin(), train.begin() + static_cast<std::ptrdiff_t>(
                                                   std::max<size_t>(1, train.size() / 10)));
  double step_ms = 0.0, wait_ms = 0.0;
  double fused_step_ms = 0.0, device_ms = 0.0;  // of steps that the fast engine ran
  std::vector<double> steps, utils;
  for (const auto* record : train) {
    double value = 0.0;
    if (record->number("step_ms", &value)) {
      step_ms += value;
      steps.push_back(value);
    }
    if (record->number("data_wait_ms", &value)) wait_ms += value;
    if (record->number("gpu_util", &value)) utils.push_back(value);
    // Only the engine that runs both as one has this: device time without gaps.
    if (double fused = 0.0; record->number("forward_backward_ms", &fused)) {
      double optimizer = 0.0, step = 0.0;
      (void)record->number("optimizer_ms", &optimizer);
      (void)record->number("step_ms", &step);
      device_ms += fused + optimizer;
      fused_step_ms += step;
    }
  }
  const bool fast_engine = fused_step_ms > 0.0;
  const bool busy_in_steps = fast_engine && device_ms / fused_step_ms >= kBusyShare;
  out.step_ms = median(steps);
  out.data_wait_share = step_ms > 0.0 ? wait_ms / step_ms : 0.0;
  // The median: a sample taken during a save or a validation says nothing about the steps.
  if (!utils.empty()) out.gpu_util_percent = median(utils);
  const std::string numbers =
      str_cat("data wait ", fixed(100.0 * out.data_wait_share, 1), " % of step time, ",
              !utils.empty() ? str_cat("GPU ", fixed(out.gpu_util_percent, 0), " % busy")
              : gpu          ? "GPU use not counted by its driver"
                             : "no GPU",
              ", median step ", fixed(out.step_ms, 1), " ms");
  if (out.data_wait_share > 0.10) {
    out.bound = Bound::kLoader;
    out.sentence = str_cat("loader-bound: ", numbers, ". ", words.faster_data, ".");
  } else if (!utils.empty() && out.gpu_util_percent < 100.0 * kBusyShare && busy_in_steps) {
    // Samples of the driver say less than the steps' own device time: the rest is between steps, or
    // the run was too short for the driver's samples.
    out.bound = Bound::kCompute;
    out.sentence =
        str_cat("compute-bound: ", numbers,
                ". The steps keep the GPU busy, what lies between them does not: validate and save "
                "less often (trainer.val_check_interval), or judge a longer run.");
  } else if (utils.empty() ? fast_engine && !busy_in_steps
                           : out.gpu_util_percent < 100.0 * kBusyShare) {
    out.bound = Bound::kLaunch;
    out.sentence = str_cat("launch-bound: ", numbers, ". ", words.longer_steps,
                           fast_engine || words.one_engine ? ": the steps are too short."
                                                           : " or use aerie.engine=fast.");
  } else {
    out.bound = Bound::kCompute;
    out.sentence = str_cat("compute-bound: ", numbers, ".");
  }
  return out;
}

}  // namespace aerie::ui
