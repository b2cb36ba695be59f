#include <cmath>
#include <future>
#include <thread>

#include <gtest/gtest.h>

#include "aerie/base/log.h"
#include "aerie/base/testing/fault_env.h"
#include "aerie/base/testing/mem_env.h"
#include "aerie/checkpoint/checkpoint_store.h"
#include "aerie/train/run_checkpointer.h"

namespace aerie::train {
namespace {

// Two tensors whose values tell the step; `go` holds the writer until the test lets it go on.
class TestSnapshot final : public StateSnapshot {
 public:
  explicit TestSnapshot(int64_t step, std::shared_future<void> go = {}) : go_(std::move(go)) {
    values_.assign(1000, static_cast<float>(step));
    list_ = {{"model", "w", Dtype::kF32, {10, 100}, values_.data(), values_.size() * sizeof(float)},
             {"optimizer",
              "exp_avg.w",
              Dtype::kF32,
              {10, 100},
              values_.data(),
              values_.size() * sizeof(float)}};
    scalars_ = "{\"optimizer_step\":" + std::to_string(step) + "}";
  }
  Status wait() override {
    if (go_.valid()) go_.wait();
    return ok_status();
  }
  const std::vector<SnapshotTensor>& tensors() const override { return list_; }
  const std::string& scalars_json() const override { return scalars_; }

