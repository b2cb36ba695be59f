#include "aerie/base/spans.h"

#include <map>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/base/late_span.h"
#include "aerie/base/testing/mem_env.h"

namespace aerie {
namespace {

const SpanTotal* find(const std::vector<SpanTotal>& totals, const std::string& name) {
  for (const SpanTotal& total : totals)
    if (total.name == name) return &total;
  return nullptr;
}

TEST(SpansTest, SelfTimesAddUpToTheWhole) {
  FakeClock clock;
  start_spans({0, &clock});
  {
    SpanScope step("step");
    clock.advance_ns(5);
    for (int i = 0; i < 2; ++i) {
      SpanScope forward("forward");
      clock.advance_ns(10);
      SpanScope inner("attention");
      clock.advance_ns(3);
    }
    clock.advance_ns(1);
  }
  const auto totals = take_thread_spans();
  stop_spans();
  ASSERT_EQ(totals.size(), 3u);
  EXPECT_EQ(find(totals, "step")->total_ns, 32);
  EXPECT_EQ(find(totals, "step")->self_ns, 6);
  EXPECT_EQ(find(totals, "forward")->count, 2);
  EXPECT_EQ(find(totals, "forward")->self_ns, 20);
  EXPECT_EQ(find(totals, "forward")->total_ns, 26);
  EXPECT_EQ(find(totals, "attention")->self_ns, 6);
  int64_t sum = 0;
  for (const SpanTotal& total : totals) sum += total.self_ns;
  EXPECT_EQ(sum, 32);
}

TEST(SpansTest, ASpanMayBeginInThePast) {
  FakeClock clock;
  clock.advance_ns(100);
  EXPECT_EQ(span_moment(), 0);  // recording is off
  start_spans({0, &clock});
  {
    SpanScope backward("backward");
    clock.advance_ns(10);
    const int64_t moment = span_moment();
    clock.advance_ns(4);
    add_span_since("wait", moment);
    add_span_since("never", 0);
  }
  const auto totals = take_thread_spans();
  stop_spans();
  ASSERT_EQ(totals.size(), 2u);
  EXPECT_EQ(find(totals, "wait")->self_ns, 4);
  EXPECT_EQ(find(totals, "backward")->self_ns, 10);
  EXPECT_EQ(find(totals, "backward")->total_ns, 14);
}

TEST(SpansTest, TakingStartsTotalsFromZero) {
  FakeClock clock;
  start_spans({0, &clock});
  {
    SpanScope span("a");
    clock.advance_ns(7);
  }
  EXPECT_EQ(take_thread_spans().size(), 1u);
  EXPECT_TRUE(take_thread_spans().empty());
  {
    SpanScope span("a");
    clock.advance_ns(2);
    span.end();
    clock.advance_ns(100);
  }
  EXPECT_EQ(find(take_thread_spans(), "a")->total_ns, 2);
  stop_spans();
}

TEST(SpansTest, NothingIsRecordedWhileOff) {
  stop_spans();
  FakeClock clock;
  {
    SpanScope span("off");
    start_spans({10, &clock});
    SpanScope open("cut");  // still open when recording stops
    stop_spans();
  }
  EXPECT_TRUE(take_thread_spans().empty());
  const auto trace = nlohmann::json::parse(chrome_trace_json());
  for (const auto& event : trace["traceEvents"]) EXPECT_NE(event["ph"], "X") << event;
}

TEST(SpansTest, ANewRecordingForgetsTheOldOne) {
  FakeClock clock;
  start_spans({10, &clock});
  SpanScope across("across");
  {
    SpanScope span("old");
    clock.advance_ns(1);
  }
  start_spans({10, &clock});
  {
    SpanScope span("new");
    clock.advance_ns(1);
  }
  across.end();
  const auto totals = take_thread_spans();
  stop_spans();
  ASSERT_EQ(totals.size(), 1u);
  EXPECT_EQ(totals[0].name, "new");
  EXPECT_EQ(chrome_trace_json().find("old"), std::string::npos);
}

TEST(SpansTest, ThreadsHaveTheirOwnTotalsAndRows) {
  start_spans({1000, nullptr});
  set_span_thread_name("main \"quoted\"");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      set_span_thread_name(str_cat("worker ", t));
      for (int i = 0; i < 50; ++i) SpanScope span("work");
      EXPECT_EQ(find(take_thread_spans(), "work")->count, 50);
    });
  }
  for (int i = 0; i < 20; ++i) {
    SpanScope span("main");
    (void)chrome_trace_json();  // while the others write
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(find(take_thread_spans(), "main")->count, 20);
  EXPECT_EQ(take_thread_spans().size(), 0u);
  stop_spans();
  const auto trace = nlohmann::json::parse(chrome_trace_json());
  std::map<std::string, int> rows, events;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "M" && event["name"] == "thread_name")
      ++rows[event["args"]["name"].get<std::string>()];
    if (event["ph"] == "X") ++events[event["name"].get<std::string>()];
  }
  EXPECT_EQ(rows.size(), 5u);
  EXPECT_EQ(rows["main \"quoted\""], 1);
  EXPECT_EQ(events["work"], 200);
  EXPECT_EQ(events["main"], 20);
}

TEST(SpansTest, TraceHasTimesInMicrosecondsAndSteps) {
  FakeClock clock;
  clock.advance_ns(1'000'000);
  const auto env = new_mem_env();
  start_spans({2, &clock});
  set_span_step(41);
  clock.advance_ns(2'000);
  {
    SpanScope span("forward");
    clock.advance_ns(1'500);
  }
  add_device_span("forward", clock.monotonic_ns() - 1'000, 900);
  { SpanScope span("too many"); }
  ASSERT_TRUE(write_chrome_trace(*env, "/trace.json").ok());
  EXPECT_EQ(find(take_device_spans(), "forward")->total_ns, 900);
  EXPECT_TRUE(take_device_spans().empty());
  stop_spans();
  EXPECT_EQ(dropped_span_events(), 1);
  const auto trace = nlohmann::json::parse(*env->read_file("/trace.json"));
  int found = 0;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    ++found;
    EXPECT_EQ(event["args"]["step"], 41);
    const bool device = event["cat"] == "device";
    EXPECT_DOUBLE_EQ(event["ts"].get<double>(), device ? 2.5 : 2.0);
    EXPECT_DOUBLE_EQ(event["dur"].get<double>(), device ? 0.9 : 1.5);
  }
  EXPECT_EQ(found, 2);
}

}  // namespace
}  // namespace aerie
