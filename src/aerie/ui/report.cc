#include "aerie/ui/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include <nlohmann/json.hpp>

#include "aerie/base/clock.h"
#include "aerie/metrics/metrics_log.h"
#include "aerie/ui/report_pictures.h"
#include "aerie/ui/report_style.h"
#include "aerie/ui/smooth.h"
#include "aerie/ui/svg_chart.h"

namespace aerie::ui {

namespace {

using metrics::Record;
using metrics::RecordKind;

constexpr size_t kMaxEvents = 200, kMaxBadSamples = 500;
enum Colour { kBlue, kOrange, kGreen, kPurple, kRed };

std::string tile(const std::string& value, const std::string& label) {
  return str_cat("<div class=\"tile\"><b>", html_escape(value), "</b><span>", html_escape(label),
                 "</span></div>\n");
}

std::string percent(double share) {
  if (!std::isfinite(share)) return "–";
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", 100.0 * share);
  return text;
}

std::string health_line(const RunView& view) {
  const char* css = view.state == RunState::kHealthy ? " good"
                    : view.state == RunState::kOpen  ? ""
                                                     : " bad";
  return str_cat("<p class=\"health", css, "\"><b>", run_state_name(view.state),
                 "</b>: ", html_escape(view.state_text), "</p>\n");
}

std::string when_and_where(const RunView& view) {
  std::string out = str_cat(view.steps, " optimizer steps in ", human_duration(view.wall_s));
  if (!view.date.empty()) out += str_cat(" · started ", view.date);
  if (!view.host.empty()) out += str_cat(" on ", view.host);
  return out;
}

std::string tiles_of(const RunView& view, const ReportWords& words) {
  std::string out = "<div class=\"tiles\">\n";
  const auto add = [&](double value, const std::string& text, const std::string& label) {
    if (std::isfinite(value)) out += tile(text, label);
  };
  add(view.train_loss, short_number(view.train_loss), words.train_loss + ", last");
  add(view.eval_loss, short_number(view.eval_loss), words.eval_loss + ", last");
  if (words.monitor != words.eval_loss)
    add(view.monitor, short_number(view.monitor), words.monitor + ", last");
  add(view.best_monitor, short_number(view.best_monitor),
      str_cat(words.monitor, ", best, at step ", view.best_step));
  add(view.throughput, short_number(view.throughput), words.throughput_text + ", mean");
  if (view.verdict.bound != Bound::kUnknown) {
    out += tile(str_cat(short_number(view.verdict.step_ms), " ms"), "step, median");
    out += tile(percent(view.verdict.data_wait_share), "data wait");
  }
  if (view.verdict.gpu_util_percent >= 0.0)
    out += tile(percent(view.verdict.gpu_util_percent / 100.0), "GPU busy");
  if (view.padding_share > 0.0)
    add(view.padding_share, percent(view.padding_share), "padding share");
  for (size_t i = 0; i < words.shares.size(); ++i)
    add(view.shares[i], percent(view.shares[i]), words.shares[i].label);
  return out + "</div>\n";
}

// One line of a chart, for every run.
struct Curve {
  RecordKind kind;
  std::string field;
  std::string name;
  int colour = 0;
  double scale = 1.0;
  bool smooth = false;
};
struct ChartPlan {
  std::string title;
  std::string unit;
  std::vector<Curve> curves;
  bool zero_is_nothing = false;  // left out where all values are 0
};

std::vector<ChartPlan> chart_plans(const ReportWords& words) {
  constexpr RecordKind kTrain = RecordKind::kTrain, kVal = RecordKind::kVal;
  std::vector<ChartPlan> plans = {
      {"Loss",
       words.loss_unit,
       {{kTrain, words.train_loss, "train", kBlue, 1.0, true},
        {kVal, words.eval_loss, "validation", kOrange}}},
      {"Learning rate", "", {{kTrain, "learning_rate", "learning rate", kGreen}}},
      {"Gradient norm", "before clipping", {{kTrain, "grad_norm", "norm", kPurple, 1.0, true}}},
      {"Throughput",
       words.throughput_text,
       {{kTrain, words.throughput, "throughput", kBlue, 1.0, true}}},
      {"Step and data wait",
       "ms",
       {{kTrain, "step_ms", "step", kBlue, 1.0, true},
        {kTrain, "data_wait_ms", "data wait", kRed, 1.0, true}}},
      {"GPU utilisation", "%", {{kTrain, "gpu_util", "GPU", kGreen, 1.0, true}}},
      {"Memory",
       "GiB",
       {{kTrain, "rss_gib", "host", kPurple}, {kTrain, "gpu_mem_gib", "GPU", kGreen}}},
      // Samples of one size are never padded.
      {"Padding share", "%", {{kTrain, "padding_share", "padding", kOrange, 100.0, true}}, true},
  };
  for (const ReportWords::Chart& chart : words.charts) {
    ChartPlan plan{chart.title, chart.unit, {}, false};
    for (size_t i = 0; i < chart.curves.size(); ++i)
      plan.curves.push_back({chart.evaluation ? kVal : kTrain, chart.curves[i].field,
                             chart.curves[i].name, static_cast<int>(i) % kNumColours, chart.scale,
                             !chart.evaluation});
    // Beside the loss, where people look first.
    plans.insert(plans.begin() + 1 + (&chart - words.charts.data()), std::move(plan));
  }
  return plans;
}

bool is_nothing(const ChartPlan& plan, const Chart& chart) {
  return plan.zero_is_nothing &&
         std::all_of(chart.series.begin(), chart.series.end(), [](const Series& line) {
           return std::all_of(line.y.begin(), line.y.end(), [](double y) { return y == 0.0; });
         });
}

constexpr size_t kSmoothFrom = 20;  // fewer points are drawn as they are

Series curve_of(const ReportInput& run, const Curve& curve) {
  Series out =
      series_of(run.records, curve.kind, curve.field, curve.name, curve.colour, curve.scale);
  if (curve.smooth && out.y.size() >= kSmoothFrom) out.smooth = smoothed(out.y);
  return out;
}

// The loss of single sets, where there are several.
void add_validation_sets(const ReportInput& run, Chart& chart) {
  std::vector<std::string> names;
  for (const Record& record : run.records) {
    if (record.kind() != RecordKind::kVal) continue;
    for (const auto& [key, value] : record.fields())
      if (key != run.words.eval_loss && ends_with(key, run.words.eval_loss) &&
          std::find(names.begin(), names.end(), key) == names.end())
        names.push_back(key);
  }
  for (size_t i = 0; i < names.size(); ++i) {
    Series line = series_of(run.records, RecordKind::kVal, names[i], names[i],
                            2 + static_cast<int>(i) % (kNumColours - 2));
    line.dashed = true;
    chart.series.push_back(std::move(line));
  }
}

std::string charts_of(const ReportInput& run, const RunView& view) {
  std::string out;
  for (const ChartPlan& plan : chart_plans(run.words)) {
    Chart chart{plan.title, plan.unit, {}, view.resumes};
    for (const Curve& curve : plan.curves) chart.series.push_back(curve_of(run, curve));
    if (plan.curves.back().field == run.words.eval_loss) add_validation_sets(run, chart);
    if (!is_nothing(plan, chart)) out += line_chart(chart);
  }
  if (out.empty()) return "";
  return str_cat("<h2>Curves</h2><div class=\"charts\">\n", out, "</div>\n");
}

// One chart a quantity, one colour a run.
std::string charts_of(const std::vector<ReportInput>& runs) {
  std::string out;
  // The first run names what they have in common.
  for (const ChartPlan& plan : chart_plans(runs.front().words)) {
    for (const Curve& curve : plan.curves) {
      const bool alone = plan.curves.size() == 1;
      Chart chart{alone ? plan.title : str_cat(plan.title, ": ", curve.name), plan.unit, {}, {}};
      for (size_t i = 0; i < runs.size(); ++i) {
        Series line = curve_of(runs[i], curve);
        line.name = runs[i].title;
        line.colour = static_cast<int>(i);
        line.dashed = i >= kNumColours;
        line.raw = false;
        chart.series.push_back(std::move(line));
      }
      if (!is_nothing(plan, chart)) out += line_chart(chart);
    }
  }
  if (out.empty()) return "";
  return str_cat("<h2>Curves</h2><div class=\"charts\">\n", out, "</div>\n");
}

std::string table_row(const std::string& head, const std::string& text) {
  return str_cat("<tr><th>", html_escape(head), "</th><td class=\"text\">", html_escape(text),
                 "</td></tr>\n");
}

// Everything below the curves.
std::string details_of(const ReportInput& run) {
  std::string out = pictures_section(run.pictures);
  out += "<h2>Machine, data and run</h2><div class=\"wide\"><table>\n";
  for (const auto& [head, text] : machine_rows(run)) out += table_row(head, text);
  out += "</table></div>\n";
  size_t left_out = 0;
  const std::vector<EventRow> events = event_rows(run.records, kMaxEvents, &left_out);
  if (!events.empty()) {
    out +=
        "<h2>Events</h2><div class=\"wide\"><table><tr><th>step</th><th>time</th><th>event</th>"
        "<th>details</th></tr>\n";
    for (const EventRow& row : events)
      out += str_cat("<tr><td class=\"word\">", html_escape(row.step), "</td><td class=\"word\">",
                     html_escape(row.time), "</td><td class=\"word\">", html_escape(row.name),
                     "</td><td class=\"text\">", html_escape(row.details), "</td></tr>\n");
    if (left_out > 0) out += str_cat("<tr><td colspan=\"4\">and ", left_out, " more</td></tr>");
    out += "</table></div>\n";
  }
  if (!run.bad_samples.empty()) {
    out +=
        "<h2>Bad samples</h2><div class=\"wide\"><table><tr><th>sample</th><th>reason</th></tr>\n";
    for (size_t i = 0; i < std::min(run.bad_samples.size(), kMaxBadSamples); ++i)
      out += str_cat("<tr><td class=\"text\">", html_escape(run.bad_samples[i].first),
                     "</td><td class=\"text\">", html_escape(run.bad_samples[i].second),
                     "</td></tr>\n");
    out += "</table></div>\n";
    if (run.bad_samples.size() > kMaxBadSamples)
      out += str_cat("<p>and ", run.bad_samples.size() - kMaxBadSamples, " more</p>\n");
  }
  if (!run.config_yaml.empty())
    out += str_cat("<h2>Configuration</h2><details><summary>effective configuration</summary><pre>",
                   html_escape(run.config_yaml), "</pre></details>\n");
  if (run.bad_lines > 0)
    out += str_cat("<p class=\"sub\">", run.bad_lines,
                   " lines of metrics.jsonl could not be read.</p>\n");
  return out;
}

std::string comparison(const std::vector<ReportInput>& runs, const std::vector<RunView>& views) {
  const ReportWords& words = runs.front().words;
  std::string out = str_cat(
      "<div class=\"wide\"><table><tr><th>run</th><th>health</th><th>steps</th><th>time</th>",
      "<th>", html_escape(words.train_loss), "</th><th>", html_escape(words.monitor),
      "</th><th>best</th><th>at step</th><th>step, ms</th><th>", html_escape(words.throughput_head),
      "</th><th>started</th><th>host</th></tr>\n");
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunView& view = views[i];
    out += str_cat("<tr><td class=\"word\"><span class=\"key\"><i style=\"background:var(--c",
                   static_cast<int>(i) % kNumColours, ")\"></i></span><a href=\"#run", i, "\">",
                   html_escape(runs[i].title), "</a></td>");
    for (const std::string& text :
         {std::string(run_state_name(view.state)), str_cat(view.steps), human_duration(view.wall_s),
          number_or_dash(view.train_loss), number_or_dash(view.monitor),
          number_or_dash(view.best_monitor),
          std::isfinite(view.best_monitor) ? str_cat(view.best_step) : std::string("–"),
          number_or_dash(view.verdict.step_ms), number_or_dash(view.throughput), view.date,
          view.host})
      out += str_cat("<td class=\"word\">", html_escape(text), "</td>");
    out += "</tr>\n";
  }
  out += "</table></div>\n";
  const auto differences = config_table(runs);
  if (differences.empty()) return out;
  out += "<h2>What differs in the configurations</h2><div class=\"wide\"><table><tr><th>key</th>";
  for (const ReportInput& run : runs) out += str_cat("<th>", html_escape(run.title), "</th>");
  out += "</tr>\n";
  for (const auto& row : differences) {
    out += "<tr>";
    for (size_t i = 0; i < row.size(); ++i)
      out += str_cat("<td class=\"", i == 0 ? "word" : "text", "\">", html_escape(row[i]), "</td>");
    out += "</tr>\n";
  }
  return out + "</table></div>\n";
}

// Runs of one name are told apart by their folders.
void make_titles_unique(std::vector<ReportInput>& runs) {
  std::map<std::string, int> count;
  for (const ReportInput& run : runs) ++count[run.title];
  for (ReportInput& run : runs)
    if (count[run.title] > 1 && !run.folder.empty()) run.title = run.folder;
}

}  // namespace

