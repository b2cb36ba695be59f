#include "aerie/train/fresh_start.h"

#include <set>
#include <unistd.h>

#include <gtest/gtest.h>

#include "aerie/base/temp_dir.h"
#include "aerie/base/testing/fault_env.h"
#include "aerie/base/testing/mem_env.h"
#include "aerie/train/run_lock.h"

namespace aerie::train {
namespace {

// Every file below a folder with its content, as "name=content".
std::set<std::string> tree(Env& env, const std::string& folder, const std::string& prefix = "") {
  std::set<std::string> out;
  const auto entries = env.list_dir(folder);
  if (!entries.ok()) return out;
  for (const DirEntry& entry : *entries) {
    const std::string path = folder + "/" + entry.name;
    if (entry.is_dir) {
      out.merge(tree(env, path, prefix + entry.name + "/"));
    } else {
      out.insert(str_cat(prefix, entry.name, "=", *env.read_file(path)));
    }
  }
  return out;
}

struct FreshStartTest : testing::Test {
  std::unique_ptr<Env> env = new_mem_env();
  RunFolder folder{"/exp/run", "/exp/run/checkpoints", "run", "", false};

  void add(const std::string& path, const std::string& text) {
    ASSERT_TRUE(env->create_dirs(path.substr(0, path.rfind('/'))).ok());
    ASSERT_TRUE(env->write_file(path, text).ok());
  }
  // What a run of version `mark` left.
  void add_run(const std::string& mark) {
    for (const char* name :
         {"metrics.jsonl", "config.yaml", "hparams.yaml", "cmd-args.log",
          "events.out.tfevents.1.h.2.0", "report.html", "bad_samples.jsonl",
          "nemo_log_globalrank-0_localrank-0.txt", "nemo_error_log.txt", "nonfinite/step_3.json",
          "version_0/events.out.tfevents.1.h.2.0", "copied.yaml",
          "checkpoints/run--val_loss=1.0-step=9-last/manifest.json", "checkpoints/run.nemo",
          "checkpoints/mine/notes.txt"})
      add(folder.path + "/" + name, mark);
  }
  static std::set<std::string> below(const std::set<std::string>& files, const std::string& name) {
    std::set<std::string> out;
    for (const std::string& file : files) out.insert(name + "/" + file);
    return out;
  }
};

TEST_F(FreshStartTest, MovesEverythingOfTheEarlierRunAndNothingElse) {
  add_run("first");
  const std::set<std::string> first = tree(*env, folder.path);
  add(folder.path + "/train.json", "the user's");
  add(folder.path + "/data/x.wav", "the user's");
  add(folder.path + "/version_7/metrics.jsonl", "another run's");
  add(folder.path + "/" + kLockName, "held");
  const auto moved = set_previous_run_aside(*env, folder, {"/somewhere/copied.yaml"});
  ASSERT_TRUE(moved.ok()) << moved.status().to_string();
  EXPECT_EQ(*moved, "run_0");
  std::set<std::string> expected = below(first, "run_0");
  expected.insert({"train.json=the user's", "data/x.wav=the user's",
                   "version_7/metrics.jsonl=another run's", str_cat(kLockName, "=held")});
  EXPECT_EQ(tree(*env, folder.path), expected);
  // Once more: the next number; and nothing where nothing is.
  EXPECT_EQ(*set_previous_run_aside(*env, folder, {}), "");
  add_run("second");
  EXPECT_EQ(*set_previous_run_aside(*env, folder, {"copied.yaml"}), "run_1");
  EXPECT_TRUE(env->exists("/exp/run/run_0/checkpoints/run.nemo"));
  EXPECT_TRUE(env->exists("/exp/run/run_1/checkpoints/run.nemo"));
}

TEST_F(FreshStartTest, OfASharedCheckpointFolderOnlyCheckpointsMove) {
  folder.checkpoints = "/disk/shared";
  add("/disk/shared/run-last/manifest.json", "x");
  add("/disk/shared/run.nemo", "x");
  add("/disk/shared/other/big.bin", "the user's");
  add("/disk/shared/" + std::string(kLockName), "held");
  ASSERT_TRUE(env->create_dirs(folder.path).ok());
  ASSERT_EQ(*set_previous_run_aside(*env, folder, {}), "run_0");
  EXPECT_EQ(tree(*env, "/disk/shared"),
            (std::set<std::string>{"other/big.bin=the user's", str_cat(kLockName, "=held")}));
  EXPECT_EQ(
      tree(*env, "/exp/run/run_0"),
      (std::set<std::string>{"checkpoints/run-last/manifest.json=x", "checkpoints/run.nemo=x"}));
}

TEST_F(FreshStartTest, RefusesAndLeavesAllInPlaceWhereARenameIsNotPossible) {
  for (uint64_t nth = 1; nth <= 12; ++nth) {
    const auto memory = new_mem_env();
    env.reset();
    FaultEnv faulty(*memory);
    const auto put = [&](const std::string& name) {
      ASSERT_TRUE(
          memory->create_dirs(("/exp/run/" + name).substr(0, ("/exp/run/" + name).rfind('/')))
              .ok());
      ASSERT_TRUE(memory->write_file("/exp/run/" + name, name).ok());
    };
    for (const char* name : {"checkpoints/a-last/manifest.json", "metrics.jsonl", "config.yaml",
                             "cmd-args.log", "report.html"})
      put(name);
    const std::set<std::string> before = tree(*memory, "/exp/run");
    faulty.fail_at(nth, FaultOp::kRename, EXDEV);
    const auto moved = set_previous_run_aside(faulty, folder, {});
    if (moved.ok()) {
      EXPECT_GT(nth, 5u);
      return;
    }
    if (nth <= 5) {
      EXPECT_EQ(tree(*memory, "/exp/run"), before) << nth;
      EXPECT_NE(moved.status().to_string().find("cannot be moved"), std::string::npos);
    }
    faulty.clear_faults();
    // The next start may be luckier: whatever the first one did, all of it ends in one folder.
    ASSERT_TRUE(finish_interrupted_move(faulty, folder, {}).ok());
    ASSERT_TRUE(set_previous_run_aside(faulty, folder, {}).ok());
    EXPECT_EQ(tree(*memory, "/exp/run"), below(before, "run_0")) << nth;
  }
}

TEST_F(FreshStartTest, APowerCutAnywhereLosesNothing) {
  for (uint64_t n = 1;; ++n) {
    const auto memory = new_mem_env();
    std::set<std::string> before;
    for (const char* name : {"checkpoints/a-last/manifest.json", "checkpoints/run.nemo",
                             "metrics.jsonl", "config.yaml", "events.out.tfevents.1.h.2.0"}) {
      const std::string path = std::string("/exp/run/") + name;
      ASSERT_TRUE(memory->create_dirs(path.substr(0, path.rfind('/'))).ok());
      ASSERT_TRUE(memory->write_file(path, name).ok());
    }
    before = tree(*memory, "/exp/run");
    FaultEnv faulty(*memory);
    faulty.crash_at(n);
    const bool finished = set_previous_run_aside(faulty, folder, {}).ok();
    ASSERT_TRUE(faulty.power_loss(n).ok());
    ASSERT_TRUE(finish_interrupted_move(faulty, folder, {}).ok());
    ASSERT_TRUE(set_previous_run_aside(faulty, folder, {}).ok());
    EXPECT_EQ(tree(*memory, "/exp/run"), below(before, "run_0")) << "crash at operation " << n;
    if (finished) break;
  }
}

TEST_F(FreshStartTest, RefusesWhereRecordedCheckpointsAreMissing) {
  const std::string saved =
      R"({"step":9,"epoch":0,"wall_s":1.0,"kind":"event","event":"saved","stem":"run-step=9-last","saved_step":9,"ok":)";
  EXPECT_TRUE(check_recorded_saves(*env, folder).ok()) << "nothing is there";
  add(folder.path + "/metrics.jsonl", saved + "false}\n");
  EXPECT_TRUE(check_recorded_saves(*env, folder).ok()) << "a save that failed left nothing";
  add(folder.path + "/metrics.jsonl", saved + "false}\n{\"torn\n" + saved + "true}\n");
  const Status missing = check_recorded_saves(*env, folder);
  EXPECT_EQ(missing.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(missing.to_string().find("aerie.ignore_missing_checkpoints"), std::string::npos);
  EXPECT_NE(missing.to_string().find("run-step=9-last"), std::string::npos);
  add(folder.checkpoints + "/lost+found/x", "");
  EXPECT_FALSE(check_recorded_saves(*env, folder).ok()) << "an empty disk";
  add(folder.checkpoints + "/run-step=9-last/manifest.json", "");
  EXPECT_TRUE(check_recorded_saves(*env, folder).ok());
}

TEST_F(FreshStartTest, RemovesTemporaryFilesOfProcessesThatAreGone) {
  const std::string gone = "4194303";  // beyond what a number of a process is by default
  const std::string mine = str_cat(this_process().pid), parent = str_cat(::getppid());
  for (const std::string& pid : {gone, mine}) {
    add(str_cat(folder.checkpoints, "/.run.nemo.tmp-", pid, "-123-0"), "torn");
    add(str_cat(folder.path, "/.cmd-args.log.tmp-", pid, "-123-4"), "torn");
    add(str_cat(folder.path, "/.metrics.jsonl.tmp-", pid, "-123-5"), "torn");
  }
  add(str_cat(folder.path, "/.", kLockName, ".tmp-", gone, "-123-5"), "torn");
  // Somebody else's, somebody else's kind, or of a process that is alive.
  const std::vector<std::string> kept = {
      str_cat(folder.path, "/.cmd-args.log.tmp-", parent, "-123-4"),
      str_cat(folder.path, "/.cmd-args.log.tmp-", gone, "-x-4"),
      str_cat(folder.path, "/.thesis.tex.tmp-", gone, "-123-4"),
      str_cat(folder.checkpoints, "/.mine.tmp-old"), folder.path + "/cmd-args.log.tmp-1-2-3"};
  for (const std::string& path : kept) add(path, "kept");
  ASSERT_TRUE(remove_leftovers(*env, folder).ok());
  std::set<std::string> left;
  for (const std::string& file : tree(*env, folder.path)) left.insert(folder.path + "/" + file);
  std::set<std::string> expected;
  for (const std::string& path : kept) expected.insert(path + "=kept");
  EXPECT_EQ(left, expected);
}

// The real file system: checkpoints behind a link stay on their disk, by a rename within it.
TEST(FreshStartRealTest, FollowsALinkToTheCheckpoints) {
  const TempDir dir;
  Env& env = Env::real();
  const RunFolder folder{dir.file("run"), dir.file("run/checkpoints"), "run", "", false};
  ASSERT_TRUE(env.create_dirs(dir.file("disk/a-last")).ok());
  ASSERT_TRUE(env.write_file(dir.file("disk/a-last/manifest.json"), "x").ok());
  ASSERT_TRUE(env.create_dirs(folder.path).ok());
  ASSERT_EQ(::symlink("../disk", folder.checkpoints.c_str()), 0);
  ASSERT_EQ(*set_previous_run_aside(env, folder, {}), "run_0");
  EXPECT_TRUE(env.exists(dir.file("run/run_0/checkpoints/a-last/manifest.json")));
  EXPECT_TRUE(env.exists(dir.file("disk"))) << "the link still leads to the disk";
  EXPECT_TRUE(env.exists(folder.checkpoints));
}

}  // namespace
}  // namespace aerie::train
