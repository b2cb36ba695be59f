#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "aerie/base/log.h"
#include "aerie/base/testing/mem_env.h"
#include "aerie/metrics/metrics_log.h"
#include "aerie/ui/progress_line.h"
#include "aerie/ui/report.h"
#include "aerie/ui/smooth.h"
#include "aerie/ui/svg_chart.h"
#include "aerie/ui/verdict.h"

namespace aerie::ui {
namespace {

using metrics::Record;
using metrics::RecordKind;

std::vector<Record> run(double step_ms, double wait_ms, double gpu_util) {
  std::vector<Record> out;
  for (int step = 1; step <= 50; ++step) {
    Record record(RecordKind::kTrain, step, 0, step * 0.1);
    record.add("train_loss", 5.0 / step)
        .add("step_ms", step_ms)
        .add("data_wait_ms", step == 1 ? 5000.0 : wait_ms);
    if (gpu_util >= 0) record.add("gpu_util", gpu_util);
    out.push_back(record);
  }
  return out;
}

// A run names its numbers itself; what does not say them takes the caller's words.
TEST(ReportWordsTest, ComeFromTheRun) {
  ReportWords words;
  words.monitor = "mIoU";
  words.monitor_max = true;
  words.throughput = "images_per_s";
  words.throughput_text = "images per second";
  words.one_engine = true;
  words.shares = {{"accuracy", "pixels that were right"}};
  words.charts = {{"Overlap", "%", true, {{"mIoU", "mean"}}, 100.0}};
  words.data_settings = {{"images", "pictures"}, {"part", "which of them", true}};
  std::vector<Record> records{Record(RecordKind::kEvent, 0, 0, 0.0)};
  records[0].add("event", "start").add(kReportWordsField, words.to_json());
  EXPECT_EQ(words_of(records, {}), words);
  EXPECT_EQ(words_of({}, words), words);
  std::vector<Record> damaged{Record(RecordKind::kEvent, 0, 0, 0.0)};
  damaged[0].add(kReportWordsField, "{\"charts\":[3,{\"curves\":7}],\"monitor\":[]}");
  EXPECT_EQ(words_of(damaged, words).monitor, "val_loss");
  // Earlier versions did not say which settings are names.
  std::vector<Record> earlier{Record(RecordKind::kEvent, 0, 0, 0.0)};
  earlier[0].add(kReportWordsField,
                 R"({"data_settings": [{"key": "set.root"}, {"key": "set.split"}]})");
  EXPECT_FALSE(words_of(earlier, {}).data_settings.at(0).name);
  EXPECT_TRUE(words_of(earlier, {}).data_settings.at(1).name);

  for (const double value : {0.5, 0.75, 0.25}) {
    records.emplace_back(RecordKind::kVal, 10 * static_cast<int64_t>(records.size()), 0, 1.0);
    records.back().add("mIoU", value);
  }
  ReportInput input;
  input.records = records;
  input.words = words;
  EXPECT_EQ(view_run(input).best_monitor, 0.75);
  EXPECT_EQ(view_run(input).best_step, 20);
  const std::string page = render_report({input});
  EXPECT_NE(page.find("Overlap"), std::string::npos);
  EXPECT_NE(page.find("mIoU, best, at step 20"), std::string::npos);
}

TEST(VerdictTest, NamesWhatLimitsTheRun) {
  EXPECT_EQ(judge(run(100, 40, 30)).bound, Bound::kLoader);
  EXPECT_EQ(judge(run(100, 1, 30)).bound, Bound::kLaunch);
  EXPECT_EQ(judge(run(100, 1, 97)).bound, Bound::kCompute);
  EXPECT_EQ(judge(run(100, 1, -1)).bound, Bound::kCompute);
  EXPECT_EQ(judge({}).bound, Bound::kUnknown);
  EXPECT_NE(judge(run(100, 40, 30)).sentence.find("40.0 %"), std::string::npos);
  // One sample during a save does not make a busy GPU idle.
  std::vector<Record> busy = run(100, 1, 99);
  busy.push_back(Record(RecordKind::kTrain, 51, 0, 5.1));
  busy.back().add("step_ms", 100.0).add("gpu_util", 0.0);
  EXPECT_EQ(judge(busy).gpu_util_percent, 99.0);
  // Who runs the fast engine is not told to take it.
  EXPECT_NE(judge(run(1, 0, 30)).sentence.find("aerie.engine=fast"), std::string::npos);
  ReportWords alone;
  alone.one_engine = true;
  EXPECT_EQ(judge(run(1, 0, 30), alone).sentence.find("aerie.engine"), std::string::npos);
  std::vector<Record> fast = run(1, 0, 30);
  for (Record& record : fast) record.add("forward_backward_ms", 0.3).add("optimizer_ms", 0.2);
  EXPECT_EQ(judge(fast).bound, Bound::kLaunch);
  EXPECT_EQ(judge(fast).sentence.find("aerie.engine"), std::string::npos);
  // The driver's samples of a short run, or of one that mostly saves, do not make its steps idle.
  std::vector<Record> saving = run(1, 0, 5);
  for (Record& record : saving) record.add("forward_backward_ms", 0.7).add("optimizer_ms", 0.2);
  EXPECT_EQ(judge(saving).bound, Bound::kCompute);
  EXPECT_NE(judge(saving).sentence.find("val_check_interval"), std::string::npos);
}

// Drivers of some virtual GPUs count no utilisation.
TEST(VerdictTest, KnowsGpusThatAreNotSampled) {
  const auto on = [](const char* engine, double fused_ms) {
    std::vector<Record> out = run(1, 0, -1);
    for (Record& record : out) record.add("forward_backward_ms", fused_ms);
    Record start(RecordKind::kEvent, 0, 0, 0.0);
    start.add("event", "start").add("engine", engine);
    out.insert(out.begin(), start);
    return judge(out);
  };
  const Verdict busy = on("fast engine, cuda:0, precision 32", 0.9);
  EXPECT_EQ(busy.bound, Bound::kCompute);
  EXPECT_EQ(busy.sentence.find("no GPU"), std::string::npos) << busy.sentence;
  EXPECT_NE(busy.sentence.find("not counted"), std::string::npos) << busy.sentence;
  EXPECT_EQ(on("fast engine, cuda:0, precision 32", 0.3).bound, Bound::kLaunch);
  EXPECT_NE(judge(run(1, 0, -1)).sentence.find("no GPU"), std::string::npos);
}

ReportInput run_input(std::vector<Record> records) {
  ReportInput input;
  input.title = "a run";
  input.records = std::move(records);
  return input;
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

Record event(const char* name, int64_t step) {
  Record record(RecordKind::kEvent, step, 0, static_cast<double>(step) * 0.1);
  record.add("event", name);
  return record;
}

TEST(ReportTest, IsSelfContainedAndEscapesWhatFilesSay) {
  const auto env = new_mem_env();
  ASSERT_TRUE(env->create_dirs("/runs/a").ok());
  metrics::MetricsLog log(*env, "/runs/a/metrics.jsonl");
  for (const Record& record : run(100, 40, 30)) ASSERT_TRUE(log.write(record).ok());
  ASSERT_TRUE(env->write_file("/runs/a/config.yaml", "name: <script>alert(1)</script>\n").ok());
  ASSERT_TRUE(env->write_file("/runs/a/bad_samples.jsonl",
                              "{\"path\":\"a&b.wav\",\"reason\":\"<cut>\"}\nnonsense\n")
                  .ok());
  const auto path = write_report(*env, "/runs/a/", {});
  ASSERT_TRUE(path.ok()) << path.status().to_string();
  const std::string page = *env->read_file(*path);
  EXPECT_NE(page.find("loader-bound"), std::string::npos);
  EXPECT_NE(page.find("a&amp;b.wav"), std::string::npos);
  EXPECT_NE(page.find("&lt;script&gt;alert(1)"), std::string::npos);
  EXPECT_EQ(count_of(page, "<script"), 1u) << "our own";
  for (const char* fetched : {"http:", "https:", "src=", "@import", "url("})
    EXPECT_EQ(page.find(fetched), std::string::npos) << fetched;
}

TEST(ReportTest, HealthComesFirst) {
  std::vector<Record> records = run(100, 1, -1);
  const int64_t last = records.back().step();
  const auto health_of = [&] {
    const std::string page = render_report({run_input(records)});
    const size_t health = page.find("<p class=\"health");
    EXPECT_LT(health, page.find("class=\"verdict\"")) << "the verdict follows";
    return page.substr(health, page.find("</p>", health) - health);
  };
  EXPECT_NE(health_of().find("no end recorded"), std::string::npos);
  // A run of an earlier version that diverged has no end either, but bad steps.
  for (int64_t step = last - 5; step <= last; ++step) records.push_back(event("nan", step));
  EXPECT_NE(health_of().find("<b>unhealthy</b>"), std::string::npos);
  records = run(100, 1, -1);
  records.push_back(event("end", last));
  records.back().add("reason", "finished").add("healthy", true);
  EXPECT_NE(health_of().find(str_cat("<b>healthy</b>: finished after step ", last)),
            std::string::npos);
  records.back() = event("end", last);
  records.back()
      .add("reason", "finished")
      .add("healthy", false)
      .add("health", "the last 6 steps were not finite or skipped");
  EXPECT_NE(health_of().find("<b>unhealthy</b>"), std::string::npos);
  EXPECT_NE(health_of().find("the last 6 steps"), std::string::npos);
  records.back() = event("end", last);
  records.back().add("reason", "failed").add("message", "the disk is gone");
  EXPECT_NE(health_of().find("<b>failed</b>"), std::string::npos);
  // The run went on after that end.
  records.push_back(event("resume", last));
  EXPECT_NE(health_of().find("no end recorded"), std::string::npos);
}

TEST(ReportTest, AResumeMarksTheChartsAndNamesOnlyWhatChanged) {
  std::vector<Record> records{event("start", 0)};
  records.back().add("date", "monday").add("host", "north").add("engine", "cpu engine");
  for (const Record& record : run(100, 1, -1)) records.push_back(record);
  records.push_back(event("resume", 40));
  records.back().add("date", "tuesday").add("host", "south").add("engine", "cpu engine");
  const std::string page = render_report({run_input(records)});
  EXPECT_NE(page.find("resumed at step 40, tuesday"), std::string::npos);
  size_t left_out = 0;
  const std::vector<EventRow> rows = event_rows(records, 10, &left_out);
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].details, "date tuesday · host south");
  EXPECT_EQ(count_of(page, "cpu engine"), 1u) << "the machine is told once";
  EXPECT_NE(page.find("started monday on north"), std::string::npos);
}

TEST(ReportTest, BadStepsInARowShareARow) {
  std::vector<Record> records;
  for (const int64_t step : {3, 4, 5, 9}) records.push_back(event("nan", step));
  records.push_back(event("saved", 9));
  records.back().add("ok", true);
  records.push_back(event("saved", 10));
  records.back().add("ok", false);
  size_t left_out = 0;
  const std::vector<EventRow> rows = event_rows(records, 2, &left_out);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].step, "3–5");
  EXPECT_EQ(rows[1].step, "9");
  EXPECT_EQ(left_out, 1u) << "the save that failed; the one that worked is no news";
}

