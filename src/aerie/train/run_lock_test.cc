#include "aerie/train/run_lock.h"

#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "aerie/base/temp_dir.h"
#include "aerie/base/testing/fault_env.h"
#include "aerie/base/testing/mem_env.h"

namespace aerie::train {
namespace {

struct RunLockTest : testing::Test {
  FakeClock clock;
  std::unique_ptr<Env> env = new_mem_env(clock);
  const std::string path = str_cat("/run/", kLockName);
  ProcessLife life = ProcessLife::kDead;  // of everybody else

  RunLockOptions options(int64_t pid) {
    RunLockOptions out;
    out.self = {"host-a", "boot-a", "pid:[1]", pid, 100 + pid};
    out.beat_s = 1e6;  // tests beat by hand
    out.life = [this](const ProcessIdentity&) { return life; };
    return out;
  }
  Result<std::unique_ptr<RunLock>> acquire(int64_t pid) {
    return RunLock::acquire(*env, clock, "/run", options(pid));
  }
  // What a killed process leaves behind.
  void leave_lock(int64_t pid) {
    LockRecord record;
    record.owner = options(pid).self;
    record.beat = 7;
    ASSERT_TRUE(env->create_dirs("/run").ok());
    ASSERT_TRUE(env->write_file(path, record.to_json()).ok());
  }
  int64_t owner() {
    const auto text = env->read_file(path);
    return text.ok() ? LockRecord::from_json(*text)->owner.pid : 0;
  }
};

TEST_F(RunLockTest, HoldsTheFolderUntilItIsGivenBack) {
  auto first = acquire(1);
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  EXPECT_EQ(owner(), 1);
  life = ProcessLife::kAlive;
  const auto second = acquire(2);
  ASSERT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(second.status().message().find("process 1 on host-a"), std::string::npos);
  EXPECT_EQ(clock.monotonic_s(), 0.0) << "a live owner on this machine is not waited for";
  first->reset();
  EXPECT_FALSE(env->exists(path));
  EXPECT_TRUE(acquire(2).ok());
}

TEST_F(RunLockTest, TakesOverFromADeadProcessAtOnce) {
  leave_lock(1);
  auto lock = acquire(2);
  ASSERT_TRUE(lock.ok());
  EXPECT_EQ(owner(), 2);
  EXPECT_EQ(clock.monotonic_s(), 0.0);
}

TEST_F(RunLockTest, WaitsAMinuteForASignOfLifeFromElsewhere) {
  leave_lock(1);
  life = ProcessLife::kElsewhere;
  auto lock = acquire(2);
  ASSERT_TRUE(lock.ok());
  EXPECT_GE(clock.monotonic_s(), 60.0);
  EXPECT_EQ(owner(), 2);
}

// Stands in for the owner on another machine: beats while somebody sleeps.
class BeatingClock final : public Clock {
 public:
  std::function<void()> on_sleep;
  int64_t monotonic_ns() override { return now_; }
  int64_t wall_ns() override { return now_; }
  void sleep_ns(int64_t duration) override {
    now_ += duration;
    if (on_sleep) on_sleep();
  }

