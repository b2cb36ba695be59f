// What a report says about one run, read from its records and configuration.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "aerie/metrics/record.h"
#include "aerie/ui/report_words.h"
#include "aerie/ui/svg_chart.h"
#include "aerie/ui/verdict.h"

namespace aerie::ui {

// A picture that a validation left in the run's folder.
struct RunPicture {
  int64_t step = 0;
  std::string name;   // of its file, without the ending
  std::string bytes;  // JPEG
};

struct ReportInput {
  std::string title;
  std::string folder;
  std::vector<metrics::Record> records;
  std::string config_yaml;
  std::string command;
  std::vector<std::pair<std::string, std::string>> bad_samples;  // id, reason
  int64_t bad_lines = 0;                                         // of metrics.jsonl
  ReportWords words;
  std::vector<RunPicture> pictures;  // of the first and the latest validation
};

enum class RunState { kHealthy, kUnhealthy, kFailed, kOpen };
const char* run_state_name(RunState state);  // "healthy", "unhealthy", "failed", "no end recorded"

struct RunView {
  RunState state = RunState::kOpen;
  std::string state_text;  // "finished after step 1000"
  Verdict verdict;
  int64_t steps = 0;
  double wall_s = 0.0;
  // Not a number: never measured.
  double train_loss = std::numeric_limits<double>::quiet_NaN();
  double eval_loss = train_loss, monitor = train_loss, throughput = train_loss;
  double best_monitor = train_loss;
  int64_t best_step = 0;  // of the best monitor
  double padding_share = train_loss;
  std::vector<double> shares;   // as ReportWords::shares names them
  std::string date, host;       // of the first start; empty: not recorded
  std::vector<Marker> resumes;  // where the run went on after a stop
};

using Rows = std::vector<std::pair<std::string, std::string>>;
struct EventRow {
  std::string step, time, name, details;
};

RunView view_run(const ReportInput& input);
// Machine, software and data of the latest start, one row each.
Rows machine_rows(const ReportInput& input);
// What happened beside steps and saves that worked. A resume names what changed since the start
// before it; bad steps one after the other share a row. `left_out`: how many rows beyond `limit`.
std::vector<EventRow> event_rows(const std::vector<metrics::Record>& records, size_t limit,
                                 size_t* left_out);
// Values of a field over the steps.
Series series_of(const std::vector<metrics::Record>& records, metrics::RecordKind kind,
                 const std::string& field, std::string name, int colour, double scale = 1.0);
// Keys whose values differ between the runs: key, then one value a run.
std::vector<std::vector<std::string>> config_table(const std::vector<ReportInput>& runs);

std::string number_or_dash(double value);

}  // namespace aerie::ui