std::string report_page(const std::string& title, const std::string& body) {
  return str_cat(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">",
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">",
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\"><title>",
      html_escape(title), " · aerie report</title>", kReportStyle, "</head><body>\n", body,
      kReportScript, "\n</body></html>\n");
}

std::string render_report(const std::vector<ReportInput>& given) {
  std::vector<ReportInput> runs = given;
  std::vector<RunView> views;
  for (const ReportInput& run : runs) views.push_back(view_run(run));
  if (runs.size() == 1)
    return report_page(
        runs[0].title,
        str_cat("<h1>", html_escape(runs[0].title), "</h1>\n", health_line(views[0]),
                "<p class=\"sub\">", html_escape(when_and_where(views[0])),
                "</p>\n<p class=\"verdict\">", html_escape(views[0].verdict.sentence), "</p>\n",
                tiles_of(views[0], runs[0].words), charts_of(runs[0], views[0]),
                details_of(runs[0])));
  make_titles_unique(runs);
  std::string body =
      str_cat("<h1>", runs.size(), " runs</h1>\n", comparison(runs, views), charts_of(runs));
  for (size_t i = 0; i < runs.size(); ++i)
    body +=
        str_cat("<h2 id=\"run", i, "\">", html_escape(runs[i].title), "</h2>\n",
                health_line(views[i]), "<p class=\"sub\">", html_escape(when_and_where(views[i])),
                "</p>\n<p class=\"verdict\">", html_escape(views[i].verdict.sentence),
                "</p>\n<details><summary>details</summary>\n", details_of(runs[i]), "</details>\n");
  return report_page(str_cat(runs.size(), " runs"), body);
}