 private:
  int64_t now_ = 0;
};

TEST_F(RunLockTest, RefusesWhenTheOwnerElsewhereBeats) {
  BeatingClock beating;
  auto owner_lock = RunLock::acquire(*env, beating, "/run", options(1));
  ASSERT_TRUE(owner_lock.ok());
  life = ProcessLife::kElsewhere;
  beating.on_sleep = [&] {
    if (beating.monotonic_s() >= 9.5) (*owner_lock)->beat();
  };
  const auto refused = RunLock::acquire(*env, beating, "/run", options(2));
  EXPECT_EQ(refused.status().code(), StatusCode::kUnavailable);
  EXPECT_LT(beating.monotonic_s(), 12.0);
  EXPECT_EQ(owner(), 1);
  // One that goes away meanwhile is not in the way.
  beating.on_sleep = [&] { owner_lock->reset(); };
  EXPECT_TRUE(RunLock::acquire(*env, beating, "/run", options(2)).ok());
}

// An empty lock was left behind, and waited for as somebody else's: now, and at the next start.
TEST_F(RunLockTest, AFullDiskIsToldAtOnceAndLeavesNoLock) {
  for (const uint64_t space : {0u, 20u}) {
    const auto memory = new_mem_env(clock);
    FaultEnv full(*memory);
    full.set_space(space);
    const auto refused = RunLock::acquire(full, clock, "/run", options(2));
    EXPECT_NE(refused.status().to_string().find("locking run folder /run"), std::string::npos);
    EXPECT_NE(refused.status().to_string().find("space"), std::string::npos);
    EXPECT_FALSE(full.exists(path));
    EXPECT_EQ(clock.monotonic_s(), 0.0);
    full.clear_faults();
    EXPECT_TRUE(RunLock::acquire(full, clock, "/run", options(3)).ok());
    EXPECT_EQ(clock.monotonic_s(), 0.0);
  }
}

TEST_F(RunLockTest, ATornLockCountsAsElsewhereAndANewerOneIsRefused) {
  ASSERT_TRUE(env->create_dirs("/run").ok());
  for (const char* text : {"", "{\"format\":\"aerie-l", "[]", "{}",
                           "{\"format\":\"aerie-lock\",\"version\":1,\"pid\":\"x\"}"}) {
    ASSERT_TRUE(env->write_file(path, text).ok());
    const double before = clock.monotonic_s();
    EXPECT_TRUE(acquire(2).ok()) << text;
    EXPECT_GE(clock.monotonic_s() - before, 60.0) << text;
  }
  ASSERT_TRUE(env->write_file(path, "{\"format\":\"aerie-lock\",\"version\":2}").ok());
  const auto refused = acquire(2);
  EXPECT_EQ(refused.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(refused.status().to_string().find("newer"), std::string::npos);
}

TEST_F(RunLockTest, AProcessThatWasTakenForDeadNoticesAndKeepsItsHandsOff) {
  auto slow = acquire(1);
  ASSERT_TRUE(slow.ok());
  EXPECT_TRUE((*slow)->check().ok());
  leave_lock(2);
  (*slow)->beat();
  EXPECT_EQ((*slow)->check().code(), StatusCode::kUnavailable);
  EXPECT_EQ(owner(), 2);
  slow->reset();
  EXPECT_EQ(owner(), 2) << "it does not give back what is not its own";
}

TEST_F(RunLockTest, ABeatBringsBackARemovedFolder) {
  auto lock = acquire(1);
  ASSERT_TRUE(lock.ok());
  ASSERT_TRUE(env->remove_tree("/run").ok());
  (*lock)->beat();
  EXPECT_TRUE((*lock)->check().ok());
  EXPECT_EQ(owner(), 1);
}

TEST_F(RunLockTest, BeatsByItself) {
  RunLockOptions quick = options(1);
  quick.beat_s = 0.01;
  auto lock = RunLock::acquire(*env, clock, "/run", quick);
  ASSERT_TRUE(lock.ok());
  const auto beat = [&] { return LockRecord::from_json(*env->read_file(path))->beat; };
  const double end = Clock::real().monotonic_s() + 30.0;
  while (beat() < 3 && Clock::real().monotonic_s() < end) ::usleep(1000);
  EXPECT_GE(beat(), 3);
}

// Ten real processes want the folder of one that is dead.
TEST(RunLockProcessTest, OneOfManyGetsIt) {
  const TempDir dir;
  ProcessIdentity dead = this_process();
  dead.start_ticks -= 1;
  LockRecord record;
  record.owner = dead;
  ASSERT_TRUE(Env::real().write_file(dir.file(kLockName), record.to_json()).ok());
  int go[2], stay[2];
  ASSERT_EQ(::pipe(go), 0);
  ASSERT_EQ(::pipe(stay), 0);
  std::vector<pid_t> children;
  for (int i = 0; i < 10; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      char byte;
      ::close(go[1]);
      ::close(stay[1]);
      (void)!::read(go[0], &byte, 1);  // until the parent closes it
      auto lock = RunLock::acquire(Env::real(), Clock::real(), dir.path());
      if (!lock.ok()) ::_exit(lock.status().code() == StatusCode::kUnavailable ? 1 : 2);
      (void)!::read(stay[0], &byte, 1);  // until the others have tried
      ::_exit((*lock)->check().ok() ? 0 : 3);
    }
    children.push_back(child);
  }
  ::close(go[0]);
  ::close(go[1]);
  ::close(stay[0]);
  int winners = 0, refused = 0;
  for (size_t i = 0; i < children.size(); ++i) {
    if (i + 1 == children.size()) ::close(stay[1]);
    int status = 0;
    ::wait(&status);
    winners += WIFEXITED(status) && WEXITSTATUS(status) == 0;
    refused += WIFEXITED(status) && WEXITSTATUS(status) == 1;
  }
  EXPECT_EQ(winners, 1);
  EXPECT_EQ(refused, 9);
}

}  // namespace
}  // namespace aerie::train