TEST(ReportTest, ChartsWithoutDataAreLeftOut) {
  const std::string page = render_report({run_input(run(100, 1, -1))});
  EXPECT_NE(page.find("<b>Loss</b>"), std::string::npos);
  for (const char* title : {"GPU utilisation", "Padding share", "Memory", "Gradient norm"})
    EXPECT_EQ(page.find(str_cat("<b>", title)), std::string::npos) << title;
  EXPECT_EQ(page.find("no data"), std::string::npos);
  EXPECT_EQ(render_report({run_input({})}).find("<figure"), std::string::npos);
}

// Pictures of one size are never padded: a chart of zeros says nothing.
TEST(ReportTest, PaddingIsShownWhereThereIsAny) {
  for (const double share : {0.0, 0.25}) {
    std::vector<Record> records = run(100, 1, -1);
    for (Record& record : records) record.add("padding_share", share);
    const std::string one = render_report({run_input(records)});
    const std::string two = render_report({run_input(records), run_input(records)});
    EXPECT_EQ(one.find("Padding share") != std::string::npos, share > 0.0) << share;
    EXPECT_EQ(one.find("padding share") != std::string::npos, share > 0.0) << share;
    EXPECT_EQ(two.find("Padding share") != std::string::npos, share > 0.0) << share;
  }
}

