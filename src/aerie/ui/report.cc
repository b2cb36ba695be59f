#include "aerie/ui/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>

#include <nlohmann/json.hpp>

#include "aerie/base/clock.h"
#include "aerie/metrics/metrics_log.h"
#include "aerie/ui/svg_chart.h"

namespace aerie::ui {

namespace {

using metrics::Record;
using metrics::RecordKind;

constexpr char kStyle[] = R"(<style>
:root{--ink:#1b2330;--soft:#5c6b7f;--line:#dde3ea;--paper:#ffffff;--card:#f6f8fa;--accent:#1f6feb}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9aa7b5;--line:#2c3440;--paper:#0f141a;--card:#171d25;--accent:#58a6ff}}
body{margin:0 auto;max-width:1360px;padding:24px;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
h1{font-size:24px;margin:0 0 4px}h2{font-size:18px;margin:32px 0 10px}
.sub{color:var(--soft);margin:0 0 18px}
.verdict{border-left:4px solid var(--accent);background:var(--card);padding:12px 16px;font-size:16px}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(170px,1fr));gap:12px;margin:18px 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 14px}
.tile b{display:block;font-size:20px}.tile span{color:var(--soft);font-size:13px}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(460px,1fr));gap:14px}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:8px}
svg{width:100%;height:auto;display:block;fill:var(--ink)}
svg .title{font-size:14px;font-weight:600}svg .tick{font-size:11px;fill:var(--soft)}svg .grid{stroke:var(--line)}
table{border-collapse:collapse;width:100%;font-size:14px}
th,td{text-align:left;padding:5px 10px;border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:anywhere}
th{white-space:nowrap}
pre{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px;overflow:auto;font-size:13px}
summary{cursor:pointer;color:var(--accent)}
</style>)";

constexpr char kBlue[] = "#2f7fe0", kOrange[] = "#e07b2f", kGreen[] = "#2f9e5b",
               kPurple[] = "#8a5bd6", kRed[] = "#d6455b";