Result<ReportInput> load_report_input(Env& env, const std::string& run_dir,
                                      const ReportWords& otherwise) {
  ReportInput out;
  const std::string metrics_path = run_dir + "/metrics.jsonl";
  auto file = metrics::read_metrics(env, metrics_path, metrics::kReportSteps);
  if (!file.ok()) {
    if (file.status().code() == StatusCode::kNotFound)
      return data_error(str_cat(run_dir, " is not the folder of a run: it has no metrics.jsonl"))
          .with_hint("give the folder that `aerie train` printed at its end");
    return file.status();
  }
  out.records = std::move(file->records);
  out.bad_lines = file->bad_lines;
  out.words = words_of(out.records, otherwise);
  std::string folder = run_dir;
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  out.folder = folder;
  out.title = folder.substr(folder.rfind('/') + 1);
  for (const Record& record : out.records)
    if (record.text("event") == "start" && !record.text("name").empty())
      out.title = record.text("name");
  if (auto text = env.read_file(run_dir + "/config.yaml", 16u << 20); text.ok())
    out.config_yaml = *text;
  if (auto text = env.read_file(run_dir + "/cmd-args.log", 1u << 20); text.ok())
    out.command = std::string(trim(*text));
  out.pictures = read_pictures(env, run_dir);
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

Result<std::string> write_report(Env& env, const std::string& run_dir,
                                 const ReportWords& otherwise) {
  AERIE_ASSIGN_OR_RETURN(const ReportInput input, load_report_input(env, run_dir, otherwise));
  const std::string path = run_dir + "/report.html";
  AERIE_RETURN_IF_ERROR(env.atomic_replace(path, render_report({input})));
  return path;
}

Status write_report_of(Env& env, const std::vector<std::string>& run_dirs, const std::string& path,
                       const ReportWords& otherwise) {
  std::vector<ReportInput> runs;
  for (const std::string& run_dir : run_dirs) {
    AERIE_ASSIGN_OR_RETURN(ReportInput input, load_report_input(env, run_dir, otherwise));
    runs.push_back(std::move(input));
  }
  return env.atomic_replace(path, render_report(runs));
}

}  // namespace aerie::ui
