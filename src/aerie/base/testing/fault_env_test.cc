#include "aerie/base/testing/fault_env.h"

#include <gtest/gtest.h>

#include "aerie/base/path.h"
#include "aerie/base/temp_dir.h"
#include "aerie/base/testing/mem_env.h"

namespace aerie {
namespace {

// Over memory and over the real file system.
class FaultEnvTest : public ::testing::TestWithParam<bool> {
 protected:
  FaultEnvTest() : memory_(new_mem_env()), env_(base()) {
    EXPECT_TRUE(base().create_dirs(root()).ok());
  }
  Env& base() { return GetParam() ? *memory_ : Env::real(); }
  std::string root() const { return GetParam() ? "/data" : temp_.path(); }
  std::string at(const std::string& name) const { return join_path(root(), name); }
  // Files and their content, without temporary names.
  std::string contents() {
    std::string out;
    const std::vector<DirEntry> entries = base().list_dir(root()).value();
    for (const DirEntry& entry : entries)
      out += entry.is_dir ? entry.name + "/ "
                          : entry.name + "=" + base().read_file(at(entry.name)).value() + " ";
    return out;
  }

  TempDir temp_;
  std::unique_ptr<Env> memory_;
  FaultEnv env_;
};
INSTANTIATE_TEST_SUITE_P(All, FaultEnvTest, ::testing::Bool(), [](const auto& variant) {
  return std::string(variant.param ? "Memory" : "Real");
});

TEST_P(FaultEnvTest, FailsTheNthOperationOnce) {
  ASSERT_TRUE(env_.write_file(at("a"), "1").ok());
  EXPECT_EQ(env_.num_operations(), 3u) << "open, append, close";
  EXPECT_EQ(env_.num_operations(FaultOp::kAppend), 1u);
  env_.fail_at(2, FaultOp::kRename, ENOSPC);
  EXPECT_TRUE(env_.rename(at("a"), at("b")).ok());
  EXPECT_FALSE(env_.rename(at("b"), at("c")).ok());
  EXPECT_TRUE(base().exists(at("b")));
  EXPECT_TRUE(env_.rename(at("b"), at("c")).ok());
  env_.fail_at(1, FaultOp::kRead, ENOENT);
  EXPECT_EQ(env_.read_file(at("c")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(env_.read_file(at("c")).value(), "1");
}

TEST_P(FaultEnvTest, DiskFullKeepsThePartThatFits) {
  env_.set_space(5);
  const auto file = env_.open_writable(at("a"), WriteMode::kTruncate).value();
  EXPECT_TRUE(file->append("abc").ok());
  const Status status = file->append("defg");
  EXPECT_EQ(status.code(), StatusCode::kIoError);
  EXPECT_FALSE(file->append("").ok()) << "a file that lost bytes must not go on";
  EXPECT_FALSE(file->close().ok());
  EXPECT_EQ(base().read_file(at("a")).value(), "abcde");
  EXPECT_EQ(env_.free_space(root()).value(), 0u);
  EXPECT_TRUE(env_.remove_file(at("a")).ok());
  EXPECT_TRUE(env_.write_file(at("b"), "12345").ok()) << "removing files gives room back";
}

TEST_P(FaultEnvTest, FullDiskLeavesTheOldFileOfAnAtomicReplace) {
  ASSERT_TRUE(env_.atomic_replace(at("a"), "old").ok());
  env_.set_space(2);
  EXPECT_FALSE(env_.atomic_replace(at("a"), "newer").ok());
  EXPECT_EQ(contents(), "a=old ") << "and no temporary file";
}

TEST_P(FaultEnvTest, TearsWrites) {
  env_.tear_append(2, 1, /*silent=*/true);
  ASSERT_TRUE(env_.write_file(at("a"), "first").ok());
  ASSERT_TRUE(env_.write_file(at("a"), "second").ok());
  EXPECT_EQ(base().read_file(at("a")).value(), "s");
  env_.tear_append(1, 3, /*silent=*/false);
  EXPECT_FALSE(env_.write_file(at("a"), "third").ok());
  EXPECT_EQ(base().read_file(at("a")).value(), "thi");
}

TEST_P(FaultEnvTest, LosesRenames) {
  ASSERT_TRUE(env_.write_file(at("a"), "1").ok());
  env_.lose_rename(1);
  EXPECT_TRUE(env_.rename(at("a"), at("b")).ok());
  EXPECT_EQ(contents(), "a=1 ");
}

TEST_P(FaultEnvTest, ShortReadsAreContinued) {
  const std::string text = "0123456789abcdef";
  ASSERT_TRUE(env_.write_file(at("a"), text).ok());
  env_.set_max_read(3);
  EXPECT_EQ(env_.read_file(at("a")).value(), text);
  EXPECT_EQ(env_.read_range(at("a"), 4, 9).value(), text.substr(4, 9));
  EXPECT_GE(env_.num_operations(FaultOp::kRead), 8u);
}

TEST_P(FaultEnvTest, ReadOnlyRefusesEveryChange) {
  ASSERT_TRUE(env_.write_file(at("a"), "1").ok());
  env_.set_read_only(true);
  EXPECT_FALSE(env_.write_file(at("b"), "1").ok());
  EXPECT_FALSE(env_.remove_file(at("a")).ok());
  EXPECT_FALSE(env_.rename(at("a"), at("b")).ok());
  EXPECT_FALSE(env_.create_dir(at("d")).ok());
  EXPECT_EQ(env_.read_file(at("a")).value(), "1");
  env_.clear_faults();
  EXPECT_TRUE(env_.remove_file(at("a")).ok());
}

TEST_P(FaultEnvTest, PowerLossDropsUnsyncedBytes) {
  const auto file = env_.open_writable(at("log"), WriteMode::kAppend).value();
  ASSERT_TRUE(file->append("kept").ok());
  ASSERT_TRUE(file->sync().ok());
  ASSERT_TRUE(env_.fsync_dir(root()).ok());
  ASSERT_TRUE(file->append(" lost").ok());
  ASSERT_TRUE(file->flush().ok());
  ASSERT_TRUE(env_.power_loss().ok());
  EXPECT_EQ(contents(), "log=kept ");
  EXPECT_FALSE(file->append("x").ok()) << "a file does not survive the power cut";
  EXPECT_FALSE(file->close().ok());
}

TEST_P(FaultEnvTest, PowerLossDropsNamesWhoseFolderWasNotSynced) {
  const auto file = env_.open_writable(at("new"), WriteMode::kCreateNew).value();
  ASSERT_TRUE(file->append("synced bytes do not make a synced name").ok());
  ASSERT_TRUE(file->sync().ok());
  ASSERT_TRUE(env_.create_dir(at("dir")).ok());
  ASSERT_TRUE(env_.write_file(at("dir/f"), "1").ok());
  ASSERT_TRUE(env_.power_loss().ok());
  EXPECT_EQ(contents(), "");
}

TEST_P(FaultEnvTest, PowerLossUndoesRenamesAndRemovals) {
  ASSERT_TRUE(base().write_file(at("a"), "A").ok());
  ASSERT_TRUE(base().write_file(at("b"), "B").ok());
  ASSERT_TRUE(base().create_dirs(at("old")).ok());
  ASSERT_TRUE(base().write_file(at("old/f"), "F").ok());
  ASSERT_TRUE(env_.rename(at("a"), at("b")).ok());
  ASSERT_TRUE(env_.rename(at("old"), at("new")).ok());
  ASSERT_TRUE(env_.remove_tree(at("new")).ok());
  EXPECT_EQ(contents(), "b=A ");
  ASSERT_TRUE(env_.power_loss().ok());
  EXPECT_EQ(contents(), "a=A b=B old/ ");
  EXPECT_EQ(base().read_file(at("old/f")).value(), "F");
  ASSERT_TRUE(env_.rename(at("a"), at("b")).ok());
  ASSERT_TRUE(env_.fsync_dir(root()).ok());
  ASSERT_TRUE(env_.power_loss().ok());
  EXPECT_EQ(contents(), "b=A old/ ");
}

TEST_P(FaultEnvTest, RenamedButNeverSyncedFileIsEmpty) {
  // The classic mistake: write, rename, sync the folder, forget the file.
  ASSERT_TRUE(base().write_file(at("a"), "old").ok());
  ASSERT_TRUE(env_.write_file(at("tmp"), "new").ok());
  ASSERT_TRUE(env_.rename(at("tmp"), at("a")).ok());
  ASSERT_TRUE(env_.fsync_dir(root()).ok());
  ASSERT_TRUE(env_.power_loss().ok());
  EXPECT_EQ(contents(), "a= ");
}

TEST_P(FaultEnvTest, RemovedFoldersStayRemovedOnceSynced) {
  ASSERT_TRUE(base().create_dirs(at("d")).ok());
  ASSERT_TRUE(base().write_file(at("d/f"), "F").ok());
  ASSERT_TRUE(env_.remove_tree(at("d")).ok());
  ASSERT_TRUE(env_.fsync_dir(root()).ok());
  ASSERT_TRUE(env_.power_loss().ok());
  EXPECT_EQ(contents(), "");
}

// The promise of atomic_replace, for a crash at every operation and many ways to lose power.
TEST_P(FaultEnvTest, AtomicReplaceGivesOldOrNewWhateverHappens) {
  bool finished = false;
  int old_seen = 0, new_seen = 0;
  for (uint64_t n = 1; !finished; ++n) {
    ASSERT_LT(n, 50u);
    for (uint64_t seed = 0; seed < 8; ++seed) {
      ASSERT_TRUE(base().remove_tree(root()).ok());
      ASSERT_TRUE(base().create_dirs(root()).ok());
      ASSERT_TRUE(base().write_file(at("a"), "old content").ok());
      FaultEnv env(base());
      env.crash_at(n);
      finished = env.atomic_replace(at("a"), "new").ok();
      ASSERT_TRUE((seed == 0 ? env.power_loss() : env.power_loss(seed)).ok());
      const std::string after = env.read_file(at("a")).value();
      EXPECT_TRUE(after == "new" || (after == "old content" && !finished))
          << "'" << after << "' after a crash at " << n << ", seed " << seed;
      ++(after == "new" ? new_seen : old_seen);
    }
  }
  EXPECT_GT(old_seen, 0);
  EXPECT_GT(new_seen, 8) << "some crashes come after the rename";
}

// The same check does find the fault of a plain overwrite: this test of the test can fail.
TEST_P(FaultEnvTest, PlainOverwriteIsCaughtOut) {
  bool broken = false;
  for (uint64_t n = 1; n <= 4; ++n) {
    ASSERT_TRUE(base().write_file(at("a"), "old content").ok());
    FaultEnv env(base());
    env.crash_at(n);
    (void)env.write_file(at("a"), "new");
    ASSERT_TRUE(env.power_loss().ok());
    const std::string after = env.read_file(at("a")).value();
    broken = broken || (after != "new" && after != "old content");
  }
  EXPECT_TRUE(broken);
}

TEST_P(FaultEnvTest, WorksAgainAfterTheCrash) {
  env_.crash_at(1);
  EXPECT_FALSE(env_.write_file(at("a"), "1").ok());
  EXPECT_FALSE(env_.read_file(at("a")).ok());
  ASSERT_TRUE(env_.power_loss().ok());
  EXPECT_TRUE(env_.write_file(at("a"), "1").ok());
  EXPECT_EQ(env_.read_file(at("a")).value(), "1");
}

}  // namespace
}  // namespace aerie
