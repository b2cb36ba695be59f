#include <cmath>

#include <gtest/gtest.h>

#include "aerie/base/log.h"
#include "aerie/base/mem_env.h"
#include "aerie/metrics/metrics_log.h"
#include "aerie/ui/progress_line.h"
#include "aerie/ui/report.h"
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

TEST(ReportTest, IsSelfContainedAndEscapesWhatFilesSay) {
  const auto env = new_mem_env();
  ASSERT_TRUE(env->create_dirs("/runs/a").ok());
  metrics::MetricsLog log(*env, "/runs/a/metrics.jsonl");
  for (const Record& record : run(100, 40, 30)) ASSERT_TRUE(log.write(record).ok());
  ASSERT_TRUE(env->write_file("/runs/a/config.yaml", "name: <script>alert(1)</script>\n").ok());
  ASSERT_TRUE(env->write_file("/runs/a/bad_samples.jsonl",
                              "{\"path\":\"a&b.wav\",\"reason\":\"<cut>\"}\nnonsense\n")
                  .ok());
  const auto path = write_report(*env, "/runs/a/");
  ASSERT_TRUE(path.ok()) << path.status().to_string();
  const std::string page = *env->read_file(*path);
  EXPECT_NE(page.find("loader-bound"), std::string::npos);
  EXPECT_NE(page.find("a&amp;b.wav"), std::string::npos);
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_EQ(page.find("http://"), std::string::npos);
  EXPECT_EQ(page.find("https://"), std::string::npos);
}

TEST(ReportTest, RefusesAFolderThatIsNoRun) {
  const auto env = new_mem_env();
  const auto report = write_report(*env, "/nowhere");
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().code(), StatusCode::kDataError);
}

train::ProgressInfo progress() {
  train::ProgressInfo info;
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
  train::ProgressInfo validating = progress();
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
  const std::string text = format_progress_line(progress(), "audio-s/s");
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

TEST(SvgChartTest, SurvivesOddSeries) {
  Series line{"x", "red", {1, 2, 3}, {NAN, INFINITY, 2.0}, false, {}};
  EXPECT_NE(line_chart("t", "u", {line}).find("<path"), std::string::npos);
  EXPECT_NE(line_chart("t", "u", {}).find("no data"), std::string::npos);
  Series flat{"x", "red", {1, 2}, {0, 0}, true, {}};
  EXPECT_EQ(line_chart("t", "u", {flat}).find("nan"), std::string::npos);
  Series longer{"x", "red", {}, {}, false, {}};
  for (int i = 0; i < 100000; ++i) {
    longer.x.push_back(i);
    longer.y.push_back(i == 5000 ? 9.0 : 1.0);
  }
  EXPECT_LT(line_chart("t", "u", {longer}).size(), 60000u);
}

TEST(SvgChartTest, NumbersAreShort) {
  EXPECT_EQ(short_number(0.25), "0.25");
  EXPECT_EQ(short_number(1234), "1234");
  EXPECT_EQ(short_number(5.59e-8), "5.59e-08");
  EXPECT_EQ(short_number(10), "10");
}

}  // namespace
}  // namespace aerie::ui
