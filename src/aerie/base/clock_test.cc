#include "aerie/base/clock.h"

#include <cstdlib>
#include <ctime>
#include <limits>

#include <gtest/gtest.h>

namespace aerie {
namespace {

TEST(ClockTest, FakeMovesOnlyWhenTold) {
  FakeClock clock;
  Stopwatch watch(clock);
  EXPECT_EQ(watch.elapsed_ns(), 0);
  clock.advance_s(1.5);
  clock.sleep_ns(500'000'000);
  EXPECT_DOUBLE_EQ(watch.elapsed_s(), 2.0);
  EXPECT_DOUBLE_EQ(watch.lap_s(), 2.0);
  EXPECT_EQ(watch.elapsed_ns(), 0);
  EXPECT_EQ(clock.wall_ns(), 1'000'000'002'000'000'000);
}

TEST(ClockTest, RealMovesOn) {
  Clock& clock = Clock::real();
  const int64_t before = clock.monotonic_ns();
  clock.sleep_ns(1'000'000);
  EXPECT_GE(clock.monotonic_ns(), before + 1'000'000);
  EXPECT_GT(clock.wall_ns(), 1'600'000'000'000'000'000);
}

TEST(ClockTest, WritesTimes) {
  const char* before = std::getenv("TZ");
  const std::string kept = before == nullptr ? "" : before;
  ::setenv("TZ", "XYZ-2", 1);  // two hours ahead of UTC, no summer time
  ::tzset();
  const int64_t time = 1'709'301'959'123'456'789;  // 2024-03-01 14:05:59.123 UTC
  EXPECT_EQ(folder_time(time), "2024-03-01_16-05-59");
  EXPECT_EQ(local_time(time), "2024-03-01 16:05:59");
  EXPECT_EQ(iso_time(time), "2024-03-01T14:05:59.123Z");
  EXPECT_EQ(iso_time(-1'000'000), "1969-12-31T23:59:59.999Z");
  if (before == nullptr) {
    ::unsetenv("TZ");
  } else {
    ::setenv("TZ", kept.c_str(), 1);
  }
  ::tzset();
}

TEST(ClockTest, WritesDurations) {
  EXPECT_EQ(human_duration(0.0), "0 ms");
  EXPECT_EQ(human_duration(0.85), "850 ms");
  EXPECT_EQ(human_duration(0.9999), "1.0 s");
  EXPECT_EQ(human_duration(12.34), "12.3 s");
  EXPECT_EQ(human_duration(59.96), "1 min 00 s");
  EXPECT_EQ(human_duration(245.0), "4 min 05 s");
  EXPECT_EQ(human_duration(3 * 3600 + 12 * 60), "3 h 12 min");
  EXPECT_EQ(human_duration(51 * 3600), "2 d 03 h");
  EXPECT_EQ(human_duration(-2.0), "-2.0 s");
  EXPECT_EQ(human_duration(std::numeric_limits<double>::infinity()), "?");
}

}  // namespace
}  // namespace aerie
