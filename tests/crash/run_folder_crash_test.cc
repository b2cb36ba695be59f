// What the real binary does with the folder of a run when other processes, earlier runs, signals
// and broken pipes come in between. Short runs; crash_test.cc has the long ones.
#include <algorithm>
#include <csignal>
#include <set>
#include <unistd.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/base/clock.h"
#include "aerie/base/env.h"
#include "aerie/base/strings.h"
#include "aerie/base/temp_dir.h"
#include "process.h"
#include "run_command.h"

namespace aerie::crash {
namespace {

using Json = nlohmann::ordered_json;

class RunFolderCrashTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempDir();
    Process synth(synth_command(path("corpus")), {path("synth.log"), 0});
    ASSERT_EQ(synth.wait(), 0) << read(path("synth.log"));
  }
  static void TearDownTestSuite() { delete folder_; }

  static std::string path(const std::string& name) { return folder_->path() + "/" + name; }
  static std::string run_folder(const std::string& name) { return path("runs/" + name); }
  static std::string read(const std::string& file) {
    auto text = Env::real().read_file(file);
    return text.ok() ? std::move(text).value() : "";
  }
  static std::string log_file(std::string name) {
    std::replace(name.begin(), name.end(), '/', '_');
    return path(name + ".log");
  }
  static std::string log(const std::string& name) { return read(log_file(name)); }
  static std::set<std::string> names(const std::string& folder) {
    std::set<std::string> out;
    const auto entries = Env::real().list_dir(folder);
    if (entries.ok())
      for (const DirEntry& entry : *entries) out.insert(entry.name);
    return out;
  }

  // `shell`: a line of sh that runs the command, as in `"$@" | head`.
  static std::unique_ptr<Process> start(const std::string& name, std::vector<std::string> more,
                                        const std::string& shell = "") {
    std::vector<std::string> command = train_command(path("corpus"), path("runs"), name, 30);
    command.insert(command.end(), more.begin(), more.end());
    if (!shell.empty()) {
      const std::vector<std::string> wrapped{"/bin/sh", "-c", shell, "sh"};
      command.insert(command.begin(), wrapped.begin(), wrapped.end());
    }
    return std::make_unique<Process>(command, Process::Options{log_file(name), 0});
  }

  static std::vector<Json> lines(const std::string& name) {
    std::vector<Json> out;
    for (const std::string& line : split(read(run_folder(name) + "/metrics.jsonl"), '\n'))
      if (!line.empty()) out.push_back(Json::parse(line, nullptr, false));
    return out;
  }
  static std::vector<int64_t> steps(const std::string& name, const std::string& kind = "train") {
    std::vector<int64_t> out;
    for (const Json& line : lines(name))
      if (line.is_object() && line.value("kind", "") == kind) out.push_back(line["step"]);
    return out;
  }
  static Json newest_state(const std::string& name) {
    Json newest;
    for (const std::string& stem : names(run_folder(name) + "/checkpoints")) {
      const Json state = Json::parse(
          read(str_cat(run_folder(name), "/checkpoints/", stem, "/state.json")), nullptr, false);
      if (state.is_object() &&
          (newest.is_null() || state["train"]["step"] >= newest["step"].get<int64_t>()))
        newest = state["train"];
    }
    return newest;
  }
  template <typename Condition>
  static bool wait_until(Process& process, const Condition& condition) {
    const double end = Clock::real().monotonic_s() + 120.0;
    while (process.running() && !condition()) {
      if (Clock::real().monotonic_s() > end) return false;
      ::usleep(500);
    }
    return process.running();
  }

  static TempDir* folder_;
};

TempDir* RunFolderCrashTest::folder_ = nullptr;