 private:
  std::vector<float> values_;
  std::vector<SnapshotTensor> list_;
  std::string scalars_;
  std::shared_future<void> go_;
};

TrainState state_at(int64_t step) {
  TrainState out;
  out.step = step;
  return out;
}

Status save(Env& env, const std::string& stem, int64_t step) {
  TestSnapshot snapshot(step);
  return CheckpointStore(env, "/ckpt").save(stem, state_at(step), snapshot).status();
}

// The step of the newest valid checkpoint, after checking that its tensors belong to it; -1 when
// there is none.
int64_t newest(Env& env, int* damaged = nullptr) {
  CheckpointStore store(env, "/ckpt");
  auto found = store.newest_valid([&](const CheckpointInfo&, const Status&) {
    if (damaged != nullptr) ++*damaged;
  });
  EXPECT_TRUE(found.ok()) << found.status().to_string();
  if (*found == nullptr) return -1;
  std::vector<float> values(1000);
  EXPECT_TRUE((*found)->read("model", "w", Dtype::kF32, {10, 100}, values.data()).ok());
  EXPECT_EQ(values[999], static_cast<float>((*found)->state().step));
  EXPECT_EQ((*found)->scalars_json(),
            "{\"optimizer_step\":" + std::to_string((*found)->state().step) + "}");
  return (*found)->state().step;
}

TEST(CheckpointStoreTest, RoundTrips) {
  const auto env = new_mem_env();
  ASSERT_TRUE(save(*env, "a", 7).ok());
  EXPECT_EQ(newest(*env), 7);
  EXPECT_FALSE(env->exists("/ckpt/a-unfinished"));
  auto loaded = CheckpointStore(*env, "/ckpt").open("a");
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ((*loaded)->names("optimizer"), (std::vector<std::string>{"exp_avg.w"}));
  float value = 0;
  EXPECT_FALSE((*loaded)->read("model", "w", Dtype::kF32, {1}, &value).ok());
  EXPECT_FALSE((*loaded)->read("model", "x", Dtype::kF32, {1}, &value).ok());
}

TEST(CheckpointStoreTest, PassesOverADamagedOneAndReportsIt) {
  const auto env = new_mem_env();
  ASSERT_TRUE(save(*env, "a", 1).ok());
  ASSERT_TRUE(save(*env, "b", 2).ok());
  std::string bytes = *env->read_file("/ckpt/b/model.safetensors");
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  ASSERT_TRUE(env->write_file("/ckpt/b/model.safetensors", bytes).ok());
  int damaged = 0;
  EXPECT_EQ(newest(*env, &damaged), 1);
  EXPECT_EQ(damaged, 1);
  ASSERT_TRUE(env->write_file("/ckpt/a/manifest.json", "{}").ok());
  EXPECT_EQ(newest(*env), -1);
}

// Nobody can tell how new it is, so a good one beside it does not hide it.
TEST(CheckpointStoreTest, ReportsADamagedManifestBesideAGoodCheckpoint) {
  const auto env = new_mem_env();
  ASSERT_TRUE(save(*env, "a", 1).ok());
  ASSERT_TRUE(save(*env, "b", 2).ok());
  ASSERT_TRUE(env->write_file("/ckpt/b/manifest.json", "{\"format\":").ok());
  int damaged = 0;
  EXPECT_EQ(newest(*env, &damaged), 1);
  EXPECT_EQ(damaged, 1);
}

// Power may fail at any operation of a save: an earlier checkpoint or the new one is always there.
TEST(CheckpointStoreTest, SurvivesAPowerCutAtEveryOperation) {
  for (const char* second : {"a", "b"}) {
    for (uint64_t seed = 0; seed < 3; ++seed) {
      for (uint64_t n = 1;; ++n) {
        const auto memory = new_mem_env();
        FaultEnv env(*memory);
        ASSERT_TRUE(save(env, "a", 1).ok());
        env.crash_at(n);
        const bool finished = save(env, second, 2).ok();
        ASSERT_TRUE((seed == 0 ? env.power_loss() : env.power_loss(seed * 1000 + n)).ok());
        ASSERT_TRUE(CheckpointStore(env, "/ckpt").clean_up().ok());
        const int64_t step = newest(env);
        ASSERT_TRUE(finished ? step == 2 : step == 1 || step == 2)
            << second << " operation " << n << " gives " << step;
        for (const DirEntry& entry : *env.list_dir("/ckpt"))
          ASSERT_NE(entry.name[0], '.') << entry.name;
        ASSERT_TRUE(save(env, "c", 3).ok());
        ASSERT_EQ(newest(env), 3);
        if (finished) break;
      }
    }
  }
}

TEST(CheckpointStoreTest, FinishesAnInterruptedRemoval) {
  const auto memory = new_mem_env();
  for (uint64_t n = 1;; ++n) {
    FaultEnv env(*memory);
    ASSERT_TRUE(save(env, "a", 1).ok());
    ASSERT_TRUE(save(env, "b", 2).ok());
    ASSERT_TRUE(env.write_file("/ckpt/notes.txt", "mine").ok());
    ASSERT_TRUE(env.create_dirs("/ckpt/other").ok());
    ASSERT_TRUE(env.write_file("/ckpt/other/model.safetensors", "").ok());
    ASSERT_TRUE(env.write_file("/ckpt/other/readme", "mine too").ok());
    env.crash_at(n);
    const bool finished = CheckpointStore(env, "/ckpt").remove("a").ok();
    env.clear_faults();
    ASSERT_TRUE(CheckpointStore(env, "/ckpt").clean_up().ok());
    if (env.exists("/ckpt/a")) {
      EXPECT_TRUE(env.exists("/ckpt/a/manifest.json")) << n;
    }
    EXPECT_EQ(newest(env), 2);
    EXPECT_TRUE(env.exists("/ckpt/notes.txt") && env.exists("/ckpt/other/readme"));
    if (finished) break;
  }
}

// Only names with our mark are removed, and the log says so.
TEST(CheckpointStoreTest, LeavesAloneWhatIsNotItsOwn) {
  const auto env = new_mem_env();
  const auto add = [&](const std::string& path) {
    ASSERT_TRUE(env->create_dirs(path.substr(0, path.rfind('/'))).ok());
    ASSERT_TRUE(env->write_file(path, "x").ok());
  };
  ASSERT_TRUE(save(*env, "a", 1).ok());
  // The user's: an empty folder, an exported model, a hidden folder, a copy without a manifest.
  ASSERT_TRUE(env->create_dirs("/ckpt/empty").ok());
  add("/ckpt/export/model.safetensors");
  add("/ckpt/.cache.tmp-2024/x");
  add("/ckpt/backup/state.json");
  // Lightning's, with NeMo's marker.
  add("/ckpt/torn-last.ckpt");
  ASSERT_TRUE(env->write_file("/ckpt/torn-last-unfinished", "").ok());
  // Remainders of versions without marks.
  add("/ckpt/.b.tmp-new/model.safetensors");
  add("/ckpt/.a.tmp-old/manifest.json");
  // Ours.
  add("/ckpt/.c.aerie-new/model.safetensors");
  add("/ckpt/.a.aerie-old/model.safetensors");
  add("/ckpt/.d.aerie-gone/model.safetensors");
  ASSERT_TRUE(env->write_file("/ckpt/c-unfinished", "").ok());
  std::string log;
  set_log_console([&](LogLevel, std::string_view line) { log += str_cat(line, "\n"); });
  ASSERT_TRUE(CheckpointStore(*env, "/ckpt").clean_up().ok());
  set_log_console({});
  std::vector<std::string> left;
  for (const DirEntry& entry : *env->list_dir("/ckpt")) left.push_back(entry.name);
  EXPECT_EQ(left, (std::vector<std::string>{".a.tmp-old", ".b.tmp-new", ".cache.tmp-2024", "a",
                                            "backup", "empty", "export", "torn-last-unfinished",
                                            "torn-last.ckpt"}));
  for (const char* named : {".c.aerie-new", ".a.aerie-old", ".d.aerie-gone", "c-unfinished",
                            ".b.tmp-new", ".a.tmp-old", "backup", "torn-last.ckpt"})
    EXPECT_NE(log.find(named), std::string::npos) << named << " is not named in\n" << log;
  for (const char* silent : {"empty", ".cache.tmp-2024"})
    EXPECT_EQ(log.find(silent), std::string::npos) << silent;
}

// A run killed between two renames of a version without marks.
TEST(CheckpointStoreTest, PutsBackWhatAnEarlierVersionHadMovedAside) {
  const auto env = new_mem_env();
  ASSERT_TRUE(save(*env, "a", 1).ok());
  ASSERT_TRUE(env->rename("/ckpt/a", "/ckpt/.a.tmp-old").ok());
  ASSERT_TRUE(CheckpointStore(*env, "/ckpt").clean_up().ok());
  EXPECT_EQ(newest(*env), 1);
}

TEST(CheckpointStoreTest, FullDiskLeavesTheOldOne) {
  for (uint64_t space : {0u, 100u, 5000u, 8400u}) {
    const auto memory = new_mem_env();
    FaultEnv env(*memory);
    ASSERT_TRUE(save(env, "a", 1).ok());
    env.set_space(space);
    EXPECT_FALSE(save(env, "b", 2).ok());
    EXPECT_EQ(env.list_dir("/ckpt")->size(), 1u) << "what failed takes no space";
    env.clear_faults();
    EXPECT_EQ(newest(env), 1);
    EXPECT_TRUE(save(env, "b", 2).ok());
    EXPECT_EQ(newest(env), 2);
  }
}

TEST(CheckpointStoreTest, TornAndLostWritesAreFound) {
  for (uint64_t nth = 1; nth <= 12; ++nth) {
    const auto memory = new_mem_env();
    FaultEnv env(*memory);
    ASSERT_TRUE(save(env, "a", 1).ok());
    env.tear_append(nth, 3, /*silent=*/true);
    (void)save(env, "b", 2);
    env.clear_faults();
    const int64_t step = newest(env);
    EXPECT_TRUE(step == 1 || step == 2);
  }
  for (uint64_t nth = 1; nth <= 2; ++nth) {
    const auto memory = new_mem_env();
    FaultEnv env(*memory);
    ASSERT_TRUE(save(env, "a", 1).ok());
    env.lose_rename(nth);
    (void)save(env, "b", 2);
    env.clear_faults();
    ASSERT_TRUE(CheckpointStore(env, "/ckpt").clean_up().ok());
    EXPECT_GE(newest(env), 1);
  }
}

struct RunCheckpointerTest : testing::Test {
  std::unique_ptr<Env> env = new_mem_env();
  FakeClock clock;
  RunCheckpointerOptions options;
  int nemo_writes = 0;

