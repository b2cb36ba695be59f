#include "aerie/base/log.h"

#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "aerie/base/early_log.h"
#include "aerie/base/env.h"
#include "aerie/base/temp_dir.h"

namespace aerie {
namespace {

class LogTest : public ::testing::Test {
 protected:
  LogTest() {
    set_log_level(LogLevel::kInfo);
    set_log_console([this](LogLevel, std::string_view line) { lines_.emplace_back(line); });
  }
  ~LogTest() override {
    set_log_console({});
    set_log_rank(0, 1);
    set_log_level(LogLevel::kInfo);
    close_log_files();
  }
  std::vector<std::string> lines_;
};

TEST_F(LogTest, WritesAreaAndPieces) {
  log_info("data", "manifest ", "a.json", " has ", 3, " lines");
  log_warn("data", "slow disk");
  log_error("train", "loss is ", 0.5);
  log_debug("data", "unseen");
  EXPECT_EQ(lines_,
            (std::vector<std::string>{"[data] manifest a.json has 3 lines",
                                      "[data] warning: slow disk", "[train] error: loss is 0.5"}));
}

TEST_F(LogTest, FiltersByLevel) {
  set_log_level(LogLevel::kError);
  log_warn("a", "no");
  log_error("a", "yes");
  set_log_level(LogLevel::kDebug);
  log_debug("a", "yes");
  set_log_level(LogLevel::kOff);
  log_error("a", "no");
  EXPECT_EQ(lines_, (std::vector<std::string>{"[a] error: yes", "[a] yes"}));
  EXPECT_EQ(parse_log_level("WARNING").value(), LogLevel::kWarn);
  EXPECT_EQ(parse_log_level("loud").status().code(), StatusCode::kInvalidArgument);
}

TEST_F(LogTest, OnlyRankZeroChats) {
  set_log_rank(3, 8);
  log_info("a", "quiet");
  log_warn("a", "heard");
  EXPECT_FALSE(log_enabled(LogLevel::kInfo));
  set_log_rank(0, 8);
  log_info("a", "first");
  log_error("a", "bad");
  EXPECT_EQ(lines_, (std::vector<std::string>{"[a] rank 3: warning: heard", "[a] first",
                                              "[a] rank 0: error: bad"}));
}

TEST_F(LogTest, CopiesToFilesAlsoFromOtherRanks) {
  const TempDir dir;
  ASSERT_TRUE(add_log_file(dir.file("sub/run.txt")).ok());
  ASSERT_TRUE(add_log_file(dir.file("errors.txt"), LogLevel::kError).ok());
  set_log_rank(1, 2);
  log_info("a", "mine");
  log_error("a", "bad");
  EXPECT_EQ(lines_.size(), 1u);
  const std::string all = Env::real().read_file(dir.file("sub/run.txt")).value();
  EXPECT_NE(all.find("info [a] mine\n"), std::string::npos) << all;
  EXPECT_NE(all.find("error [a] rank 1: error: bad\n"), std::string::npos) << all;
  EXPECT_EQ(all.find('\033'), std::string::npos);
  const std::string errors = Env::real().read_file(dir.file("errors.txt")).value();
  EXPECT_EQ(errors.find("mine"), std::string::npos);
  close_log_files();
  log_error("a", "later");
  EXPECT_EQ(Env::real().read_file(dir.file("errors.txt")).value(), errors);
}

TEST_F(LogTest, RefusesAFileItCannotWrite) {
  const TempDir dir;
  EXPECT_EQ(add_log_file(dir.path()).code(), StatusCode::kIoError);
}

TEST_F(LogTest, OnceMeansOnceFromAnyThread) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 50; ++i) AERIE_LOG_ONCE(warn, "a", "once");
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(lines_.size(), 1u);
}