TEST_F(RunFolderCrashTest, ASecondProcessIsRefusedAndADeadOneReplacedAtOnce) {
  auto first = start("locked", {"trainer.max_steps=100000"});
  ASSERT_TRUE(wait_until(*first, [] { return steps("locked").size() > 3; })) << log("locked");
  auto second = start("locked", {});
  EXPECT_EQ(second->wait(), 1);
  const std::string text = log("locked");
  EXPECT_NE(text.find(str_cat("in use by process ", first->pid())), std::string::npos) << text;
  ASSERT_TRUE(first->running());
  // Reading commands do not mind.
  Process report({aerie_binary(), "report", run_folder("locked")}, {path("report.log"), 0});
  EXPECT_EQ(report.wait(), 0) << read(path("report.log"));

  const int64_t before = steps("locked").back();
  first->send(SIGKILL);
  first->wait();
  EXPECT_TRUE(names(run_folder("locked")).contains(".aerie.lock"));
  for (const char* leftover : {"/.cmd-args.log.tmp-", "/checkpoints/.locked.nemo.tmp-"})
    ASSERT_TRUE(Env::real()
                    .write_file(str_cat(run_folder("locked"), leftover, first->pid(), "-1-0"), "x")
                    .ok());
  const double begin = Clock::real().monotonic_s();
  auto third = start("locked", {str_cat("trainer.max_steps=", before + 5)});
  EXPECT_EQ(third->wait(), 0) << log("locked");
  EXPECT_LT(Clock::real().monotonic_s() - begin, 50.0) << "no minute of waiting";
  for (const std::string& folder : {run_folder("locked"), run_folder("locked") + "/checkpoints"})
    for (const std::string& name : names(folder)) EXPECT_NE(name[0], '.') << name;
}

TEST_F(RunFolderCrashTest, AFreshStartKeepsTheRunThatWasThere) {
  const std::vector<std::string> fresh = {"exp_manager.resume_if_exists=false",
                                          "+exp_manager.version=v1", "trainer.max_steps=6"};
  auto first = start("again", fresh);
  ASSERT_EQ(first->wait(), 0) << log("again");
  const std::string folder = run_folder("again") + "/v1";
  const auto files = names(folder), checkpoints = names(folder + "/checkpoints");
  EXPECT_TRUE(checkpoints.contains("again.nemo"));
  const std::string metrics = read(folder + "/metrics.jsonl");
  auto second = start("again", fresh);
  ASSERT_EQ(second->wait(), 0) << log("again");
  EXPECT_EQ(names(folder + "/run_0/checkpoints"), checkpoints);
  EXPECT_EQ(read(folder + "/run_0/metrics.jsonl"), metrics);
  std::set<std::string> moved = names(folder + "/run_0");
  EXPECT_EQ(moved, files);
  EXPECT_EQ(names(folder + "/checkpoints"), checkpoints) << "the same run once more";
  // Said before the log can lie in the folder, and in it all the same.
  EXPECT_NE(read(folder + "/nemo_log_globalrank-0_localrank-0.txt").find("was moved to"),
            std::string::npos);
  // The closing lines name the new run's best, not the old one's.
  const std::string text = log("again");
  EXPECT_EQ(text.find("run_0/checkpoints"), std::string::npos);
}

TEST_F(RunFolderCrashTest, RefusesToStartAgainWhereTheCheckpointsAreMissing) {
  auto first = start("unmounted", {"trainer.max_steps=6"});
  ASSERT_EQ(first->wait(), 0) << log("unmounted");
  const std::string folder = run_folder("unmounted");
  ASSERT_TRUE(Env::real().rename(folder + "/checkpoints", folder + "/aside").ok());
  const std::string metrics = read(folder + "/metrics.jsonl");
  auto second = start("unmounted", {"trainer.max_steps=6"});
  EXPECT_EQ(second->wait(), 2);
  EXPECT_NE(log("unmounted").find("aerie.ignore_missing_checkpoints=true"), std::string::npos);
  EXPECT_EQ(read(folder + "/metrics.jsonl"), metrics);
  EXPECT_FALSE(names(folder).contains("checkpoints"));
  auto forced =
      start("unmounted", {"trainer.max_steps=6", "aerie.ignore_missing_checkpoints=true"});
  EXPECT_EQ(forced->wait(), 0) << log("unmounted");
  EXPECT_EQ(read(folder + "/run_0/metrics.jsonl"), metrics);
}