TEST(ReportTest, TheBestValidationIsNamed) {
  std::vector<Record> records = run(100, 1, -1);
  for (const auto& [step, loss] : {std::pair<int64_t, double>{10, 5.0}, {20, 4.25}, {30, 4.5}}) {
    records.push_back(Record(RecordKind::kVal, step, 0, 1.0));
    records.back().add("val_loss", loss);
  }
  const RunView view = view_run(run_input(records));
  EXPECT_EQ(view.best_monitor, 4.25);
  EXPECT_EQ(view.best_step, 20);
  EXPECT_EQ(view.eval_loss, 4.5);
  EXPECT_NE(render_report({run_input(records)}).find("val_loss, best, at step 20"),
            std::string::npos);
}

TEST(ReportTest, SeveralRunsShareAPage) {
  const auto env = new_mem_env();
  for (const char* name : {"/runs/a", "/runs/b", "/runs/c"}) {
    ASSERT_TRUE(env->create_dirs(name).ok());
    metrics::MetricsLog log(*env, str_cat(name, "/metrics.jsonl"));
    Record start = event("start", 0);
    start.add("name", "SSL");
    ASSERT_TRUE(log.write(start).ok());
    for (const Record& record : run(100, 1, -1)) ASSERT_TRUE(log.write(record).ok());
    ASSERT_TRUE(
        env->write_file(str_cat(name, "/config.yaml"),
                        str_cat("model: {optim: {lr: ", name[6] == 'b' ? 2 : 1, "}, x: 3}\n"))
            .ok());
  }
  ASSERT_TRUE(write_report_of(*env, {"/runs/a", "/runs/b", "/runs/c"}, "/all.html", {}).ok());
  const std::string page = *env->read_file("/all.html");
  EXPECT_NE(page.find("3 runs"), std::string::npos);
  EXPECT_EQ(count_of(page, "aria-label=\"Loss: train"), 1u) << "one chart for all";
  EXPECT_NE(page.find("/runs/b"), std::string::npos) << "runs of one name go by their folders";
  EXPECT_NE(page.find("<td class=\"word\">model.optim.lr</td><td class=\"text\">1</td><td "
                      "class=\"text\">2</td><td class=\"text\">1</td>"),
            std::string::npos);
  EXPECT_EQ(page.find("<td class=\"word\">model.x</td>"), std::string::npos);
  EXPECT_FALSE(write_report_of(*env, {"/runs/a", "/runs/none"}, "/all.html", {}).ok());
}

