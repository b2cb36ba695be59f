// What limits a run, from its own measurements: waiting for data, launching work, or computing.
#pragma once

#include <string>
#include <vector>

#include "aerie/metrics/record.h"
#include "aerie/ui/report_words.h"

namespace aerie::ui {

enum class Bound { kUnknown, kLoader, kLaunch, kCompute };

struct Verdict {
  Bound bound = Bound::kUnknown;
  double data_wait_share = 0.0;    // of step time, over the steady part of the run
  double gpu_util_percent = -1.0;  // median; -1: no GPU was sampled
  double step_ms = 0.0;            // median
  std::string sentence;            // one line with the numbers and what to try
};

// Judges the train records of a run; the first tenth (at least one record) is left out as warm-up
// when there are enough.
Verdict judge(const std::vector<metrics::Record>& records, const ReportWords& words = {});
const char* bound_name(Bound bound);  // "loader-bound", ...

}  // namespace aerie::ui