TEST_F(RunFolderCrashTest, AHangUpSavesAndABrokenPipeOnlyLosesTheLog) {
  auto hung = start("hung", {"trainer.max_steps=100000"});
  ASSERT_TRUE(wait_until(*hung, [] { return steps("hung").size() > 3; }));
  hung->send(SIGHUP);
  hung->send(SIGHUP);
  EXPECT_EQ(hung->wait(), 0) << log("hung");
  EXPECT_EQ(newest_state("hung")["step"], steps("hung").back());

  auto piped = start("piped", {}, "{ \"$@\" 2>&1; echo status $? >&3; } 3>&2 | head -n 3");
  EXPECT_EQ(piped->wait(), 0);
  EXPECT_NE(log("piped").find("status 0"), std::string::npos) << log("piped");
  EXPECT_EQ(steps("piped").size(), 30u);
}

TEST_F(RunFolderCrashTest, ASignalEndsAValidationAndTheResumedRunDoesIt) {
  // One validation batch takes long enough to be caught: many copies of the set.
  std::string manifest;
  const std::string dev = read(path("corpus/dev.json"));
  for (int i = 0; i < 400; ++i) manifest += dev;
  const std::string long_dev = path("corpus/long_dev.json");
  ASSERT_TRUE(Env::real().write_file(long_dev, manifest).ok());
  const std::vector<std::string> more = {
      "trainer.limit_val_batches=1.0", "++trainer.num_sanity_val_steps=0",
      str_cat("model.validation_ds.manifest_filepath=", long_dev)};
  auto run = start("validating", more);
  ASSERT_TRUE(wait_until(*run, [] { return steps("validating").size() >= 10; }))
      << log("validating");
  ::usleep(300000);
  run->send(SIGTERM);
  EXPECT_EQ(run->wait(), 0) << log("validating");
  ASSERT_TRUE(steps("validating", "val").empty()) << "the validation was to be cut short";
  EXPECT_EQ(newest_state("validating").value("validation_pending", false), true);
  // The resumed run does it first, on few batches here.
  auto rest = start("validating",
                    {"+exp_manager.disable_validation_on_resume=true", "trainer.max_steps=12"});
  EXPECT_EQ(rest->wait(), 0) << log("validating");
  EXPECT_EQ(steps("validating", "val"), (std::vector<int64_t>{10}));
}

TEST_F(RunFolderCrashTest, ClosedStandardStreamsLeaveTheMetricsAlone) {
  auto run = start("closed", {"trainer.max_steps=6"}, "exec \"$@\" <&- >&- 2>&-");
  EXPECT_EQ(run->wait(), 0);
  const std::vector<Json> all = lines("closed");
  EXPECT_GT(all.size(), 6u);
  for (const Json& line : all) EXPECT_TRUE(line.is_object());
}

TEST_F(RunFolderCrashTest, ANameMayNest) {
  auto run = start("team/nested", {"trainer.max_steps=6"});
  EXPECT_EQ(run->wait(), 0) << log("team/nested");
  EXPECT_TRUE(names(run_folder("team/nested") + "/checkpoints").contains("team_nested.nemo"));
}

// Metrics and TensorBoard's points survive the removal of their files.
TEST_F(RunFolderCrashTest, RemovedMetricsAreMadeAnew) {
  auto run = start("removed", {"trainer.max_steps=100000"});
  ASSERT_TRUE(wait_until(*run, [] { return steps("removed").size() > 5; }));
  ASSERT_TRUE(Env::real().remove_file(run_folder("removed") + "/metrics.jsonl").ok());
  ASSERT_TRUE(wait_until(*run, [] { return steps("removed").size() > 5; })) << log("removed");
  run->send(SIGTERM);
  EXPECT_EQ(run->wait(), 0);
  const std::vector<int64_t> after = steps("removed");
  for (size_t i = 1; i < after.size(); ++i) EXPECT_EQ(after[i], after[i - 1] + 1);
  EXPECT_NE(log("removed").find("was removed"), std::string::npos);
}

}  // namespace
}  // namespace aerie::crash
