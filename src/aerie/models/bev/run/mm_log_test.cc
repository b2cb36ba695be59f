#include "aerie/models/bev/run/mm_log.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/base/log.h"
#include "aerie/base/strings.h"
#include "aerie/base/temp_dir.h"

namespace aerie::bev::mm_log_test {
namespace {

using metrics::Record;
using metrics::RecordKind;

class MmLogTest : public testing::Test {
 protected:
  MmLogTest() {
    set_log_console([this](LogLevel, std::string_view line) { said_ += str_cat(line, "\n"); });
    parts_.env = &Env::real();
    parts_.clock = &clock_;
    parts_.run_dir = dir_.path();
    parts_.planned_steps = 1000;
    parts_.steps_per_epoch = 40;
    options_.name = "tiny";
    options_.seed = 7;
    options_.classes = {"walkway"};
  }
  ~MmLogTest() override {
    close_log_files();
    set_log_console({});
  }
  std::unique_ptr<train::RunListener> open() {
    auto log = make_mm_log(options_, parts_);
    EXPECT_TRUE(log.ok()) << log.status().to_string();
    return std::move(log).value();
  }
  static void step(train::RunListener& log, int64_t number, double loss, double step_s,
                   double wait_s, int64_t width = 1) {
    train::StepOutcome outcome;
    outcome.loss = loss;
    outcome.grad_norm = 2.0 * loss;
    outcome.metrics.add("loss/map/walkway/focal", loss, 1.0);
    train::StepInfo info;
    info.step = number;
    info.width = width;
    info.learning_rate = 2e-4;
    info.step_s = step_s;
    info.data_wait_s = wait_s;
    info.amount = 4.0 * static_cast<double>(width);
    log.after_step(outcome, info);
  }
  std::vector<nlohmann::json> lines() const {
    std::vector<nlohmann::json> out;
    for (const std::string& name : files(".log.json")) {
      const auto text = Env::real().read_file(dir_.file(name), 1 << 20);
      EXPECT_TRUE(text.ok());
      for (const std::string& line : split(*text, '\n'))
        if (!line.empty()) out.push_back(nlohmann::json::parse(line));
    }
    return out;
  }
  std::vector<std::string> files(const std::string& end) const {
    std::vector<std::string> out;
    const auto entries = Env::real().list_dir(dir_.path());
    for (const DirEntry& entry : *entries)
      if (ends_with(entry.name, end)) out.push_back(entry.name);
    return out;
  }

