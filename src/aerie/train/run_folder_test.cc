#include "aerie/train/run_folder.h"

#include <cmath>
#include <unistd.h>

#include <gtest/gtest.h>

#include "aerie/base/temp_dir.h"
#include "aerie/base/testing/mem_env.h"
#include "aerie/base/testing/paths.h"
#include "aerie/checkpoint/checkpoint_store.h"

namespace aerie::train {
namespace {

struct RunFolderTest : testing::Test {
  std::unique_ptr<Env> env = new_mem_env();
  FakeClock clock;
  config::ExpManagerConfig exp;

  void SetUp() override {
    exp.present = true;
    exp.exp_dir = "/exp";
    exp.name = "SSL";
  }
  void add(const std::string& path) {
    ASSERT_TRUE(env->create_dirs(path.substr(0, path.rfind('/'))).ok());
    ASSERT_TRUE(env->write_file(path, "x").ok());
  }
  RunFolder choose() {
    auto folder = choose_run_folder(*env, clock, exp, "");
    EXPECT_TRUE(folder.ok()) << folder.status().to_string();
    return *folder;
  }
};

TEST_F(RunFolderTest, HasAVersionLevelOnlyWhenItDoesNotResume) {
  const RunFolder fresh = choose();
  EXPECT_EQ(fresh.path, "/exp/SSL/" + folder_time(clock.wall_ns()));
  EXPECT_EQ(fresh.checkpoints, fresh.path + "/checkpoints");
  exp.resume_if_exists = true;
  EXPECT_EQ(choose().path, "/exp/SSL");
  exp.version = "v7";
  EXPECT_EQ(choose().path, "/exp/SSL/v7");
}

TEST_F(RunFolderTest, NumbersVersionsWithoutDates) {
  exp.use_datetime_version = false;
  EXPECT_EQ(choose().path, "/exp/SSL/version_0");
  add("/exp/SSL/version_0/x");
  add("/exp/SSL/version_11/x");
  EXPECT_EQ(choose().path, "/exp/SSL/version_12");
}

TEST_F(RunFolderTest, DefaultsWithoutAnExpManagerNode) {
  const auto folder = choose_run_folder(*env, clock, {}, "");
  ASSERT_TRUE(folder.ok());
  EXPECT_EQ(folder->path, "./nemo_experiments/default/" + folder_time(clock.wall_ns()));
}

// NeMo's exp_manager does not see the name of the configuration.
TEST_F(RunFolderTest, WithoutANameOfItsOwnItIsTheDefaultOne) {
  exp.name.clear();
  exp.resume_if_exists = true;
  EXPECT_EQ(choose().path, "/exp/default");
  EXPECT_EQ(choose().name, "default");
}

TEST_F(RunFolderTest, ExplicitFolderAndEnvironmentVersion) {
  EXPECT_EQ(choose_run_folder(*env, clock, exp, "from_env")->path, "/exp/SSL/from_env");
  exp.resume_if_exists = true;
  EXPECT_EQ(choose_run_folder(*env, clock, exp, "from_env")->path, "/exp/SSL/from_env");
  exp.explicit_log_dir = "/here";
  EXPECT_EQ(choose().path, "/here");
}

TEST_F(RunFolderTest, RefusesNamesThatLeaveTheFolder) {
  exp.name = "../../etc";
  EXPECT_EQ(choose_run_folder(*env, clock, exp, "").status().code(), StatusCode::kInvalidArgument);
}

TEST_F(RunFolderTest, MovesLooseFilesOfThePreviousRun) {
  exp.resume_if_exists = true;
  const RunFolder folder = choose();
  add(folder.path + "/cmd-args.log");
  add(folder.path + "/metrics.jsonl");
  add(folder.path + "/events.out.tfevents.1.h.2.0");
  add(folder.path + "/run_0/cmd-args.log");
  ASSERT_TRUE(prepare_run_folder(*env, folder, true).ok());
  EXPECT_TRUE(env->exists(folder.path + "/run_1/cmd-args.log"));
  EXPECT_FALSE(env->exists(folder.path + "/cmd-args.log"));
  EXPECT_TRUE(env->exists(folder.path + "/metrics.jsonl"));
  EXPECT_TRUE(env->exists(folder.path + "/events.out.tfevents.1.h.2.0"));
}

TEST_F(RunFolderTest, WhatLooksLikeACheckpointAndIsNoneIsReported) {
  exp.resume_if_exists = true;
  exp.resume_ignore_no_checkpoint = true;
  const RunFolder folder = choose();
  add(folder.checkpoints + "/SSL-step=10/model.safetensors");
  add(folder.checkpoints + "/SSL-step=10-last");
  add(folder.checkpoints + "/notes/readme");
  add(folder.checkpoints + "/SSL.nemo");
  const auto plan = plan_resume(*env, folder, exp);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->kind, ResumePlan::Kind::kFresh);
  ASSERT_EQ(plan->warnings.size(), 2u);
  EXPECT_NE(plan->warnings[0].find("SSL-step=10 is passed over: it has no manifest.json"),
            std::string::npos);
  EXPECT_NE(plan->warnings[1].find("SSL-step=10-last is passed over: it is a file"),
            std::string::npos);
}

TEST(UnusableCheckpointTest, LinksAreToldFromFiles) {
  const TempDir dir;
  ASSERT_TRUE(Env::real().create_dirs(dir.file("real")).ok());
  ASSERT_EQ(symlink("nowhere", dir.file("a-last").c_str()), 0);
  ASSERT_EQ(symlink("real", dir.file("b-last").c_str()), 0);
  const auto found = CheckpointStore(Env::real(), dir.path()).unusable();
  ASSERT_TRUE(found.ok());
  ASSERT_EQ(found->size(), 2u);
  EXPECT_NE((*found)[0].why.find("not there"), std::string::npos);
  EXPECT_NE((*found)[1].why.find("it is a link"), std::string::npos);
}

TEST_F(RunFolderTest, AnUnhealthyCheckpointAloneIsNotGoneOnFrom) {
  exp.resume_if_exists = true;
  exp.resume_ignore_no_checkpoint = true;
  const RunFolder folder = choose();
  add(folder.checkpoints + "/SSL-step=10-unhealthy/manifest.json");
  EXPECT_EQ(plan_resume(*env, folder, exp).status().code(), StatusCode::kInvalidArgument);
  exp.resume_from_checkpoint = folder.checkpoints + "/SSL-step=10-unhealthy";
  EXPECT_EQ(plan_resume(*env, folder, exp)->path, exp.resume_from_checkpoint);
  add(folder.checkpoints + "/SSL-step=5-last/manifest.json");
  EXPECT_EQ(plan_resume(*env, folder, exp)->path, folder.checkpoints);
}

TEST_F(RunFolderTest, PlansAResumeByExpManagersRules) {
  exp.resume_if_exists = true;
  const RunFolder folder = choose();
  EXPECT_FALSE(plan_resume(*env, folder, exp).ok());
  exp.resume_ignore_no_checkpoint = true;
  EXPECT_EQ(plan_resume(*env, folder, exp)->kind, ResumePlan::Kind::kFresh);

  add(folder.checkpoints + "/SSL--val_loss=5.0-step=10-last.ckpt");
  auto plan = plan_resume(*env, folder, exp);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->kind, ResumePlan::Kind::kForeign);
  add(folder.checkpoints + "/other-last.ckpt");
  EXPECT_FALSE(plan_resume(*env, folder, exp).ok());
  add(folder.checkpoints + "/other-last-unfinished");
  EXPECT_EQ(plan_resume(*env, folder, exp)->path,
            folder.checkpoints + "/SSL--val_loss=5.0-step=10-last.ckpt");