TEST(ReportTest, PicturesAreInsideThePage) {
  ReportInput input = run_input(run(100, 1, -1));
  EXPECT_EQ(render_report({input}).find("Predictions"), std::string::npos);
  input.pictures = {{10, "scene<1>", "a"}, {10, "scene-2", "ab"}, {20, "scene<1>", "abc"}};
  const std::string page = render_report({input});
  for (const char* text : {"base64,YQ==\"", "base64,YWI=\"", "base64,YWJj\"", "scene&lt;1&gt;",
                           "after step 20", "first validation, step 10", "img-src data:"})
    EXPECT_NE(page.find(text), std::string::npos) << text;
}

TEST(ReportTest, RefusesAFolderThatIsNoRun) {
  const auto env = new_mem_env();
  const auto report = write_report(*env, "/nowhere", {});
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().code(), StatusCode::kDataError);
}

ProgressInfo progress() {
  ProgressInfo info;
  info.step = 1200;
  info.planned_steps = 5000;
  info.epoch = 3;
  info.smoothed_loss = 5.2131;
  info.learning_rate = 1.2e-3;
  info.steps_per_s = 8.41;
  info.throughput = 2018.4;
  info.data_wait_share = 0.003;
  info.gpu_util = 96.0;
  info.gpu_mem_gib = 3.14;
  info.eta_s = 451.0;
  info.activity = "train";
  return info;
}

