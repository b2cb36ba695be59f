#include "aerie/ui/run_view.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "aerie/base/clock.h"
#include "aerie/base/progress.h"
#include "aerie/base/strings.h"
#include "aerie/config/schema/config_text.h"
#include "aerie/config/yaml.h"
#include "aerie/metrics/run_end.h"

namespace aerie::ui {

namespace {

using metrics::Record;
using metrics::RecordKind;

bool is_event(const Record& record, const char* name) {
  return record.kind() == RecordKind::kEvent && record.text("event") == name;
}

bool is_start(const Record& record) {
  return is_event(record, "start") || is_event(record, "resume");
}

double last_of(const std::vector<Record>& records, RecordKind kind, const std::string& field) {
  double out = std::nan("");
  for (const Record& record : records) {
    double value = 0.0;
    if (record.kind() == kind && record.number(field, &value)) out = value;
  }
  return out;
}

double mean_of(const std::vector<Record>& records, const std::string& field) {
  double sum = 0.0;
  int count = 0;
  for (const Record& record : records) {
    double value = 0.0;
    if (record.kind() == RecordKind::kTrain && record.number(field, &value) &&
        std::isfinite(value)) {
      sum += value;
      ++count;
    }
  }
  return count > 0 ? sum / count : std::nan("");
}

// "2026-11-16T10:00:00.123Z" as "2026-11-16 10:00:00 UTC".
std::string date_text(std::string date) {
  if (date.size() < 20 || date[10] != 'T' || date.back() != 'Z') return date;
  date[10] = ' ';
  return date.substr(0, 19) + " UTC";
}

std::string field_text(const Record::Value& value) {
  if (const int64_t* whole = std::get_if<int64_t>(&value); whole != nullptr && *whole >= 10000)
    return group_digits(static_cast<uint64_t>(*whole));
  if (const double* number = std::get_if<double>(&value)) return number_or_dash(*number);
  if (const bool* flag = std::get_if<bool>(&value)) return *flag ? "yes" : "no";
  std::string text;
  std::visit([&](const auto& v) { text = str_cat(v); }, value);
  return date_text(std::move(text));
}

// "memory_gib" as "memory, GiB", "batches_per_epoch" as "batches per epoch".
std::string label_of(std::string key) {
  for (const auto& [ending, unit] :
       {std::pair{"_gib", ", GiB"}, std::pair{"_ms", ", ms"}, std::pair{"_s", ", s"}})
    if (ends_with(key, ending)) key = key.substr(0, key.size() - std::string(ending).size()) + unit;
  std::replace(key.begin(), key.end(), '_', ' ');
  return key;
}

// The step a bad one was; earlier versions recorded where the loop was when it learned of it.
int64_t bad_step_of(const Record& record) {
  double step = 0.0;
  return record.number("bad_step", &step) ? static_cast<int64_t>(step) : record.step();
}

void judge_end(const std::vector<Record>& records, RunView& view) {
  const Record* end = nullptr;
  std::set<int64_t> bad;
  for (const Record& record : records) {
    if (is_event(record, "end")) end = &record;
    // What follows an end is another part of the run.
    if (record.kind() == RecordKind::kTrain || is_start(record)) end = nullptr;
    if (is_event(record, "nan")) bad.insert(bad_step_of(record));
  }
  if (end != nullptr && end->text("reason") == "failed") {
    view.state = RunState::kFailed;
    view.state_text = str_cat("after step ", end->step(), ": ", end->text("message"));
    return;
  }
  std::string health;
  bool unhealthy = false;
  if (end != nullptr) {
    health = end->text("health");
    for (const auto& [name, value] : end->fields())
      if (const bool* flag = std::get_if<bool>(&value); name == "healthy" && flag != nullptr)
        unhealthy = !*flag;
    view.state_text = metrics::stop_sentence(end->text("reason"), end->step(), end->text("why"));
  } else {
    metrics::StepHealth steps;
    for (int64_t step = std::max<int64_t>(
             1, view.steps - static_cast<int64_t>(metrics::StepHealth::kWindow) + 1);
         step <= view.steps; ++step)
      steps.add(bad.contains(step));
    health = steps.sentence();
    unhealthy = steps.unhealthy();
    view.state_text = str_cat("the last record is of step ", view.steps,
                              "; the run goes on, was killed, or is of an earlier version");
  }
  view.state = unhealthy        ? RunState::kUnhealthy
               : end != nullptr ? RunState::kHealthy
                                : RunState::kOpen;
  if (!health.empty()) view.state_text += str_cat("; ", health);
}

std::string one_line(const config::Value& value) {
  if (!value.is_list()) return config::python_str(value);
  std::vector<std::string> parts;
  for (const config::Value& item : value.as_list()) parts.push_back(one_line(item));
  return join(parts, ", ");
}

std::optional<config::Value> config_of(const ReportInput& input) {
  if (input.config_yaml.empty()) return std::nullopt;
  auto parsed = config::parse_yaml(input.config_yaml, "config.yaml");
  if (!parsed.ok() || !parsed->is_map()) return std::nullopt;
  return std::move(parsed).value();
}

}  // namespace

const char* run_state_name(RunState state) {
  switch (state) {
    case RunState::kHealthy:
      return "healthy";
    case RunState::kUnhealthy:
      return "unhealthy";
    case RunState::kFailed:
      return "failed";
    case RunState::kOpen:
      return "no end recorded";
  }
  return "";
}

std::string number_or_dash(double value) {
  return std::isfinite(value) ? short_number(value) : "–";
}

Series series_of(const std::vector<Record>& records, RecordKind kind, const std::string& field,
                 std::string name, int colour, double scale) {
  Series out;
  out.name = std::move(name);
  out.colour = colour;
  for (const Record& record : records) {
    double value = 0.0;
    if (record.kind() != kind || !record.number(field, &value)) continue;
    out.x.push_back(static_cast<double>(record.step()));
    out.y.push_back(value * scale);
  }
  out.dots = kind == RecordKind::kVal && out.x.size() <= 60;
  return out;
}

RunView view_run(const ReportInput& input) {
  const std::vector<Record>& records = input.records;
  const ReportWords& words = input.words;
  RunView out;
  out.verdict = judge(records, words);
  for (const Record& record : records) {
    out.steps = std::max(out.steps, record.step());
    out.wall_s = std::max(out.wall_s, record.wall_s());
    if (is_start(record) && out.date.empty()) {
      out.date = date_text(record.text("date"));
      out.host = record.text("host");
    }
    if (is_event(record, "resume"))
      out.resumes.push_back(
          {static_cast<double>(record.step()),
           str_cat("resumed at step ", record.step(), record.text("date").empty() ? "" : ", ",
                   record.text("date"))});
    double value = 0.0;
    if (record.kind() == RecordKind::kVal && record.number(words.monitor, &value) &&
        std::isfinite(value) &&
        !(words.monitor_max ? out.best_monitor >= value : out.best_monitor <= value)) {
      out.best_monitor = value;
      out.best_step = record.step();
    }
  }
  out.train_loss = last_of(records, RecordKind::kTrain, words.train_loss);
  out.eval_loss = last_of(records, RecordKind::kVal, words.eval_loss);
  out.monitor = last_of(records, RecordKind::kVal, words.monitor);
  out.throughput = mean_of(records, words.throughput);
  out.padding_share = mean_of(records, "padding_share");
  for (const ReportWords::Tile& share : words.shares)
    out.shares.push_back(mean_of(records, share.field));
  judge_end(records, out);
  return out;
}

Rows machine_rows(const ReportInput& input) {
  Rows out;
  // The latest start: a run may go on elsewhere than it began.
  const Record* start = nullptr;
  for (const Record& record : input.records)
    if (is_start(record)) start = &record;
  if (start != nullptr)
    for (const auto& [key, value] : start->fields())
      if (key != "event" && key != "name" && key != kReportWordsField)
        out.emplace_back(label_of(key), field_text(value));
  if (const auto config = config_of(input)) {
    for (const ReportWords::Setting& setting : input.words.data_settings) {
      const config::Value* value = config->find(setting.key);
      if (value != nullptr && !value->is_null() && !value->is_map())
        out.emplace_back(setting.label, one_line(*value));
    }
  }
  if (!input.folder.empty()) out.emplace_back("run folder", input.folder);
  if (!input.command.empty()) out.emplace_back("command", input.command);
  return out;
}

std::vector<EventRow> event_rows(const std::vector<Record>& records, size_t limit,
                                 size_t* left_out) {
  std::vector<EventRow> out;
  *left_out = 0;
  std::map<std::string, std::string> machine;  // of the start before
  int64_t last_bad = -1, first_bad = -1;
  for (const Record& record : records) {
    const std::string name = record.text("event");
    if (record.kind() != RecordKind::kEvent || name == "save" || name == "loader") continue;
    const bool starts = is_start(record);
    const bool bad = name == "nan";
    bool failed = false;
    std::string details;
    for (const auto& [key, value] : record.fields()) {
      if (key == "event") continue;
      std::string text = field_text(value);
      if (starts) {
        const auto [before, is_new] = machine.try_emplace(key, text);
        const bool changed = !is_new && before->second != text;
        before->second = text;
        if (name == "start" || (!changed && key != "date")) continue;
      }
      failed = failed || (key == "ok" && text == "no");
      if (text.size() > 300) text = text.substr(0, 300) + "…";
      details += str_cat(details.empty() ? "" : " · ", label_of(key), " ", text);
    }
    if (name == "start" || (name == "saved" && !failed)) continue;
    const int64_t step = bad ? bad_step_of(record) : record.step();
    if (bad && !out.empty() && out.back().name == "nan" && step == last_bad + 1) {
      out.back().step = str_cat(first_bad, "–", step);
      last_bad = step;
      continue;
    }
    if (bad) first_bad = last_bad = step;
    if (out.size() >= limit) {
      ++*left_out;
      continue;
    }
    out.push_back({str_cat(step), human_duration(record.wall_s()), name, std::move(details)});
  }
  return out;
}

std::vector<std::vector<std::string>> config_table(const std::vector<ReportInput>& runs) {
  std::map<std::string, std::vector<std::string>> rows;
  const auto first = config_of(runs.front());
  if (!first) return {};
  for (size_t i = 1; i < runs.size(); ++i) {
    const auto other = config_of(runs[i]);
    if (!other) continue;
    for (const config::Difference& difference : config::config_differences(*first, *other)) {
      auto [row, is_new] = rows.try_emplace(difference.key, runs.size(), "–");
      if (is_new && difference.before != nullptr)
        std::fill(row->second.begin(), row->second.begin() + static_cast<std::ptrdiff_t>(i),
                  one_line(*difference.before));
      row->second[i] = difference.after != nullptr ? one_line(*difference.after) : "–";
    }
    // Where this one is as the first, while an earlier one differed.
    for (auto& [key, row] : rows)
      if (row[i] == "–")
        if (const config::Value* value = other->find(key); value != nullptr)
          row[i] = one_line(*value);
  }
  std::vector<std::vector<std::string>> out;
  for (auto& [key, row] : rows) {
    row.insert(row.begin(), key);
    out.push_back(std::move(row));
  }
  return out;
}

}  // namespace aerie::ui
