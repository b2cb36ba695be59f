#include "aerie/base/retry.h"

#include <cerrno>
#include <csignal>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "aerie/base/env.h"
#include "aerie/base/mapping_guard.h"
#include "aerie/base/temp_dir.h"

namespace aerie {
namespace {

TEST(RetryTest, ErrorsThatPassAreTriedAgainAndOthersAreNot) {
  for (const int error : {EINTR, EAGAIN, EMFILE, ENFILE, ESTALE, ETIMEDOUT}) {
    FakeClock clock;
    RetryPolicy policy;
    policy.clock = &clock;
    int calls = 0;
    const Result<int> got = retry_passing(policy, [&]() -> Result<int> {
      if (++calls < 4) return errno_error("cannot open", error);
      return 7;
    });
    ASSERT_TRUE(got.ok()) << error;
    EXPECT_EQ(*got, 7);
    EXPECT_EQ(calls, 4);
    EXPECT_GT(clock.monotonic_ns(), 0);
  }
  for (const int error : {EIO, ENOENT, EACCES}) {
    int calls = 0;
    const Status status = retry_passing(RetryPolicy{}, [&] {
      ++calls;
      return errno_error("cannot open", error);
    });
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(calls, 1) << error;
  }
}

TEST(RetryTest, GivesUpAfterItsBound) {
  FakeClock clock;
  RetryPolicy policy;
  policy.clock = &clock;
  policy.total_s = 3.0;
  int calls = 0;
  const Status status = retry_passing(policy, [&] {
    ++calls;
    return errno_error("cannot open", EMFILE);
  });
  EXPECT_TRUE(is_passing(status));
  EXPECT_NE(status.to_string().find("Too many open files"), std::string::npos);
  EXPECT_NE(status.to_string().find("s of trying"), std::string::npos);
  EXPECT_GE(clock.monotonic_s(), 3.0);
  EXPECT_LT(clock.monotonic_s(), 4.5);
  EXPECT_GT(calls, 5);
  EXPECT_LT(calls, 50);
}

TEST(MappingGuardDeathTest, AFileCutWhileItIsMappedIsNamedWithExitCodeThree) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const TempDir dir;
  const std::string path = dir.file("train.aerie-index");
  ASSERT_TRUE(Env::real().write_file(path, std::string(100'000, 'x')).ok());
  EXPECT_EXIT(
      {
        install_mapping_guard();
        // One that has ended before must not be taken for it.
        { const MappedFile other = Env::real().map_file(path).value(); }
        const MappedFile file = Env::real().map_file(path).value();
        if (::truncate(path.c_str(), 10) != 0) ::_exit(99);
        volatile char c = file.text()[90'000];
        ::_exit(c == 'x' ? 0 : 1);
      },
      testing::ExitedWithCode(3), "error: '.*train.aerie-index' was cut short");
}

// Whoever was there before has the word: the kernel, or a sanitizer, which prints and exits.
bool is_bus_error(int status) {
#if defined(AERIE_SANITIZE_ADDRESS) || defined(AERIE_SANITIZE_THREAD) || \
    defined(AERIE_SANITIZE_UNDEFINED)
  if (WIFEXITED(status)) return WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 3;
#endif
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS;
}

TEST(MappingGuardDeathTest, OtherBusErrorsKeepTheirMeaning) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        install_mapping_guard();
        ::raise(SIGBUS);
        ::_exit(0);
      },
      is_bus_error, "");
}

}  // namespace
}  // namespace aerie