  TempDir dir_;
  FakeClock clock_;
  train::ListenerParts parts_;
  MmLogOptions options_;
  std::string said_;
};

TEST_F(MmLogTest, LinesAreMeansSinceTheOneBefore) {
  const auto log = open();
  step(*log, 1, 1.0, 0.1, 0.01);
  step(*log, 2, 3.0, 0.3, 0.03);
  log->after_record(Record(RecordKind::kTrain, 2, 0, 1.0));
  step(*log, 3, 5.0, 0.4, 0.0);
  log->after_record(Record(RecordKind::kTrain, 3, 0, 1.0));
  // 998 iterations at the mean of the first two: 0.2 s each.
  EXPECT_NE(said_.find("Iter [2/1000]\tlr: 2.000e-04, eta: 0:03:19, time: 0.200, data_time: 0.020, "
                       "loss/map/walkway/focal: 2.0000, loss: 2.0000, grad_norm: 4.0000, "
                       "samples/s: 20.00, iter/s: 5.000, wait: 0.100"),
            std::string::npos)
      << said_;
  EXPECT_NE(said_.find("Iter [3/1000]\tlr: 2.000e-04, eta: 0:04:25, time: 0.400"),
            std::string::npos)
      << said_;
  const auto json = lines();
  ASSERT_EQ(json.size(), 3u);
  EXPECT_EQ(json[0], (nlohmann::json{{"exp_name", "tiny"}, {"seed", 7}, {"CLASSES", {"walkway"}}}));
  EXPECT_EQ(json[1], (nlohmann::json{{"mode", "train"},
                                     {"epoch", 1},
                                     {"iter", 2},
                                     {"lr", 2e-4},
                                     {"data_time", 0.02},
                                     {"loss/map/walkway/focal", 2.0},
                                     {"loss", 2.0},
                                     {"grad_norm", 4.0},
                                     {"time", 0.2}}));
  EXPECT_EQ(json[2]["loss"], 5.0);
  const auto text = Env::real().read_file(dir_.file(files(".log").at(0)), 1 << 20);
  ASSERT_TRUE(text.ok());
  EXPECT_NE(text->find("Iter [2/1000]"), std::string::npos);
}

// An update of four accumulated micro-batches is four iterations; epochs count their own.
TEST_F(MmLogTest, AccumulatedIterationsAndEpochsCount) {
  options_.by_epoch = true;
  const auto log = open();
  step(*log, 4, 1.0, 0.8, 0.0, 4);
  step(*log, 44, 2.0, 0.2, 0.0, 1);
  log->after_record(Record(RecordKind::kTrain, 44, 1, 1.0));
  EXPECT_NE(said_.find("Epoch [2][4/40]\t"), std::string::npos) << said_;
  const auto json = lines();
  EXPECT_EQ(json.at(1)["iter"], 4);
  EXPECT_EQ(json.at(1)["epoch"], 2);
  EXPECT_EQ(json.at(1)["loss"], 1.2);
  EXPECT_EQ(json.at(1)["time"], 0.2);
}

TEST_F(MmLogTest, EveryValidationIsJudged) {
  const auto log = open();
  step(*log, 1, 1.0, 10.0, 9.0);  // the first step does not count
  step(*log, 2, 1.0, 1.0, 0.2);
  Record first(RecordKind::kVal, 2, 0, 1.0);
  first.add("mIoU", 0.123456789).add("map/walkway/iou@0.35", 0.25).add("validation_s", 3.0);
  log->after_record(first);
  step(*log, 3, 1.0, 1.0, 0.01);
  Record busy(RecordKind::kTrain, 3, 0, 1.0);
  busy.add("gpu_util", 97.0);
  log->after_record(busy);
  Record second(RecordKind::kVal, 3, 0, 1.0);
  second.add("mIoU", 0.5);
  log->after_record(second);
  EXPECT_NE(said_.find("Iter(val) [2]\tmIoU: 0.1235\n"), std::string::npos) << said_;
  EXPECT_NE(said_.find("step 2: loader-bound: data wait 20.0 % of step time, no GPU; raise"),
            std::string::npos)
      << said_;
  EXPECT_NE(said_.find("step 3: compute-bound: data wait 1.0 % of step time, GPU 97 % busy"),
            std::string::npos)
      << said_;
  const auto json = lines();
  ASSERT_EQ(json.size(), 4u);
  EXPECT_EQ(json[1], (nlohmann::json{{"mode", "val"},
                                     {"epoch", 1},
                                     {"iter", 2},
                                     {"lr", 2e-4},
                                     {"mIoU", 0.12346},
                                     {"map/walkway/iou@0.35", 0.25},
                                     {"verdict", "loader-bound"}}));
}

TEST_F(MmLogTest, WithoutTextTheVerdictRemains) {
  options_.text = false;
  const auto log = open();
  step(*log, 1, 1.0, 1.0, 0.0);
  step(*log, 2, 1.0, 1.0, 0.0);
  log->after_record(Record(RecordKind::kTrain, 2, 0, 1.0));
  log->after_record(Record(RecordKind::kVal, 2, 0, 1.0));
  EXPECT_TRUE(files(".log").empty() && files(".log.json").empty());
  EXPECT_EQ(said_.find("Iter"), std::string::npos) << said_;
  EXPECT_NE(said_.find("compute-bound"), std::string::npos) << said_;
}

TEST_F(MmLogTest, EveryStartHasFilesOfItsOwn) {
  (void)open();
  (void)open();  // within the same second
  EXPECT_EQ(files(".log.json").size(), 2u);
  EXPECT_EQ(files(".log").size(), 2u);
}

TEST(MmVerdictTest, FollowsTheRule) {
  const auto name = [](double wait, std::optional<double> gpu) {
    return std::string(step_verdict(wait, gpu).name);
  };
  EXPECT_EQ(name(0.11, std::nullopt), "loader-bound");
  EXPECT_EQ(name(0.11, 99.0), "loader-bound");
  EXPECT_EQ(name(0.06, 79.0), "loader-bound");
  EXPECT_EQ(name(0.06, 85.0), "launch-bound");
  EXPECT_EQ(name(0.04, 50.0), "launch-bound");
  EXPECT_EQ(name(0.04, 92.0), "balanced");
  EXPECT_EQ(name(0.04, 96.0), "compute-bound");
  EXPECT_EQ(name(0.04, std::nullopt), "compute-bound");
}

TEST(MmVerdictTest, DurationsArePythons) {
  EXPECT_EQ(mm_duration(0.9), "0:00:00");
  EXPECT_EQ(mm_duration(3 * 3600 + 62), "3:01:02");
  EXPECT_EQ(mm_duration(86400), "1 day, 0:00:00");
  EXPECT_EQ(mm_duration(2 * 86400 + 59), "2 days, 0:00:59");
}

}  // namespace
}  // namespace aerie::bev::mm_log_test