  add(folder.checkpoints + "/SSL--val_loss=4.0-step=20-last/manifest.json");
  EXPECT_EQ(plan_resume(*env, folder, exp)->kind, ResumePlan::Kind::kNative);
  // Native checkpoints are whole when they have their name; the marker is a leftover.
  add(folder.checkpoints + "/SSL--val_loss=4.0-step=20-last-unfinished");
  EXPECT_EQ(plan_resume(*env, folder, exp)->kind, ResumePlan::Kind::kNative);
  add(folder.checkpoints + "/SSL-end/manifest.json");
  EXPECT_FALSE(plan_resume(*env, folder, exp).ok());
  exp.resume_past_end = true;
  EXPECT_TRUE(plan_resume(*env, folder, exp).ok());
}

// NeMo may have gone on in the folder of a run (aerie.lightning_checkpoints).
TEST_F(RunFolderTest, TheNewerOfNativeAndLightningIsTaken) {
  exp.resume_if_exists = true;
  const RunFolder folder = choose();
  const std::string theirs = folder.checkpoints + "/SSL-last.ckpt";
  add(theirs);
  ASSERT_TRUE(
      env->write_file(theirs, Env::real().read_file(test_data("/archive/lightning.ckpt")).value())
          .ok());  // of step 3
  const auto native = [&](int64_t step) {
    const std::string path = folder.checkpoints + "/native-last-step=x/manifest.json";
    add(path);
    EXPECT_TRUE(
        env->write_file(path, str_cat(R"({"format": "aerie-checkpoint", "version": 1, "step": )",
                                      step, R"(, "files": {"state.json": {"bytes": 1, "xxh64": "0"},
                                              "model.safetensors": {"bytes": 1, "xxh64": "0"}}})"))
            .ok());
    const auto plan = plan_resume(*env, folder, exp);
    EXPECT_TRUE(plan.ok()) << plan.status().to_string();
    return *plan;
  };
  const ResumePlan behind = native(2);
  EXPECT_EQ(behind.kind, ResumePlan::Kind::kForeign);
  EXPECT_EQ(behind.path, theirs);
  EXPECT_NE(behind.sentence.find("of step 3"), std::string::npos) << behind.sentence;
  EXPECT_EQ(native(3).kind, ResumePlan::Kind::kNative);
  EXPECT_EQ(native(4).kind, ResumePlan::Kind::kNative);
  ASSERT_TRUE(env->write_file(theirs, "torn").ok());
  const ResumePlan torn = native(2);
  EXPECT_EQ(torn.kind, ResumePlan::Kind::kNative);
  EXPECT_NE(torn.sentence.find("passed over"), std::string::npos) << torn.sentence;
}

