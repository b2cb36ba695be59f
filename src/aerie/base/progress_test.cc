#include "aerie/base/progress.h"

#include <algorithm>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "aerie/base/log.h"

namespace aerie {
namespace {

ProgressOptions options(FakeClock& clock, std::string* out, uint64_t total = 10) {
  ProgressOptions made;
  made.label = "decode";
  made.total = total;
  made.unit = "files";
  made.show = ProgressOptions::Show::kAlways;
  made.width = 100;
  made.clock = &clock;
  made.write = [out](std::string_view text) { out->append(text); };
  return made;
}

TEST(ProgressTest, StaysSilentForShortWork) {
  FakeClock clock;
  std::string out;
  Progress progress(options(clock, &out));
  for (int i = 0; i < 10; ++i) {
    clock.advance_s(0.19);
    progress.add();
  }
  progress.finish();
  EXPECT_EQ(out, "");
  EXPECT_EQ(progress.done(), 10u);
}

TEST(ProgressTest, DrawsAfterTwoSecondsAndCleansUp) {
  FakeClock clock;
  std::string out;
  Progress progress(options(clock, &out));
  clock.advance_s(2.5);
  progress.set_note("1 broken");
  progress.add(5);
  EXPECT_EQ(out,
            "\rdecode [===============>              ]  50%  5/10 files  2.00/s  ETA 2.5 s  1 "
            "broken\033[K");
  out.clear();
  clock.advance_s(0.01);
  progress.add();
  EXPECT_EQ(out, "") << "at most ten redraws a second";
  progress.finish();
  EXPECT_EQ(out, "\r\033[K");
  clock.advance_s(10);
  progress.add();
  EXPECT_EQ(out, "\r\033[K");
}

TEST(ProgressTest, NamesCannotMoveTheCursor) {
  FakeClock clock;
  std::string out;
  ProgressOptions named = options(clock, &out);
  named.label =
      "a\x1b"
      "c\n\r.json";
  Progress progress(std::move(named));
  clock.advance_s(2.5);
  progress.set_note(
      "b\x1b"
      "c");
  progress.add(5);
  EXPECT_EQ(out.substr(0, 22), "\ra\\x1bc\\x0a\\x0d.json [");
  EXPECT_NE(out.find("b\\x1bc\033[K"), std::string::npos) << out;
}

TEST(ProgressTest, IsSilentWithoutATerminal) {
  FakeClock clock;
  std::string out;
  ProgressOptions quiet = options(clock, &out);
  quiet.show = ProgressOptions::Show::kNever;
  Progress progress(std::move(quiet));
  clock.advance_s(100);
  progress.add(10);
  progress.finish();
  EXPECT_EQ(out, "");
}

TEST(ProgressTest, FitsTheLine) {
  const std::string wide = format_progress("x", 1234567, 2000000, "files", 10.0, "", 200);
  EXPECT_EQ(wide,
            "x [==================>           ]  61%  1,234,567/2,000,000 files  123,457/s  ETA "
            "6.2 s");
  for (int width = 0; width < 120; ++width)
    EXPECT_LE(format_progress("label", 5, 10, "files", 1.0, "note", width).size(),
              static_cast<size_t>(std::max(10, width - 1)));
  EXPECT_EQ(format_progress("x", 3, 0, "files", 2.0, "", 80), "x 3 files  1.50/s  2.0 s");
  EXPECT_EQ(format_progress("x", 12, 10, "files", 2.0, "", 30), "x 100%  12/10 files  6.00/s");
  EXPECT_EQ(format_progress("x", 0, 10, "f", 2.0, "", 30), "x   0%  0/10 f  0.00/s  ETA ?");
}

TEST(ProgressTest, LogLinesComeAboveTheBar) {
  FakeClock clock;
  std::string out;
  Progress progress(options(clock, &out));
  clock.advance_s(3);
  progress.add();
  out.clear();
  ::testing::internal::CaptureStderr();
  log_info("data", "hello");
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("[data] hello\n"), std::string::npos);
  EXPECT_EQ(out.rfind("\r\033[K\rdecode", 0), 0u) << out;
}

TEST(ProgressTest, CountsFromManyThreads) {
  std::string out;
  ProgressOptions made;
  made.show = ProgressOptions::Show::kAlways;
  made.delay_s = 0.0;
  made.total = 4000;
  made.write = [&](std::string_view text) { out.append(text); };
  {
    Progress progress(std::move(made));
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        for (int i = 0; i < 1000; ++i) progress.add();
      });
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(progress.done(), 4000u);
  }
  EXPECT_NE(out, "");
}

}  // namespace
}  // namespace aerie