Series series_of(const std::vector<Record>& records, RecordKind kind, const char* field,
                 std::string name, const char* colour, double scale = 1.0) {
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

// Exponential smoothing that ignores values which are not finite.
void smooth(Series& line) {
  if (line.y.size() < 20) return;
  double state = std::nan("");
  for (const double y : line.y) {
    if (std::isfinite(y)) state = std::isfinite(state) ? 0.95 * state + 0.05 * y : y;
    line.smooth.push_back(state);
  }
}

double last_of(const std::vector<Record>& records, RecordKind kind, const char* field) {
  double out = std::nan("");
  for (const Record& record : records) {
    double value = 0.0;
    if (record.kind() == kind && record.number(field, &value)) out = value;
  }
  return out;
}

double mean_of(const std::vector<Record>& records, const char* field) {
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

std::string tile(const std::string& value, const std::string& label) {
  return str_cat("<div class=\"tile\"><b>", html_escape(value), "</b><span>", html_escape(label),
                 "</span></div>\n");
}

std::string number_or_dash(double value) {
  return std::isfinite(value) ? short_number(value) : "–";
}

std::string percent(double share) {
  if (!std::isfinite(share)) return "–";
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", 100.0 * share);
  return text;
}

std::string field_text(const Record::Value& value) {
  if (const double* number = std::get_if<double>(&value)) return number_or_dash(*number);
  if (const bool* flag = std::get_if<bool>(&value)) return *flag ? "yes" : "no";
  std::string text;
  std::visit([&](const auto& v) { text = str_cat(v); }, value);
  return text;
}

// "memory_gib" as "memory, GiB", "batches_per_epoch" as "batches per epoch".
std::string label_of(std::string key) {
  for (const auto& [ending, unit] :
       {std::pair{"_gib", ", GiB"}, std::pair{"_ms", ", ms"}, std::pair{"_s", ", s"}})
    if (ends_with(key, ending)) key = key.substr(0, key.size() - std::string(ending).size()) + unit;
  std::replace(key.begin(), key.end(), '_', ' ');
  return key;
}

std::string event_rows(const std::vector<Record>& records) {
  std::string out;
  int shown = 0;
  for (const Record& record : records) {
    const std::string name = record.text("event");
    if (record.kind() != RecordKind::kEvent || name == "start" || name == "save") continue;
    if (++shown > 200) continue;
    std::string details;
    for (const auto& [key, value] : record.fields()) {
      if (key == "event") continue;
      std::string text = field_text(value);
      if (text.size() > 300) text = text.substr(0, 300) + "…";
      details += str_cat(details.empty() ? "" : " · ", label_of(key), " ", text);
    }
    out +=
        str_cat("<tr><td>", record.step(), "</td><td>", human_duration(record.wall_s()),
                "</td><td>", html_escape(name), "</td><td>", html_escape(details), "</td></tr>\n");
  }
  if (shown > 200) out += str_cat("<tr><td colspan=\"4\">and ", shown - 200, " more</td></tr>");
  return out;
}

}  // namespace

std::string render_report(const ReportInput& input) {
  const auto& records = input.records;
  const Verdict verdict = judge(records);
  int64_t steps = 0;
  double wall = 0.0;
  for (const Record& record : records) {
    steps = std::max(steps, record.step());
    wall = std::max(wall, record.wall_s());
  }
  std::string out =
      str_cat("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">",
              "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>",
              html_escape(input.title), " · aerie report</title>", kStyle, "</head><body>\n<h1>",
              html_escape(input.title), "</h1><p class=\"sub\">", steps, " optimizer steps in ",
              human_duration(wall), "</p>\n<p class=\"verdict\">", html_escape(verdict.sentence),
              "</p>\n<div class=\"tiles\">\n");
  out +=
      tile(number_or_dash(last_of(records, RecordKind::kTrain, "train_loss")), "train_loss, last");
  out += tile(number_or_dash(last_of(records, RecordKind::kVal, "val_loss")), "val_loss, last");
  out += tile(number_or_dash(mean_of(records, "audio_s_per_s")), "audio seconds per second, mean");
  out += tile(str_cat(short_number(verdict.step_ms), " ms"), "step, median");
  out += tile(percent(verdict.data_wait_share), "data wait");
  if (verdict.gpu_util_percent >= 0.0)
    out += tile(percent(verdict.gpu_util_percent / 100.0), "GPU busy");
  out += tile(percent(mean_of(records, "padding_share")), "padding share");
  out += tile(percent(mean_of(records, "masked_share")), "masked share of frames");
  out += "</div>\n<h2>Curves</h2><div class=\"charts\">\n";

  Series loss = series_of(records, RecordKind::kTrain, "train_loss", "train", kBlue);
  smooth(loss);
  out +=
      line_chart("Loss", "nats",
                 {loss, series_of(records, RecordKind::kVal, "val_loss", "validation", kOrange)});
  out += line_chart("Learning rate", "",
                    {series_of(records, RecordKind::kTrain, "learning_rate", "lr", kGreen)});
  Series norm = series_of(records, RecordKind::kTrain, "grad_norm", "norm", kPurple);
  smooth(norm);
  out += line_chart("Gradient norm", "before clipping", {norm});
  Series throughput = series_of(records, RecordKind::kTrain, "audio_s_per_s", "throughput", kBlue);
  smooth(throughput);
  out += line_chart("Throughput", "audio seconds per second", {throughput});
  Series step = series_of(records, RecordKind::kTrain, "step_ms", "step", kBlue);
  Series wait = series_of(records, RecordKind::kTrain, "data_wait_ms", "data wait", kRed);
  smooth(step);
  smooth(wait);
  out += line_chart("Step and data wait", "ms", {step, wait});
  if (verdict.gpu_util_percent >= 0.0) {
    out += line_chart("GPU utilisation", "%",
                      {series_of(records, RecordKind::kTrain, "gpu_util", "GPU", kGreen)});
  }
  std::vector<Series> memory{series_of(records, RecordKind::kTrain, "rss_gib", "host", kPurple)};
  Series gpu_memory = series_of(records, RecordKind::kTrain, "gpu_mem_gib", "GPU", kGreen);
  if (!gpu_memory.x.empty()) memory.push_back(gpu_memory);
  out += line_chart("Memory", "GiB", memory);
  Series padding =
      series_of(records, RecordKind::kTrain, "padding_share", "padding", kOrange, 100.0);
  smooth(padding);
  out += line_chart("Padding share", "%", {padding});
  out += "</div>\n";

  out += "<h2>Machine and run</h2><table>\n";
  // The latest start: a run may go on elsewhere than it began.
  const Record* start = nullptr;
  for (const Record& record : records)
    if (record.kind() == RecordKind::kEvent &&
        (record.text("event") == "start" || record.text("event") == "resume"))
      start = &record;
  if (start != nullptr) {
    for (const auto& [key, value] : start->fields()) {
      if (key == "event") continue;
      out += str_cat("<tr><th>", html_escape(label_of(key)), "</th><td>",
                     html_escape(field_text(value)), "</td></tr>\n");
    }
  }
  if (!input.command.empty())
    out += str_cat("<tr><th>command</th><td><code>", html_escape(input.command),
                   "</code></td></tr>\n");
  out += "</table>\n";

  const std::string events = event_rows(records);
  if (!events.empty())
    out += str_cat(
        "<h2>Events</h2><table><tr><th>step</th><th>time</th><th>event</th><th>details</th></tr>\n",
        events, "</table>\n");
  out += str_cat("<h2>Bad samples</h2>");
  if (input.bad_samples.empty()) {
    out += "<p>None.</p>\n";
  } else {
    out += "<table><tr><th>sample</th><th>reason</th></tr>\n";
    for (size_t i = 0; i < std::min<size_t>(input.bad_samples.size(), 500); ++i)
      out += str_cat("<tr><td>", html_escape(input.bad_samples[i].first), "</td><td>",
                     html_escape(input.bad_samples[i].second), "</td></tr>\n");
    out += "</table>\n";
    if (input.bad_samples.size() > 500)
      out += str_cat("<p>and ", input.bad_samples.size() - 500, " more</p>\n");
  }
  if (!input.config_yaml.empty())
    out += str_cat("<h2>Configuration</h2><details><summary>effective configuration</summary><pre>",
                   html_escape(input.config_yaml), "</pre></details>\n");
  if (input.bad_lines > 0)
    out += str_cat("<p class=\"sub\">", input.bad_lines,
                   " lines of metrics.jsonl could not be read.</p>\n");
  return out + "</body></html>\n";
}

Result<ReportInput> load_report_input(Env& env, const std::string& run_dir) {
  ReportInput out;
  const std::string metrics_path = run_dir + "/metrics.jsonl";
  auto file = metrics::read_metrics(env, metrics_path);
  if (!file.ok()) {
    if (file.status().code() == StatusCode::kNotFound)
      return data_error(str_cat(run_dir, " is not the folder of a run: it has no metrics.jsonl"))
          .with_hint("give the folder that `aerie train` printed at its end");
    return file.status();
  }
  out.records = std::move(file->records);
  out.bad_lines = file->bad_lines;
  std::string folder = run_dir;
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  out.title = folder.substr(folder.rfind('/') + 1);
  for (const Record& record : out.records)
    if (record.text("event") == "start" && !record.text("name").empty())
      out.title = record.text("name");
  if (auto text = env.read_file(run_dir + "/config.yaml", 16u << 20); text.ok())
    out.config_yaml = *text;
  if (auto text = env.read_file(run_dir + "/cmd-args.log", 1u << 20); text.ok())
    out.command = std::string(trim(*text));
  if (auto text = env.read_file(run_dir + "/bad_samples.jsonl", 256u << 20); text.ok()) {
    for (const std::string& line : split(*text, '\n')) {
      const auto json = nlohmann::json::parse(line, nullptr, false);
      if (!json.is_object()) continue;
      const auto field = [&](std::initializer_list<const char*> names) {
        for (const char* name : names)
          if (json.contains(name))
            return json[name].is_string() ? json[name].get<std::string>() : json[name].dump();
        return std::string();
      };
      out.bad_samples.emplace_back(field({"path", "audio_filepath", "sample", "id"}),
                                   field({"reason", "error", "message"}));
    }
  }
  return out;
}

Result<std::string> write_report(Env& env, const std::string& run_dir) {
  AERIE_ASSIGN_OR_RETURN(const ReportInput input, load_report_input(env, run_dir));
  const std::string path = run_dir + "/report.html";
  AERIE_RETURN_IF_ERROR(env.atomic_replace(path, render_report(input)));
  return path;
}

}  // namespace aerie::ui