TEST(ProgressLineTest, ShowsEverythingOnOneLine) {
  EXPECT_EQ(format_progress_line(progress(), "audio-s/s"),
            "step 1200/5000 ep 3  loss 5.2131  lr 1.20e-03  8.41 it/s  2018 audio-s/s  data 0.3 %  "
            "GPU 96 % 3.1 GiB  ETA 7 min 31 s");
  ProgressInfo validating = progress();
  validating.activity = "validate";
  validating.done = 3;
  validating.of = 20;
  EXPECT_EQ(format_progress_line(validating, ""), "step 1200/5000  validate 3/20");
}

TEST(ProgressLineTest, FitsTheTerminalPartByPart) {
  const std::string line = format_progress_line(progress(), "audio-s/s");
  EXPECT_EQ(fit_progress_line(line, 200), line);
  EXPECT_EQ(fit_progress_line(line, 72),
            "step 1200/5000 ep 3  loss 5.2131  lr 1.20e-03  ETA 7 min 31 s");
  EXPECT_EQ(fit_progress_line(line, 24), "step 1200/5000 ep 3");
  EXPECT_EQ(fit_progress_line(line, 10), "step 1200");
  for (int width = 2; width < 150; ++width)
    EXPECT_LT(static_cast<int>(fit_progress_line(line, width).size()), width);
}

TEST(ProgressLineTest, RedrawsOnATerminalAndGoesAway) {
  FakeClock clock;
  std::string out;
  ProgressLineOptions options;
  options.terminal = true;
  options.width = 200;
  options.clock = &clock;
  options.write = [&](std::string_view text) { out += text; };
  {
    ProgressLine line(options);
    line.update(progress());
    line.update(progress());  // too soon to be drawn
    clock.advance_s(1.0);
    line.update(progress());
  }
  const std::string text = format_progress_line(progress(), "samples/s");
  EXPECT_EQ(out, text + "\r\x1b[K" + text + "\r\x1b[K");
}

