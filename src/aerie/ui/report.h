// report.html of a run: one self-contained page (no script, no outside link) drawn from
// metrics.jsonl and the files beside it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/metrics/record.h"
#include "aerie/ui/verdict.h"

namespace aerie::ui {

struct ReportInput {
  std::string title;
  std::vector<metrics::Record> records;
  std::string config_yaml;
  std::string command;
  std::vector<std::pair<std::string, std::string>> bad_samples;  // id, reason
  int64_t bad_lines = 0;                                         // of metrics.jsonl
};

std::string render_report(const ReportInput& input);

// Reads the files of a run's folder. Only metrics.jsonl must be there.
Result<ReportInput> load_report_input(Env& env, const std::string& run_dir);
// load + render + atomic write of <run_dir>/report.html; returns its path.
Result<std::string> write_report(Env& env, const std::string& run_dir);

}  // namespace aerie::ui
