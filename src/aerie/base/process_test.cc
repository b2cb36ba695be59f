#include "aerie/base/process.h"

#include <csignal>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "aerie/base/clock.h"
#include "aerie/base/strings.h"

namespace aerie {
namespace {

TEST(ProcessTest, KnowsItself) {
  const ProcessIdentity self = this_process();
  EXPECT_EQ(self.pid, ::getpid());
  EXPECT_GT(self.start_ticks, 0);
  EXPECT_EQ(self.boot_id.size(), 36u);
  EXPECT_EQ(self, this_process());
  EXPECT_EQ(process_life(self), ProcessLife::kAlive);
  EXPECT_EQ(tag_life(process_tag(self)), ProcessLife::kAlive);
}

TEST(ProcessTest, AReusedNumberIsAnotherProcess) {
  ProcessIdentity earlier = this_process();
  earlier.start_ticks -= 1;
  EXPECT_EQ(process_life(earlier), ProcessLife::kDead);
  EXPECT_EQ(tag_life(process_tag(earlier)), ProcessLife::kDead);
}

TEST(ProcessTest, WhatIsElsewhereCannotBeSeen) {
  ProcessIdentity other = this_process();
  other.boot_id[0] = other.boot_id[0] == '0' ? '1' : '0';
  EXPECT_EQ(process_life(other), ProcessLife::kElsewhere);
  EXPECT_EQ(tag_life(process_tag(other)), ProcessLife::kElsewhere);
  other = this_process();
  other.host += "-2";
  EXPECT_EQ(process_life(other), ProcessLife::kElsewhere);
  other = this_process();
  other.pid_namespace = "pid:[1]";  // another container on the same machine
  EXPECT_EQ(process_life(other), ProcessLife::kElsewhere);
  for (const char* tag : {"", "x", "1-2", "a-b-c", "0-1-1"})
    EXPECT_EQ(tag_life(tag), ProcessLife::kElsewhere) << tag;
}

TEST(ProcessTest, AKilledChildIsDeadAlsoBeforeItsParentHasNoticed) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  ProcessIdentity identity = this_process();
  identity.pid = child;
  identity.start_ticks = 0;
  EXPECT_EQ(process_life(identity), ProcessLife::kAlive);
  const int64_t now_ns = Clock::real().wall_ns();
  EXPECT_TRUE(pid_may_have_written(child, now_ns));
  EXPECT_FALSE(pid_may_have_written(child, now_ns - int64_t{3600} * 1'000'000'000))
      << "it did not exist an hour ago";
  ::kill(child, SIGKILL);
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);  // leaves it as a zombie
  EXPECT_EQ(process_life(identity), ProcessLife::kDead);
  EXPECT_FALSE(pid_may_have_written(child, now_ns));
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(process_life(identity), ProcessLife::kDead);
}

}  // namespace
}  // namespace aerie