TEST(ProgressLineTest, PlainLinesComeSeldomAndAreLogged) {
  FakeClock clock;
  std::vector<std::string> lines;
  set_log_console([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  ProgressLineOptions options;
  options.clock = &clock;
  ProgressLine line(options);
  for (int i = 0; i < 25; ++i) {
    line.update(progress());
    clock.advance_s(1.0);
  }
  set_log_console({});
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_NE(lines[0].find("step 1200/5000"), std::string::npos);
  EXPECT_EQ(lines[0].find('\r'), std::string::npos);
}

Series series(std::vector<double> x, std::vector<double> y) {
  Series out;
  out.name = "x";
  out.x = std::move(x);
  out.y = std::move(y);
  return out;
}

TEST(SvgChartTest, SurvivesOddSeries) {
  const auto chart = [](Series line) { return line_chart({"t", "u", {std::move(line)}, {}}); };
  EXPECT_NE(chart(series({1, 2, 3}, {NAN, INFINITY, 2.0})).find("<path"), std::string::npos);
  EXPECT_EQ(chart(series({1, 2}, {NAN, NAN})), "");
  EXPECT_EQ(line_chart({"t", "u", {}, {}}), "");
  EXPECT_EQ(chart(series({1, 2}, {0, 0})).find("nan"), std::string::npos);
  Series longer;
  for (int i = 0; i < 100000; ++i) {
    longer.x.push_back(i);
    longer.y.push_back(i == 5000 ? 9.0 : i % 3 == 0 ? NAN : 1.0);
  }
  EXPECT_LT(chart(longer).size(), 60000u);
  EXPECT_NE(chart(longer).find("9"), std::string::npos);
}

TEST(SvgChartTest, CarriesItsValuesAndMarkers) {
  Chart chart{"t", "u", {series({10, 15, 20}, {1.5, NAN, 2}), series({10}, {2.5})}, {{15, "here"}}};
  chart.series[0].name = "a \"quoted\" name";
  const std::string text = line_chart(chart);
  EXPECT_NE(text.find("&quot;y&quot;:[1.5,null,2]"), std::string::npos) << text;
  EXPECT_NE(text.find("a \\&quot;quoted\\&quot; name"), std::string::npos) << text;
  EXPECT_NE(text.find("<title>here</title>"), std::string::npos);
  chart.markers[0].x = 100;
  EXPECT_EQ(line_chart(chart).find("<title>"), std::string::npos);
}

// Every smoothed value lies within the points at most ten before and after it.
void expect_between_neighbours(const std::vector<double>& y) {
  const std::vector<double> smooth = smoothed(y);
  ASSERT_EQ(smooth.size(), y.size());
  for (size_t i = 0; i < y.size(); ++i) {
    if (!std::isfinite(y[i])) continue;
    double low = INFINITY, high = -INFINITY;
    for (size_t k = i - std::min<size_t>(i, 10); k < std::min(y.size(), i + 11); ++k) {
      if (!std::isfinite(y[k])) continue;
      low = std::min(low, y[k]);
      high = std::max(high, y[k]);
    }
    EXPECT_GE(smooth[i], low) << i;
    EXPECT_LE(smooth[i], high) << i;
  }
}

TEST(SmoothTest, DoesNotLagBehindThePoints) {
  std::vector<double> falling, step, noisy, odd;
  for (int i = 0; i < 400; ++i) {
    falling.push_back(9.0 * std::exp(-0.03 * i));
    step.push_back(i < 200 ? 5.0 : 1.0);
    noisy.push_back(3.0 + ((i * 37) % 11) * 0.1);
    odd.push_back(i % 7 == 0 ? NAN : i % 13 == 0 ? INFINITY : i * 1e300);
  }
  for (const auto& y : {falling, step, noisy, odd, {}, {1.0}}) expect_between_neighbours(y);
  // Ten points after a step nothing of it is left.
  EXPECT_EQ(smoothed(step)[210], 1.0);
  EXPECT_EQ(smoothed(step)[189], 5.0);
  EXPECT_NEAR(smoothed(falling)[200], falling[200], 0.02 * falling[200]);
  // And it does smooth.
  const std::vector<double> calm = smoothed(noisy);
  EXPECT_LT(*std::max_element(calm.begin() + 20, calm.end() - 20) -
                *std::min_element(calm.begin() + 20, calm.end() - 20),
            0.2);
  EXPECT_TRUE(std::isnan(smoothed(odd)[0]));
}

TEST(SvgChartTest, NumbersAreShort) {
  EXPECT_EQ(short_number(0.25), "0.25");
  EXPECT_EQ(short_number(1234), "1234");
  EXPECT_EQ(short_number(5.59e-8), "5.59e-08");
  EXPECT_EQ(short_number(10), "10");
}

}  // namespace
}  // namespace aerie::ui
