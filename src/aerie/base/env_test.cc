#include "aerie/base/env.h"

#include <pwd.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "aerie/base/path.h"
#include "aerie/base/temp_dir.h"
#include "aerie/base/testing/mem_env.h"

namespace aerie {
namespace {

// The contract, checked for the real file system and for the one in memory.
class EnvTest : public ::testing::TestWithParam<bool> {
 protected:
  EnvTest() : memory_(new_mem_env()) {
    root_ = GetParam() ? "/root" : temp_.path();
    EXPECT_TRUE(env().create_dirs(root_).ok());
  }
  Env& env() { return GetParam() ? *memory_ : Env::real(); }
  std::string at(const std::string& name) const { return join_path(root_, name); }

  TempDir temp_;
  std::unique_ptr<Env> memory_;
  std::string root_;
};

INSTANTIATE_TEST_SUITE_P(All, EnvTest, ::testing::Bool(), [](const auto& variant) {
  return std::string(variant.param ? "Memory" : "Real");
});

TEST_P(EnvTest, ReadsBackWhatItWrote) {
  const std::string text(300'000, 'x');
  ASSERT_TRUE(env().write_file(at("a"), text + "end").ok());
  EXPECT_EQ(env().read_file(at("a")).value(), text + "end");
  EXPECT_EQ(env().read_range(at("a"), 299'999, 3).value(), "xen");
  const FileStat info = env().stat(at("a")).value();
  EXPECT_EQ(info.size, 300'003u);
  EXPECT_TRUE(info.is_regular);
  EXPECT_FALSE(info.is_dir);
  EXPECT_GT(info.mtime_ns, 1'500'000'000'000'000'000);
}

TEST_P(EnvTest, ReadsByPosition) {
  ASSERT_TRUE(env().write_file(at("a"), "0123456789").ok());
  const auto file = env().open_random_access(at("a")).value();
  EXPECT_EQ(file->size(), 10u);
  char out[16] = {};
  EXPECT_EQ(file->read_at(7, out, 16).value(), 3u);
  EXPECT_EQ(std::string(out), "789");
  EXPECT_EQ(file->read_at(10, out, 1).value(), 0u);
  EXPECT_EQ(file->read_at(~uint64_t{0} - 3, out, 16).value(), 0u);
  EXPECT_TRUE(file->read_exact_at(0, out, 10).ok());
  const Status status = file->read_exact_at(8, out, 4);
  EXPECT_EQ(status.code(), StatusCode::kDataError);
  EXPECT_NE(status.to_string().find(at("a")), std::string::npos);
}

TEST_P(EnvTest, RefusesRangesTheFileCannotFill) {
  ASSERT_TRUE(env().write_file(at("a"), "0123456789").ok());
  // A damaged index must not make us allocate what the file cannot hold.
  EXPECT_EQ(env().read_range(at("a"), 5, size_t{1} << 60).status().code(), StatusCode::kDataError);
  EXPECT_EQ(env().read_range(at("a"), ~uint64_t{0}, 1).status().code(), StatusCode::kDataError);
  EXPECT_EQ(env().read_file(at("a"), 9).status().code(), StatusCode::kDataError);
  EXPECT_EQ(env().read_file(at("a"), 10).value().size(), 10u);
}

TEST_P(EnvTest, MapsFiles) {
  ASSERT_TRUE(env().write_file(at("a"), "mapped").ok());
  ASSERT_TRUE(env().write_file(at("empty"), "").ok());
  MappedFile copy;
  {
    const MappedFile mapped = env().map_file(at("a")).value();
    mapped.advise(MappedFile::Advice::kSequential);
    copy = mapped;
  }
  ASSERT_TRUE(env().remove_file(at("a")).ok());
  EXPECT_EQ(copy.text(), "mapped");
  EXPECT_EQ(env().map_file(at("empty")).value().size(), 0u);
  EXPECT_EQ(env().map_file(at("absent")).status().code(), StatusCode::kNotFound);
}

TEST_P(EnvTest, AppendsTruncatesAndCreatesNew) {
  for (const char* part : {"one", "two"}) {
    const auto file = env().open_writable(at("a"), WriteMode::kAppend).value();
    ASSERT_TRUE(file->append(part).ok());
    ASSERT_TRUE(file->sync().ok());
    ASSERT_TRUE(file->close().ok());
    EXPECT_TRUE(file->close().ok());
    EXPECT_FALSE(file->append("late").ok());
  }
  EXPECT_EQ(env().read_file(at("a")).value(), "onetwo");
  EXPECT_EQ(env().open_writable(at("a"), WriteMode::kAppend).value()->size(), 6u);
  EXPECT_FALSE(env().open_writable(at("a"), WriteMode::kCreateNew).ok());
  EXPECT_TRUE(env().open_writable(at("b"), WriteMode::kCreateNew).ok());
  EXPECT_EQ(env().open_writable(at("a")).value()->size(), 0u);
  EXPECT_EQ(env().read_file(at("a")).value(), "");
}

TEST_P(EnvTest, FlushMakesBytesVisible) {
  const auto file = env().open_writable(at("a")).value();
  ASSERT_TRUE(file->append("abc").ok());
  ASSERT_TRUE(file->flush().ok());
  EXPECT_EQ(env().read_file(at("a")).value(), "abc");
}

TEST_P(EnvTest, ReplacesAtomicallyAndLeavesNothingBehind) {
  ASSERT_TRUE(env().atomic_replace(at("a"), "first").ok());
  ASSERT_TRUE(env().atomic_replace(at("a"), "second").ok());
  EXPECT_EQ(env().read_file(at("a")).value(), "second");
  EXPECT_EQ(env().list_dir(root_).value().size(), 1u);
  EXPECT_FALSE(env().atomic_replace(at("no/such/folder"), "x").ok());
}

TEST_P(EnvTest, ListsSortedAndRemovesTrees) {
  ASSERT_TRUE(env().create_dirs(at("tree/b/c")).ok());
  ASSERT_TRUE(env().create_dirs(at("tree/b/c")).ok());
  ASSERT_TRUE(env().write_file(at("tree/z"), "1").ok());
  ASSERT_TRUE(env().write_file(at("tree/a"), "1").ok());
  ASSERT_TRUE(env().write_file(at("tree/b/c/d"), "1").ok());
  const auto entries = env().list_dir(at("tree")).value();
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0].name, "a");
  EXPECT_EQ(entries[1].name, "b");
  EXPECT_TRUE(entries[1].is_dir);
  EXPECT_EQ(entries[2].name, "z");
  EXPECT_FALSE(env().remove_dir(at("tree")).ok());
  ASSERT_TRUE(env().remove_tree(at("tree")).ok());
  EXPECT_FALSE(env().exists(at("tree")));
  EXPECT_TRUE(env().remove_tree(at("tree")).ok());
  ASSERT_TRUE(env().write_file(at("plain"), "1").ok());
  EXPECT_TRUE(env().remove_tree(at("plain")).ok());
  EXPECT_FALSE(env().exists(at("plain")));
}

TEST_P(EnvTest, RenamesFilesAndFolders) {
  ASSERT_TRUE(env().create_dirs(at("old/sub")).ok());
  ASSERT_TRUE(env().write_file(at("old/sub/f"), "1").ok());
  ASSERT_TRUE(env().rename(at("old"), at("new")).ok());
  EXPECT_EQ(env().read_file(at("new/sub/f")).value(), "1");
  EXPECT_FALSE(env().exists(at("old")));
  ASSERT_TRUE(env().write_file(at("g"), "2").ok());
  ASSERT_TRUE(env().rename(at("g"), at("new/sub/f")).ok());
  EXPECT_EQ(env().read_file(at("new/sub/f")).value(), "2");
  EXPECT_EQ(env().rename(at("absent"), at("x")).code(), StatusCode::kNotFound);
}

TEST_P(EnvTest, SaysWhatIsWrong) {
  EXPECT_EQ(env().read_file(at("absent")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(env().stat(at("absent")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(env().remove_file(at("absent")).code(), StatusCode::kNotFound);
  EXPECT_EQ(env().list_dir(at("absent")).status().code(), StatusCode::kNotFound);
  const Status folder = env().read_file(root_).status();
  EXPECT_EQ(folder.code(), StatusCode::kIoError);
  EXPECT_NE(folder.message().find("folder"), std::string::npos);
  ASSERT_TRUE(env().write_file(at("f"), "1").ok());
  EXPECT_FALSE(env().create_dir(at("f")).ok());
  EXPECT_FALSE(env().create_dirs(at("f/g")).ok());
  EXPECT_FALSE(env().write_file(at("f/g"), "").ok());
  EXPECT_FALSE(env().fsync_dir(at("absent")).ok());
}

TEST_P(EnvTest, CopiesAndReportsSpace) {
  const std::string text(3'000'000, 'y');
  ASSERT_TRUE(env().write_file(at("a"), text).ok());
  ASSERT_TRUE(env().copy_file(at("a"), at("b")).ok());
  EXPECT_EQ(env().read_file(at("b")).value(), text);
  EXPECT_GT(env().free_space(root_).value(), 0u);
  EXPECT_TRUE(env().fsync_dir(root_).ok());
}

TEST_P(EnvTest, ServesManyThreads) {
  ASSERT_TRUE(env().write_file(at("a"), std::string(100'000, 'z')).ok());
  const auto file = env().open_random_access(at("a")).value();
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::string out(1000, ' ');
      for (int i = 0; i < 100; ++i)
        if (file->read_exact_at(static_cast<uint64_t>(i) * 1000, out.data(), 1000).ok() &&
            env().atomic_replace(at(str_cat("t", t)), out).ok())
          ++good;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(good, 400);
  EXPECT_EQ(env().list_dir(root_).value().size(), 5u);
}

TEST(PosixEnvTest, RemovesLinksWithoutFollowingThem) {
  const TempDir dir;
  Env& env = Env::real();
  ASSERT_TRUE(env.create_dirs(dir.file("keep")).ok());
  ASSERT_TRUE(env.write_file(dir.file("keep/f"), "1").ok());
  ASSERT_TRUE(env.create_dirs(dir.file("tree")).ok());
  ASSERT_EQ(::symlink(dir.file("keep").c_str(), dir.file("tree/link").c_str()), 0);
  ASSERT_EQ(::symlink(dir.file("keep").c_str(), dir.file("top").c_str()), 0);
  const auto entries = env.list_dir(dir.file("tree")).value();
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_TRUE(entries[0].is_symlink);
  EXPECT_FALSE(entries[0].is_dir);
  EXPECT_EQ(env.list_dir(dir.file("top")).value().size(), 1u);
  EXPECT_TRUE(env.remove_tree(dir.file("tree")).ok());
  EXPECT_TRUE(env.remove_tree(dir.file("top")).ok());
  EXPECT_TRUE(env.exists(dir.file("keep/f")));
}

TEST(PosixEnvTest, RefusesPipesWithoutWaiting) {
  const TempDir dir;
  ASSERT_EQ(::mkfifo(dir.file("pipe").c_str(), 0600), 0);
  EXPECT_EQ(Env::real().read_file(dir.file("pipe")).status().code(), StatusCode::kIoError);
  EXPECT_EQ(Env::real().map_file(dir.file("pipe")).status().code(), StatusCode::kIoError);
}

TEST(PosixEnvTest, ReadsFilesThatDoNotKnowTheirSize) {
  const auto text = Env::real().read_file("/proc/self/status");
  ASSERT_TRUE(text.ok());
  EXPECT_NE(text->find("VmRSS"), std::string::npos);
}

TEST(PosixEnvTest, ReportsAFullDisk) {
  if (!Env::real().exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const auto file = Env::real().open_writable("/dev/full", WriteMode::kAppend).value();
  ASSERT_TRUE(file->append("x").ok());
  const Status status = file->sync();
  EXPECT_EQ(status.code(), StatusCode::kIoError);
  EXPECT_NE(status.hint().find("space"), std::string::npos);
  EXPECT_FALSE(file->append("y").ok()) << "a file that lost bytes must not go on";
  EXPECT_FALSE(file->close().ok());
}

TEST(PosixEnvTest, AppendsThroughNoLink) {
  const TempDir dir;
  Env& env = Env::real();
  ASSERT_TRUE(env.write_file(dir.file("precious"), "x").ok());
  ASSERT_EQ(::symlink("precious", dir.file("log").c_str()), 0);
  const auto opened = env.open_writable(dir.file("log"), WriteMode::kAppend);
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.status().message().find("symbolic link"), std::string::npos);
  EXPECT_EQ(*env.read_file(dir.file("precious")), "x");
}

TEST(PathTest, TakesPathsApart) {
  EXPECT_EQ(join_path("a", "b"), "a/b");
  EXPECT_EQ(join_path("a/", "b"), "a/b");
  EXPECT_EQ(join_path("a", "/b"), "/b");
  EXPECT_EQ(join_path("", "b"), "b");
  EXPECT_EQ(join_path("a", ""), "a");
  EXPECT_EQ(parent_path("a/b/c"), "a/b");
  EXPECT_EQ(parent_path("a/b//"), "a");
  EXPECT_EQ(parent_path("a//b"), "a");
  EXPECT_EQ(parent_path("c"), ".");
  EXPECT_EQ(parent_path("/c"), "/");
  EXPECT_EQ(parent_path("/"), "/");
  EXPECT_EQ(base_name("a/b/"), "b");
  EXPECT_EQ(base_name("/"), "/");
  EXPECT_EQ(file_stem("x/c.tar.gz"), "c.tar");
  EXPECT_EQ(file_extension("x.y/c"), "");
  EXPECT_EQ(file_extension("x/.hidden"), "");
  EXPECT_EQ(file_extension("x/c.WAV"), ".WAV");
  EXPECT_EQ(file_stem(".."), "..");
}

TEST(PathTest, ExpandsTheHomeFolder) {
  ASSERT_EQ(::setenv("HOME", "/home/me", 1), 0);
  EXPECT_EQ(expand_user("~"), "/home/me");
  EXPECT_EQ(expand_user("~/x"), "/home/me/x");
  EXPECT_EQ(expand_user("~you/x"), "~you/x");
  EXPECT_EQ(expand_user("a/~"), "a/~");
  // A service without HOME: the password database knows the user.
  ASSERT_EQ(::unsetenv("HOME"), 0);
  const std::string without = expand_user("~/x");
  ASSERT_EQ(::setenv("HOME", "/home/me", 1), 0);
  if (const struct passwd* entry = ::getpwuid(::getuid()); entry != nullptr) {
    EXPECT_EQ(without, std::string(entry->pw_dir) + "/x");
  }
}

}  // namespace
}  // namespace aerie
