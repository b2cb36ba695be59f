// Runs of the real binary that are killed, asked to stop, or cannot write, and then go on: they end
// with the bits of a run that was left alone.
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <map>
#include <unistd.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/base/clock.h"
#include "aerie/base/env.h"
#include "aerie/base/philox.h"
#include "aerie/base/strings.h"
#include "aerie/base/temp_dir.h"
#include "process.h"
#include "run_command.h"

namespace aerie::crash {
namespace {

using Json = nlohmann::ordered_json;

int64_t number_from_environment(const char* name, int64_t fallback) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoll(text) : fallback;
}

// What of a run must not depend on how often it was interrupted.
struct Outcome {
  std::map<std::string, std::string> files;  // weights and optimizer state of the last checkpoint
  Json state;                                // its state.json without times
  std::vector<std::string> checkpoints;      // names
  std::vector<std::string> metrics;          // train and val lines without times
};

class CrashTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempDir();
    Process synth(synth_command(path("corpus")), {path("synth.log"), 0});
    ASSERT_EQ(synth.wait(), 0) << read(path("synth.log"));
    steps_ = number_from_environment("AERIE_CRASH_STEPS", 60);
    kills_ = number_from_environment("AERIE_CRASH_KILLS", 5);
    auto straight = start("straight", {});
    ASSERT_EQ(straight->wait(), 0) << read(path("straight.log"));
    straight_ = new Outcome(outcome("straight"));
    ASSERT_GT(straight_->metrics.size(), static_cast<size_t>(steps_))
        << "one line a step, and validations";
    ASSERT_EQ(straight_->files.size(), 2u);
  }
  static void TearDownTestSuite() {
    delete straight_;
    delete folder_;
  }

  static std::string path(const std::string& name) { return folder_->path() + "/" + name; }
  static std::string read(const std::string& file) {
    auto text = Env::real().read_file(file);
    return text.ok() ? std::move(text).value() : "";
  }
  static std::string run_folder(const std::string& name) { return path("runs/" + name); }

  static std::unique_ptr<Process> start(const std::string& name, std::vector<std::string> more,
                                        uint64_t file_limit = 0) {
    std::vector<std::string> command = train_command(path("corpus"), path("runs"), name, steps_);
    command.insert(command.end(), more.begin(), more.end());
    return std::make_unique<Process>(command, Process::Options{path(name + ".log"), file_limit});
  }

  // The step of the last whole line of metrics.jsonl; 0 when there is none.
  static int64_t last_step(const std::string& name) {
    const std::string text = read(run_folder(name) + "/metrics.jsonl");
    int64_t step = 0;
    for (const std::string& line : split(text, '\n'))
      if (const Json json = Json::parse(line, nullptr, false); json.is_object())
        step = json.value("step", step);
    return step;
  }

  static bool is_saving(const std::string& name) {
    const auto entries = Env::real().list_dir(run_folder(name) + "/checkpoints");
    return entries.ok() && std::any_of(entries->begin(), entries->end(), [](const DirEntry& e) {
             return ends_with(e.name, "-unfinished") || starts_with(e.name, ".");
           });
  }

  // Polls until `condition` holds or the process ends; whether it is still running.
  template <typename Condition>
  static bool wait_until(Process& process, const Condition& condition, double seconds = 120.0) {
    const double end = Clock::real().monotonic_s() + seconds;
    while (process.running() && !condition()) {
      if (Clock::real().monotonic_s() > end) {
        ADD_FAILURE() << "waited " << seconds << " s in vain";
        return false;
      }
      ::usleep(500);
    }
    return process.running();
  }

  static Outcome outcome(const std::string& name) {
    Outcome out;
    const std::string folder = run_folder(name) + "/checkpoints";
    for (const DirEntry& entry : Env::real().list_dir(folder).value())
      if (entry.is_dir && !starts_with(entry.name, ".")) out.checkpoints.push_back(entry.name);
    for (const std::string& checkpoint : out.checkpoints) {
      if (!ends_with(checkpoint, str_cat("step=", steps_, "-last"))) continue;
      for (const char* file : {"model.safetensors", "optimizer.safetensors"})
        out.files[file] = read(str_cat(folder, "/", checkpoint, "/", file));
      out.state = Json::parse(read(str_cat(folder, "/", checkpoint, "/state.json")));
      out.state["train"].erase("wall_s");
    }
    for (const std::string& line : split(read(run_folder(name) + "/metrics.jsonl"), '\n')) {
      const Json json = Json::parse(line, nullptr, false);
      if (!json.is_object() || json["kind"] == "event") continue;
      Json kept;
      for (const char* key : {"kind", "step", "epoch", "train_loss", "val_loss", "learning_rate",
                              "grad_norm", "padding_share", "masked_share"})
        if (json.contains(key)) kept[key] = json[key];
      out.metrics.push_back(kept.dump());
    }
    return out;
  }

  static void expect_as_straight(const std::string& name) {
    const Outcome got = outcome(name);
    EXPECT_EQ(got.checkpoints, straight_->checkpoints);
    ASSERT_EQ(got.files.size(), straight_->files.size());
    for (const auto& [file, bytes] : straight_->files)
      EXPECT_TRUE(got.files.at(file) == bytes) << file << " differs";
    EXPECT_EQ(got.state.dump(1), straight_->state.dump(1));
    ASSERT_EQ(got.metrics.size(), straight_->metrics.size());
    for (size_t i = 0; i < got.metrics.size(); ++i)
      ASSERT_EQ(got.metrics[i], straight_->metrics[i]);
  }

  // Kills the run at `kills` moments: during start-up, between steps, and while a checkpoint is
  // being written.
  static void kill_and_resume(const std::string& name, const std::vector<std::string>& more) {
    RandomStream random(static_cast<uint64_t>(number_from_environment("AERIE_CRASH_SEED", 1)),
                        Purpose::kTest, 0, std::hash<std::string>()(name));
    int64_t killed = 0, at_start = 0, saving = 0;
    for (int64_t k = 0; k < kills_; ++k) {
      auto run = start(name, more);
      const int64_t before = last_step(name);
      const auto ahead = static_cast<int64_t>(
          random.below(static_cast<uint64_t>(std::max<int64_t>(2, steps_ / (kills_ + 1)))));
      switch (k % 3) {
        case 0:
          wait_until(*run, [&] { return last_step(name) > before + ahead; });
          ::usleep(static_cast<useconds_t>(random.below(20000)));
          break;
        case 1:
          wait_until(*run, [&] { return last_step(name) > before + ahead && is_saving(name); });
          break;
        default: {
          // Somewhere in the first second and a half; a quick machine must not get to the end.
          const double end =
              Clock::real().monotonic_s() + static_cast<double>(random.below(1500000)) * 1e-6;
          wait_until(*run, [&] {
            return Clock::real().monotonic_s() >= end || last_step(name) > before + ahead;
          });
          break;
        }
      }
      run->send(SIGKILL);
      const int status = run->wait();
      if (status == 0)
        break;  // a quick machine came to the end first: fewer kills, same comparison
      ASSERT_EQ(status, 1000 + SIGKILL) << read(path(name + ".log"));
      ++killed;
      if (k % 3 == 1) ++saving;
      if (k % 3 == 2) ++at_start;
    }
    EXPECT_GE(killed, 1);
    auto rest = start(name, more);
    ASSERT_EQ(rest->wait(), 0) << read(path(name + ".log"));
    std::printf("%s: %lld steps, killed %lld times (%lld while saving, %lld at start-up)\n",
                name.c_str(), static_cast<long long>(steps_), static_cast<long long>(killed),
                static_cast<long long>(saving), static_cast<long long>(at_start));
    expect_as_straight(name);
  }

  static TempDir* folder_;
  static Outcome* straight_;
  static int64_t steps_, kills_;
};