  void SetUp() override {
    options.folder = {"/run", "/run/checkpoints", "SSL", ""};
    options.params.filename = "SSL--{val_loss:.3f}-{step}";
    options.params.save_top_k = 2;
    options.write_archive = [this](const std::string& path, const StateSnapshot&) {
      ++nemo_writes;
      return env->atomic_replace(path, "nemo");
    };
  }
  void save(RunCheckpointer& checkpointer, int64_t step, std::optional<double> monitor,
            SaveReason reason = SaveReason::kValidation) {
    SaveRequest request;
    request.state = state_at(step);
    request.monitor = monitor;
    request.reason = reason;
    ASSERT_TRUE(checkpointer.save(std::move(request), std::make_unique<TestSnapshot>(step)).ok());
    ASSERT_TRUE(checkpointer.drain().ok());
  }
  std::vector<std::string> names() {
    std::vector<std::string> out;
    for (const DirEntry& entry : *env->list_dir("/run/checkpoints")) out.push_back(entry.name);
    return out;
  }
};

TEST_F(RunCheckpointerTest, KeepsTheBestAndTheLast) {
  RunCheckpointer checkpointer(*env, clock, options);
  save(checkpointer, 10, 5.0);
  save(checkpointer, 20, 4.0);
  save(checkpointer, 30, 6.0);
  EXPECT_EQ(names(),
            (std::vector<std::string>{"SSL--val_loss=4.000-step=20", "SSL--val_loss=5.000-step=10",
                                      "SSL--val_loss=6.000-step=30-last"}));
  save(checkpointer, 40, 3.0);
  EXPECT_EQ(names(), (std::vector<std::string>{"SSL--val_loss=3.000-step=40",
                                               "SSL--val_loss=3.000-step=40-last",
                                               "SSL--val_loss=4.000-step=20"}));
  EXPECT_EQ(checkpointer.best_stem(), "SSL--val_loss=3.000-step=40");
  EXPECT_EQ(checkpointer.last_stem(), "SSL--val_loss=3.000-step=40-last");
  EXPECT_EQ(checkpointer.take_reports().size(), 4u);
}

// A name said val_loss=0.000 where no validation had been: the best value there can be.
TEST_F(RunCheckpointerTest, AMetricThatWasNeverMeasuredEntersNoName) {
  RunCheckpointer checkpointer(*env, clock, options);
  save(checkpointer, 10, std::nullopt, SaveReason::kInterval);
  EXPECT_EQ(names(), (std::vector<std::string>{"SSL--step=10-last"}));
  // A validation long ago is still the latest value.
  SaveRequest request;
  request.state = state_at(20);
  request.reason = SaveReason::kInterval;
  request.metrics = {{"val_loss", 4.0}, {"train_loss", 3.0}};
  ASSERT_TRUE(checkpointer.save(request, std::make_unique<TestSnapshot>(20)).ok());
  ASSERT_TRUE(checkpointer.drain().ok());
  EXPECT_EQ(names(), (std::vector<std::string>{"SSL--val_loss=4.000-step=20-last"}));
}

TEST_F(RunCheckpointerTest, ATemplateOfMetricsAloneStillNamesACheckpoint) {
  options.params.filename = "{val_loss:.3f}";
  RunCheckpointer checkpointer(*env, clock, options);
  ASSERT_TRUE(checkpointer.adopt_existing().ok());
  save(checkpointer, 10, std::nullopt, SaveReason::kInterval);
  EXPECT_EQ(names(), (std::vector<std::string>{"step=10-last"}));
}

TEST_F(RunCheckpointerTest, NanIsTheWorst) {
  options.params.save_top_k = 1;
  RunCheckpointer checkpointer(*env, clock, options);
  save(checkpointer, 10, std::nan(""));
  save(checkpointer, 20, 8.0);
  EXPECT_EQ(checkpointer.best_stem(), "SSL--val_loss=8.000-step=20");
  save(checkpointer, 30, std::nan(""));
  EXPECT_EQ(checkpointer.best_stem(), "SSL--val_loss=8.000-step=20");
}

// Names round, lack the metric or say nan; what counts is what the checkpoints hold.
TEST_F(RunCheckpointerTest, TheBestAfterARestartComeFromTheCheckpointsThemselves) {
  const auto kept = [&](const char* filename, std::vector<double> first, double then) {
    env = new_mem_env();
    options.params.filename = filename;
    {
      RunCheckpointer checkpointer(*env, clock, options);
      for (size_t i = 0; i < first.size(); ++i)
        save(checkpointer, 10 * static_cast<int64_t>(i + 1), first[i]);
    }
    RunCheckpointer checkpointer(*env, clock, options);
    EXPECT_TRUE(checkpointer.adopt_existing().ok());
    save(checkpointer, 90, then);
    std::vector<std::string> out = names();
    std::erase_if(out, [](const std::string& name) { return ends_with(name, "-last"); });
    return out;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(kept("{step}", {5.0, 4.0}, 4.5), (Names{"step=20", "step=90"}));
  options.params.save_top_k = 1;
  EXPECT_EQ(kept("{val_loss:.1f}-{step}", {4.04}, 4.02), (Names{"val_loss=4.0-step=90"}));
  EXPECT_EQ(kept("{val_loss:.1f}-{step}", {3.96}, 3.99), (Names{"val_loss=4.0-step=10"}));
  EXPECT_EQ(kept("{val_loss:.1f}-{step}", {std::nan("")}, 8.0), (Names{"val_loss=8.0-step=90"}));
}

TEST_F(RunCheckpointerTest, SomebodysCopyOfACheckpointStays) {
  options.params.save_top_k = 1;
  {
    RunCheckpointer checkpointer(*env, clock, options);
    save(checkpointer, 10, 5.0);
  }
  ASSERT_TRUE(env->rename("/run/checkpoints/SSL--val_loss=5.000-step=10",
                          "/run/checkpoints/keep--val_loss=5.000")
                  .ok());
  RunCheckpointer checkpointer(*env, clock, options);
  ASSERT_TRUE(checkpointer.adopt_existing().ok());
  save(checkpointer, 20, 4.0);
  save(checkpointer, 30, 3.0);
  EXPECT_EQ(names(),
            (std::vector<std::string>{"SSL--val_loss=3.000-step=30",
                                      "SSL--val_loss=3.000-step=30-last", "keep--val_loss=5.000"}));
}

TEST(TrainStateTest, WhatItWasJudgedByAlsoInEarlierVersions) {
  TrainState state;
  state.monitor_name = "val_loss";
  state.monitor = std::nan("");
  const auto back = TrainState::from_json(state.to_json());
  ASSERT_TRUE(back.ok());
  EXPECT_TRUE(std::isnan(back->judged_by("val_loss").value_or(0.0)));
  EXPECT_EQ(back->judged_by("train_loss"), std::nullopt);
  TrainState old;
  old.early_stopping_json = R"({"checks":0,"validations":2,"metrics":{"train_loss":3.0}})";
  old.last_monitor = std::nan("");
  EXPECT_EQ(old.judged_by("train_loss"), 3.0);
  EXPECT_TRUE(std::isnan(old.judged_by("val_loss").value_or(0.0)));
  old.early_stopping_json = R"({"checks":0,"validations":"2"})";
  EXPECT_EQ(old.judged_by("val_loss"), std::nullopt);
}

TEST_F(RunCheckpointerTest, RebuildsTopKAfterARestart) {
  {
    RunCheckpointer checkpointer(*env, clock, options);
    save(checkpointer, 10, 5.0);
    save(checkpointer, 20, 4.0);
  }
  RunCheckpointer checkpointer(*env, clock, options);
  ASSERT_TRUE(checkpointer.adopt_existing().ok());
  save(checkpointer, 30, 4.5);
  EXPECT_EQ(names(),
            (std::vector<std::string>{"SSL--val_loss=4.000-step=20", "SSL--val_loss=4.500-step=30",
                                      "SSL--val_loss=4.500-step=30-last"}));
}

TEST_F(RunCheckpointerTest, RemovesWhatAKilledRunLeft) {
  {
    RunCheckpointer checkpointer(*env, clock, options);
    save(checkpointer, 10, 5.0);
    save(checkpointer, 20, 4.0);
  }
  // Killed after writing the new one and before removing the old.
  CheckpointStore store(*env, "/run/checkpoints");
  TestSnapshot snapshot(5);
  TrainState state = state_at(5);
  state.monitor_name = "val_loss";
  state.monitor = 6.0;
  for (const char* stem : {"SSL--val_loss=6.000-step=5", "SSL--val_loss=6.000-step=5-last"})
    ASSERT_TRUE(store.save(stem, state, snapshot).ok());
  RunCheckpointer checkpointer(*env, clock, options);
  ASSERT_TRUE(checkpointer.adopt_existing().ok());
  EXPECT_EQ(checkpointer.last_stem(), "SSL--val_loss=4.000-step=20-last");
  save(checkpointer, 30, 4.5);
  EXPECT_EQ(names(),
            (std::vector<std::string>{"SSL--val_loss=4.000-step=20", "SSL--val_loss=4.500-step=30",
                                      "SSL--val_loss=4.500-step=30-last"}));
}

TEST_F(RunCheckpointerTest, RefusesATemplateItCannotFillInBeforeTheFirstSave) {
  options.params.filename = "{accuracy:.2f}-{step}";
  RunCheckpointer checkpointer(*env, clock, options);
  EXPECT_EQ(checkpointer.adopt_existing().code(), StatusCode::kInvalidArgument);
}

TEST_F(RunCheckpointerTest, RefusesNamesThatNoFileSystemTakesBeforeTheFirstSave) {
  options.params.filename = std::string(300, 'x');
  RunCheckpointer checkpointer(*env, clock, options);
  const Status status = checkpointer.adopt_existing();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.to_string().find("checkpoint_callback_params.filename"), std::string::npos);
}

// They were written as hidden directories, which are those of unfinished saves to everybody else: a
// resumed run said that there is no checkpoint.
TEST_F(RunCheckpointerTest, NamesThatBeginWithADotAreFoundAgain) {
  for (const char* filename : {"../../{step}", ".{step}", "."}) {
    env = new_mem_env();
    options.params.filename = filename;
    {
      RunCheckpointer checkpointer(*env, clock, options);
      ASSERT_TRUE(checkpointer.adopt_existing().ok());
      save(checkpointer, 10, 5.0);
    }
    const auto found = CheckpointStore(*env, "/run/checkpoints").newest_valid({});
    ASSERT_TRUE(found.ok());
    ASSERT_NE(*found, nullptr) << filename;
    EXPECT_EQ((*found)->state().step, 10) << filename;
  }
}

TEST_F(RunCheckpointerTest, WritesTheNemoArchiveWhenAsked) {
  {
    RunCheckpointer checkpointer(*env, clock, options);
    save(checkpointer, 10, 5.0);
    EXPECT_EQ(nemo_writes, 0);
    save(checkpointer, 12, std::nullopt, SaveReason::kTrainEnd);
    EXPECT_EQ(nemo_writes, 1);
    EXPECT_TRUE(env->exists("/run/checkpoints/SSL.nemo"));
  }
  options.params.always_save_nemo = true;
  RunCheckpointer checkpointer(*env, clock, options);
  save(checkpointer, 20, 5.0);
  EXPECT_EQ(nemo_writes, 2);
}

// The disk fills up between the best checkpoint and `-last`: the former still counts among the best
// and goes when better ones come.
TEST_F(RunCheckpointerTest, ABestOneWithoutItsLastIsNotForgotten) {
  FaultEnv faulty(*env);
  options.params.save_top_k = 1;
  RunCheckpointer checkpointer(faulty, clock, options);
  faulty.set_space(13000);  // one checkpoint and a half
  SaveRequest request;
  request.state = state_at(1);
  request.monitor = 5.0;
  ASSERT_TRUE(checkpointer.save(request, std::make_unique<TestSnapshot>(1)).ok());
  ASSERT_FALSE(checkpointer.drain().ok());
  ASSERT_EQ(names(), (std::vector<std::string>{"SSL--val_loss=5.000-step=1"}));
  faulty.clear_faults();
  save(checkpointer, 2, 4.0);
  EXPECT_EQ(names(), (std::vector<std::string>{"SSL--val_loss=4.000-step=2",
                                               "SSL--val_loss=4.000-step=2-last"}));
}

TEST_F(RunCheckpointerTest, ANewerOneTakesThePlaceOfOneThatWaits) {
  options.params.save_top_k = 1;
  RunCheckpointer checkpointer(*env, clock, options);
  std::promise<void> go;
  const std::shared_future<void> gate = go.get_future().share();
  // Every one is better than the last: those in between would be removed again.
  for (int64_t step = 1; step <= 5; ++step) {
    SaveRequest request;
    request.state = state_at(step);
    request.monitor = 10.0 - static_cast<double>(step);
    ASSERT_TRUE(
        checkpointer.save(std::move(request), std::make_unique<TestSnapshot>(step, gate)).ok());
  }
  go.set_value();
  ASSERT_TRUE(checkpointer.drain().ok());
  EXPECT_EQ(names(), (std::vector<std::string>{"SSL--val_loss=5.000-step=5",
                                               "SSL--val_loss=5.000-step=5-last"}));
  const std::vector<SaveReport> reports = checkpointer.take_reports();
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[0].step, 1);
  EXPECT_EQ(reports[1].step, 5);
  EXPECT_EQ(reports[0].superseded, 3);  // 2, 3 and 4, while 1 was being written
  EXPECT_EQ(reports[1].superseded, 0);
}

TEST_F(RunCheckpointerTest, ABestOneThatWaitsIsWritten) {
  options.params.save_top_k = 1;
  RunCheckpointer checkpointer(*env, clock, options);
  std::promise<void> go;
  const std::shared_future<void> gate = go.get_future().share();
  const auto hand_over = [&](int64_t step, double monitor) {
    SaveRequest request;
    request.state = state_at(step);
    request.monitor = monitor;
    EXPECT_TRUE(
        checkpointer.save(std::move(request), std::make_unique<TestSnapshot>(step, gate)).ok());
  };
  hand_over(1, 5.0);
  hand_over(2, 3.0);
  std::thread third([&] { hand_over(3, 4.0); });  // waits for the second to be taken up
  go.set_value();
  third.join();
  ASSERT_TRUE(checkpointer.drain().ok());
  EXPECT_EQ(names(), (std::vector<std::string>{"SSL--val_loss=3.000-step=2",
                                               "SSL--val_loss=4.000-step=3-last"}));
}

TEST_F(RunCheckpointerTest, AFailedSaveIsReportedAndTheNextOneWorks) {
  FaultEnv faulty(*env);
  RunCheckpointer checkpointer(faulty, clock, options);
  faulty.set_read_only(true);
  SaveRequest request;
  request.state = state_at(1);
  ASSERT_TRUE(checkpointer.save(request, std::make_unique<TestSnapshot>(1)).ok());
  EXPECT_FALSE(checkpointer.drain().ok());
  const auto reports = checkpointer.take_reports();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_FALSE(reports[0].status.ok());
  faulty.clear_faults();
  save(checkpointer, 2, 5.0);
  EXPECT_EQ(checkpointer.best_stem(), "SSL--val_loss=5.000-step=2");
}

}  // namespace
}  // namespace aerie::train