TEST_F(LogTest, LimitsEachKindAndCountsTheRest) {
  LogLimiter limiter(3600.0, 2);
  for (int i = 0; i < 10; ++i) {
    limiter.warn("x", "a", "x", i);
    limiter.warn("y", "a", "y", i);
  }
  EXPECT_EQ(lines_, (std::vector<std::string>{"[a] warning: x0", "[a] warning: y0",
                                              "[a] warning: x1", "[a] warning: y1"}));
  LogLimiter open(0.0);
  uint64_t held_back = 7;
  EXPECT_TRUE(open.admit("z", &held_back));
  EXPECT_EQ(held_back, 0u);
  lines_.clear();
  for (int i = 0; i < 5; ++i) AERIE_LOG_EVERY_S(info, 3600.0, "a", "i", i);
  EXPECT_EQ(lines_, (std::vector<std::string>{"[a] i0"}));
}

TEST_F(LogTest, NamesOfFilesDoNotSteerTheTerminal) {
  const TempDir dir;
  ASSERT_TRUE(add_log_file(dir.file("run.txt")).ok());
  log_warn("data", "cannot read ", "a\x1b]0;title\a.wav");
  log_info("data", "cannot read ", "b\n2026-01-01 00:00:00.000 info [train] finished");
  EXPECT_EQ(lines_[0], "[data] warning: cannot read a\\x1b]0;title\\x07.wav");
  close_log_files();
  const std::string text = Env::real().read_file(dir.file("run.txt")).value();
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_NE(text.find("\n  2026-01-01"), std::string::npos) << "no line of its own";
}

TEST_F(LogTest, FilesBeginWithWhatWasSaidBefore) {
  const TempDir dir;
  log_warn("train", "before");
  {
    const EarlyLog early;
    log_info("train", "took over the lock");
    log_warn("train", "left alone");
    ASSERT_TRUE(add_log_file(dir.file("all.txt"), LogLevel::kInfo).ok());
    ASSERT_TRUE(add_log_file(dir.file("errors.txt"), LogLevel::kWarn).ok());
    log_info("train", "goes on");
  }
  ASSERT_TRUE(add_log_file(dir.file("later.txt")).ok());
  close_log_files();
  const auto said = [&](const char* name) {
    std::string out;
    for (const std::string& line : split(Env::real().read_file(dir.file(name)).value(), '\n'))
      if (!line.empty()) out += line.substr(line.find(']') + 2) + "|";
    return out;
  };
  EXPECT_EQ(said("all.txt"), "took over the lock|warning: left alone|goes on|");
  EXPECT_EQ(said("errors.txt"), "warning: left alone|");
  EXPECT_EQ(said("later.txt"), "");
  EXPECT_EQ(lines_.size(), 4u) << "the console hears everything once";
}

TEST_F(LogTest, WritesThroughNoLink) {
  const TempDir dir;
  ASSERT_TRUE(Env::real().write_file(dir.file("precious"), "x").ok());
  ASSERT_EQ(::symlink("precious", dir.file("run.txt").c_str()), 0);
  EXPECT_FALSE(add_log_file(dir.file("run.txt")).ok());
  log_info("a", "b");
  EXPECT_EQ(*Env::real().read_file(dir.file("precious")), "x");
}

TEST_F(LogTest, LinesOfManyThreadsStayWhole) {
  const TempDir dir;
  ASSERT_TRUE(add_log_file(dir.file("run.txt")).ok());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 100; ++i) log_info("area", "thread ", t, " line ", i);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(lines_.size(), 400u);
  const std::string text = Env::real().read_file(dir.file("run.txt")).value();
  EXPECT_EQ(split(text, '\n').size(), 401u);
}

TEST(LogBracketTest, WrapsTheConsoleLine) {
  int calls = 0;
  set_log_bracket([&](const std::function<void()>& write) {
    ++calls;
    write();
  });
  ::testing::internal::CaptureStderr();
  log_info("a", "shown");
  set_log_bracket({});
  log_info("a", "plain");
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(calls, 1);
  EXPECT_NE(text.find(" [a] shown\n"), std::string::npos) << text;
  EXPECT_NE(text.find(" [a] plain\n"), std::string::npos) << text;
  EXPECT_EQ(text.find('\033'), std::string::npos) << "colour although this is no terminal";
}

}  // namespace
}  // namespace aerie
