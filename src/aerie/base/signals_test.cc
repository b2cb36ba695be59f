#include "aerie/base/signals.h"

#include <cstdlib>
#include <unistd.h>

#include <gtest/gtest.h>

#include "aerie/base/check.h"

namespace aerie {
namespace {

TEST(SignalsTest, TheFirstSignalSetsTheFlag) {
  EXPECT_EQ(caught_signal(), 0);
  {
    const SignalCatcher catcher;
    EXPECT_EQ(caught_signal(), 0);
    ::raise(SIGUSR1);
    EXPECT_EQ(caught_signal(), SIGUSR1);
    EXPECT_THROW(SignalCatcher(), InternalError);
  }
  EXPECT_EQ(caught_signal(), 0);
}

TEST(SignalsTest, RestoresWhatWasThere) {
  struct sigaction before {};
  ::sigaction(SIGTERM, nullptr, &before);
  { const SignalCatcher catcher; }
  struct sigaction after {};
  ::sigaction(SIGTERM, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
  const SignalCatcher again;
  ::raise(SIGTERM);
  EXPECT_EQ(caught_signal(), SIGTERM);
}

TEST(SignalsDeathTest, TheSecondSignalLeavesAtOnce) {
  const auto twice = [](int first, int second) {
    const SignalCatcher catcher;
    ::raise(first);
    ::raise(second);
    std::exit(0);
  };
  EXPECT_EXIT(twice(SIGTERM, SIGTERM), ::testing::ExitedWithCode(128 + SIGTERM), "second signal");
  EXPECT_EXIT(twice(SIGUSR1, SIGINT), ::testing::ExitedWithCode(128 + SIGINT), "second signal");
}

TEST(SignalsTest, AHangUpAsksToStopAndDoesNotCountTwice) {
  {
    const SignalCatcher catcher;
    ::raise(SIGHUP);
    EXPECT_EQ(caught_signal(), SIGHUP);
    ::raise(SIGHUP);  // the shell and the kernel both send it
  }
  {
    const SignalCatcher catcher;
    ::raise(SIGTERM);
    ::raise(SIGHUP);  // a service manager may send both
    EXPECT_EQ(caught_signal(), SIGTERM);
  }
  // Under nohup it stays ignored.
  std::signal(SIGHUP, SIG_IGN);
  {
    const SignalCatcher catcher;
    ::raise(SIGHUP);
    EXPECT_EQ(caught_signal(), 0);
  }
  std::signal(SIGHUP, SIG_DFL);
}

TEST(SignalsTest, ABrokenPipeIsAnErrorOfTheWrite) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ::close(ends[0]);
  const auto before = std::signal(SIGPIPE, SIG_DFL);
  ignore_broken_pipes();
  EXPECT_EQ(::write(ends[1], "x", 1), -1);
  std::signal(SIGPIPE, before);
  ::close(ends[1]);
}

TEST(SignalsTest, HasNames) {
  EXPECT_STREQ(signal_name(SIGTERM), "SIGTERM");
  EXPECT_STREQ(signal_name(SIGINT), "SIGINT");
  EXPECT_STREQ(signal_name(SIGUSR1), "SIGUSR1");
}

}  // namespace
}  // namespace aerie
