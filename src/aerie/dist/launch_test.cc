#include "aerie/dist/launch.h"

#include <csignal>
#include <fstream>
#include <sstream>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "aerie/base/clock.h"
#include "aerie/base/log.h"
#include "aerie/base/strings.h"
#include "aerie/base/system.h"
#include "aerie/base/temp_dir.h"
#include "aerie/dist/board.h"

namespace aerie::dist::launch_test {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// A shell as the program of the ranks, in a folder of its own.
struct Shell {
  Result<int> run(const std::string& script, int size, int max_restarts = 0) {
    LaunchOptions options;
    options.program = "/bin/sh";
    options.args = {"-c", str_cat("cd ", folder.path(), "; ", script)};
    options.local_size = size;
    options.max_restarts = max_restarts;
    options.grace_s = 0.5;
    said.clear();
    set_log_console([this](LogLevel, std::string_view line) { said += str_cat(line, "\n"); });
    auto code = launch_ranks(options);
    set_log_console({});
    return code;
  }
  std::string file(const char* name) { return text_of(folder.file(name)); }
  TempDir folder;
  std::string said;
};

TEST(LaunchTest, EveryRankKnowsItsPlace) {
  Shell shell;
  const auto code = shell.run(
      "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $AERIE_LAUNCHER "
      "$MASTER_ADDR ${AERIE_STORE_FD:+store} > r$RANK; test $MASTER_PORT -gt 0 || exit 9; "
      "test $OMP_NUM_THREADS -ge 1 || exit 9",
      3);
  ASSERT_TRUE(code.ok());
  EXPECT_EQ(*code, 0) << shell.said;
  EXPECT_EQ(shell.file("r0"), "0 0 3 3 0 self 127.0.0.1 store\n");
  EXPECT_EQ(shell.file("r2"), "2 2 3 3 0 self 127.0.0.1\n");
}

TEST(LaunchTest, ABadEndEndsAllAndIsReported) {
  Shell shell;
  const double start_s = Clock::real().monotonic_s();
  const auto code = shell.run("if [ $RANK = 1 ]; then exit 3; fi; exec sleep 60", 3);
  EXPECT_EQ(*code, 3);
  EXPECT_LT(Clock::real().monotonic_s() - start_s, 30);
  EXPECT_NE(shell.said.find("rank 1 on "), std::string::npos) << shell.said;
  EXPECT_NE(shell.said.find("ended with exit code 3 in phase start"), std::string::npos);
  EXPECT_EQ(*shell.run("if [ $RANK = 0 ]; then kill -9 $$; fi; exec sleep 60", 2), 1);
  EXPECT_NE(shell.said.find("was ended by SIGKILL"), std::string::npos) << shell.said;
  // A run that ended unhealthily has ended.
  EXPECT_EQ(*shell.run("exit 4", 2), 4);
  EXPECT_EQ(shell.said, "");
}

// A rank that the others have given up is ended at once and not taken for the cause. Ranks are this
// program, in the test below.
TEST(LaunchTest, ARankThatHangsIsEnded) {
  LaunchOptions options;
  options.program = "/proc/self/exe";
  options.args = {"--gtest_filter=RanksOfLaunchTest.*"};
  options.local_size = 2;
  options.grace_s = 60;
  std::string said;
  set_log_console([&](LogLevel, std::string_view line) { said += str_cat(line, "\n"); });
  const double start_s = Clock::real().monotonic_s();
  const auto code = launch_ranks(options);
  set_log_console({});
  ASSERT_TRUE(code.ok()) << code.status().to_string();
  EXPECT_EQ(*code, 1);
  EXPECT_EQ(said, "");
  EXPECT_LT(Clock::real().monotonic_s() - start_s, 30);
}

TEST(RanksOfLaunchTest, OneHangsTheOtherGivesItUp) {
  Board* board = Board::inherited();
  if (board == nullptr) return;  // nobody's rank
  if (board->own_rank() == 1) {
    raise(SIGSTOP);
    _exit(99);
  }
  usleep(300'000);
  board->give_up(1);
}

// A slip of the pen does not take the machine down.
TEST(LaunchTest, ThousandsOfRanksAreRefused) {
  EXPECT_TRUE(check_ranks_on_cpu(4).ok());
  EXPECT_TRUE(check_ranks_on_cpu(8 * cpu_count()).ok());
  EXPECT_EQ(check_ranks_on_cpu(100'000).code(), StatusCode::kInvalidArgument);
}

TEST(LaunchTest, Restarts) {
  Shell shell;
  EXPECT_EQ(*shell.run("echo $AERIE_RESTART_COUNT >> r$RANK; test $AERIE_RESTART_COUNT -ge 2 || "
                       "kill -9 $$",
                       2, 3),
            0);
  EXPECT_EQ(shell.file("r0"), "0\n1\n2\n");
  EXPECT_NE(shell.said.find("starting the ranks again (2 of 3)"), std::string::npos);
  EXPECT_EQ(*shell.run("exit 1", 1, 1), 1);
  // A wrong configuration is wrong the next time too.
  EXPECT_EQ(*shell.run("exit 2", 2, 5), 2);
  EXPECT_EQ(shell.said.find("again"), std::string::npos);
}

TEST(LaunchTest, SignalsReachTheRanksOnce) {
  Shell shell;
  const pid_t launcher = fork();
  if (launcher == 0) {
    const auto code = shell.run(
        "trap 'echo term >> r$RANK; exit 0' TERM; echo up > up$RANK; while :; do sleep 0.05; done",
        2);
    _exit(code.ok() ? *code : 99);
  }
  for (int i = 0; i < 200 && (shell.file("up0").empty() || shell.file("up1").empty()); ++i)
    usleep(50'000);
  kill(launcher, SIGTERM);
  int status = 0;
  waitpid(launcher, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(shell.file("r0"), "term\n");
  EXPECT_EQ(shell.file("r1"), "term\n");
}

// A rank that a signal finds before or after it could save: asked for, and no fault of the rank.
TEST(LaunchTest, ASignalThatEndsRanksIsNoFaultOfTheirs) {
  for (const char* rank : {"exec sleep 60", "trap 'exit 143' TERM; while :; do sleep 0.05; done"}) {
    Shell shell;
    const pid_t launcher = fork();
    if (launcher == 0) {
      const auto code = shell.run(str_cat("echo up > up$RANK; ", rank), 2);
      const bool told =
          shell.said.find("ended by SIGTERM before they had saved") != std::string::npos;
      _exit(code.ok() && *code != 0 && told && shell.said.find("rank ") == std::string::npos ? 0
                                                                                             : 9);
    }
    for (int i = 0; i < 200 && (shell.file("up0").empty() || shell.file("up1").empty()); ++i)
      usleep(50'000);
    usleep(100'000);
    kill(launcher, SIGTERM);
    int status = 0;
    waitpid(launcher, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << rank << ": " << status;
  }
}

}  // namespace
}  // namespace aerie::dist::launch_test