TempDir* CrashTest::folder_ = nullptr;
Outcome* CrashTest::straight_ = nullptr;
int64_t CrashTest::steps_ = 0;
int64_t CrashTest::kills_ = 0;

TEST_F(CrashTest, KilledRunEndsWithTheSameBits) {
  kill_and_resume("killed", {});
}

TEST_F(CrashTest, KilledRunWithOtherLoaderThreadsEndsWithTheSameBits) {
  kill_and_resume("threads", {"model.train_ds.num_workers=3", "model.validation_ds.num_workers=2"});
}

TEST_F(CrashTest, AskedToStopItFinishesTheStepSavesAndExitsWithZero) {
  int64_t at = 3;
  for (const int signal_number : {SIGTERM, SIGINT, SIGUSR1}) {
    auto run = start("asked", {});
    ASSERT_TRUE(wait_until(*run, [&] { return last_step("asked") > at; }));
    run->send(signal_number);
    ASSERT_EQ(run->wait(), 0) << read(path("asked.log"));
    // What was done was saved: the newest checkpoint is of the last step in the log.
    const int64_t step = last_step("asked");
    const auto entries = Env::real().list_dir(run_folder("asked") + "/checkpoints").value();
    EXPECT_TRUE(std::any_of(entries.begin(), entries.end(), [&](const DirEntry& e) {
      return ends_with(e.name, str_cat("step=", step, "-last"));
    })) << step;
    ASSERT_LT(step, steps_);
    at = step + steps_ / 8;
  }
  auto rest = start("asked", {});
  ASSERT_EQ(rest->wait(), 0);
  expect_as_straight("asked");
}