TEST_F(RunFolderTest, FallsBackToAGivenCheckpoint) {
  add("/old/model.ckpt");
  exp.resume_from_checkpoint = "/old/model.ckpt";
  EXPECT_EQ(plan_resume(*env, choose(), exp)->path, "/old/model.ckpt");
  exp.resume_from_checkpoint = "/old/none.ckpt";
  EXPECT_FALSE(plan_resume(*env, choose(), exp).ok());
}

TEST_F(RunFolderTest, FindsTheCommitWithoutRunningGit) {
  const std::string hash(40, 'a'), other(40, 'b');
  const auto put = [&](const std::string& path, const std::string& text) {
    ASSERT_TRUE(env->create_dirs(path.substr(0, path.find_last_of('/'))).ok());
    ASSERT_TRUE(env->write_file(path, text).ok());
  };
  put("/tree/sub/file", "");
  EXPECT_EQ(git_info(*env, "/tree/sub"), "");
  put("/tree/.git/HEAD", hash + "\n");
  EXPECT_EQ(git_info(*env, "/tree/sub"), "commit hash: " + hash + "\n");
  put("/tree/.git/HEAD", "ref: refs/heads/main\n");
  EXPECT_EQ(git_info(*env, "/tree/sub"), "") << "no commit yet";
  put("/tree/.git/packed-refs", "# pack-refs with: peeled\n" + other + " refs/heads/main\n");
  EXPECT_EQ(git_info(*env, "/tree"), "commit hash: " + other + "\nbranch: main\n");
  put("/tree/.git/refs/heads/main", hash + "\n");
  EXPECT_EQ(git_info(*env, "/tree"), "commit hash: " + hash + "\nbranch: main\n");
  // A linked work tree.
  put("/linked/.git", "gitdir: /tree/.git/worktrees/w\n");
  put("/tree/.git/worktrees/w/HEAD", "ref: refs/heads/main\n");
  put("/tree/.git/worktrees/w/commondir", "/tree/.git\n");
  put("/tree/.git/HEAD", other + "\n");
  EXPECT_EQ(git_info(*env, "/linked"), "commit hash: " + hash + "\nbranch: main\n");
  put("/tree/.git/HEAD", "ref: ../../etc/passwd\n");
  EXPECT_EQ(git_info(*env, "/tree"), "");
}

TEST(FormatStemTest, FollowsNeMosTemplates) {
  const std::vector<StemValue> values{
      {"val_loss", 5.12345, false}, {"step", 2500, true}, {"epoch", 3, true}};
  EXPECT_EQ(*format_stem("SSL--{val_loss:.3f}-{step}", values, true),
            "SSL--val_loss=5.123-step=2500");
  EXPECT_EQ(*format_stem("{epoch:02d}-{val_loss}", values, false), "03-5.1235");
  EXPECT_EQ(*format_stem("plain", values, true), "plain");
  EXPECT_FALSE(format_stem("{accuracy}", values, true).ok());
  EXPECT_FALSE(format_stem("{val_loss", values, true).ok());
  EXPECT_FALSE(format_stem("{val_loss:%s}", values, true).ok());
  EXPECT_EQ(*format_stem("{val_loss:.2f}", {{"val_loss", std::nan(""), false}}, true),
            "val_loss=nan");
  EXPECT_EQ(metric_from_stem("SSL--val_loss=5.123-step=2500", "val_loss"), 5.123);
  EXPECT_EQ(metric_from_stem("SSL", "val_loss"), std::nullopt);
}

TEST(FormatStemTest, AMetricWithoutAValueLeavesNoTrace) {
  const std::vector<StemValue> values{{"val_loss", 0.0, false, false},
                                      {"train_loss", 0.0, false, false},
                                      {"step", 2500, true},
                                      {"epoch", 3, true}};
  const auto stem = [&](const char* pattern, bool names) {
    return *format_stem(pattern, values, names);
  };
  EXPECT_EQ(stem("SSL--{val_loss:.3f}-{step}", true), "SSL--step=2500");
  EXPECT_EQ(stem("{epoch}-{val_loss:.2f}", true), "epoch=3");
  EXPECT_EQ(stem("{val_loss:.2f}-{epoch}", true), "epoch=3");
  EXPECT_EQ(stem("a-{val_loss:.2f}-{train_loss:.2f}", true), "a");
  EXPECT_EQ(stem("loss={val_loss:.2f}-step={step}", false), "step=2500");
  EXPECT_EQ(stem("{step}_loss={val_loss:.2f}_{epoch}", false), "2500_3");
  EXPECT_EQ(stem("{val_loss:02d}", true), "");
  EXPECT_FALSE(format_stem("{val_loss:%s}", values, true).ok());
}

}  // namespace
}  // namespace aerie::train