TEST_F(CrashTest, ASecondSignalEndsItAtOnce) {
  auto run = start("twice", {});
  ASSERT_TRUE(wait_until(*run, [&] { return last_step("twice") > 4; }));
  run->send(SIGTERM);
  run->send(SIGINT);
  const int status = run->wait(60.0);
  EXPECT_TRUE(status == 128 + SIGINT || status == 128 + SIGTERM) << status;
  EXPECT_NE(read(path("twice.log")).find("second signal"), std::string::npos);
  auto rest = start("twice", {});
  ASSERT_EQ(rest->wait(), 0);
  expect_as_straight("twice");
}

// No file may grow past 48 KiB for a while: as on a full disk, every checkpoint fails, metrics fail
// later, and all of it works again afterwards.
TEST_F(CrashTest, TrainingGoesOnWhenNothingCanBeWritten) {
  auto run = start("full", {}, 48 << 10);
  ASSERT_TRUE(wait_until(*run, [&] {
    return read(path("full.log")).find("could not be written, training goes on") !=
           std::string::npos;
  })) << read(path("full.log"));
  const int64_t step = last_step("full");
  ASSERT_TRUE(wait_until(*run, [&] { return last_step("full") > step + 2; }));
  EXPECT_TRUE(outcome("full").checkpoints.empty());
  run->lift_file_limit();
  ASSERT_EQ(run->wait(), 0) << read(path("full.log"));
  EXPECT_NE(read(path("full.log")).find("being written again"), std::string::npos);
  const Outcome got = outcome("full");
  for (const auto& [file, bytes] : straight_->files)
    EXPECT_TRUE(got.files.at(file) == bytes) << file << " differs";
  EXPECT_EQ(got.metrics, straight_->metrics);
}

// The checkpoint folder cannot be used (a file of that name is in the way) and later can.
TEST_F(CrashTest, TrainingGoesOnWithoutACheckpointFolder) {
  ASSERT_TRUE(Env::real().create_dirs(run_folder("blocked")).ok());
  const std::string folder = run_folder("blocked") + "/elsewhere";
  const std::string dirpath = "+exp_manager.checkpoint_callback_params.dirpath=" + folder;
  auto run = start("blocked", {dirpath});
  ASSERT_TRUE(wait_until(*run, [&] { return last_step("blocked") > 4; }));
  ASSERT_TRUE(Env::real().rename(folder, folder + "-aside").ok());
  ASSERT_TRUE(Env::real().write_file(folder, "in the way").ok());
  ASSERT_TRUE(wait_until(*run, [&] {
    return read(path("blocked.log")).find("could not be written, training goes on") !=
           std::string::npos;
  })) << read(path("blocked.log"));
  ASSERT_TRUE(Env::real().remove_file(folder).ok());
  ASSERT_EQ(run->wait(), 0) << read(path("blocked.log"));
  const auto entries = Env::real().list_dir(folder).value();
  EXPECT_TRUE(std::any_of(entries.begin(), entries.end(), [&](const DirEntry& e) {
    return ends_with(e.name, str_cat("step=", steps_, "-last"));
  }));
}

}  // namespace
}  // namespace aerie::crash
