#include <atomic>
#include <numeric>
#include <sched.h>
#include <set>
#include <sys/resource.h>
#include <thread>

#include <gtest/gtest.h>

#include "aerie/base/queue.h"
#include "aerie/base/thread_group.h"
#include "aerie/base/thread_pool.h"

namespace aerie {
namespace {

TEST(BoundedQueueTest, KeepsOrderAndCounts) {
  BoundedQueue<int> queue(3);
  EXPECT_TRUE(queue.push(1));
  EXPECT_TRUE(queue.push(2));
  EXPECT_EQ(queue.pop(), 1);
  EXPECT_TRUE(queue.push(3));
  EXPECT_TRUE(queue.push(4));
  const QueueStats stats = queue.stats();
  EXPECT_EQ(stats.pushed, 4u);
  EXPECT_EQ(stats.popped, 1u);
  EXPECT_EQ(stats.depth, 3u);
  EXPECT_EQ(stats.max_depth, 3u);
  EXPECT_EQ(stats.capacity, 3u);
  EXPECT_EQ(queue.pop(), 2);
  EXPECT_EQ(queue.pop(), 3);
  EXPECT_EQ(queue.pop(), 4);
  EXPECT_EQ(queue.size(), 0u);
}

TEST(BoundedQueueTest, CloseDrainsAndCancelDrops) {
  BoundedQueue<std::string> closing(2);
  closing.push("a");
  closing.close();
  std::string refused = "b";
  EXPECT_FALSE(closing.push(std::move(refused)));
  // NOLINTNEXTLINE(bugprone-use-after-move): what is tested
  EXPECT_EQ(refused, "b") << "a refused item stays with its owner";
  EXPECT_EQ(closing.pop(), "a");
  EXPECT_EQ(closing.pop(), std::nullopt);
  EXPECT_FALSE(closing.cancelled());

  BoundedQueue<std::shared_ptr<int>> cancelling(2);
  const auto item = std::make_shared<int>(1);
  cancelling.push(item);
  cancelling.cancel();
  EXPECT_EQ(item.use_count(), 1) << "dropped items are destroyed";
  EXPECT_EQ(cancelling.pop(), std::nullopt);
  EXPECT_EQ(cancelling.stats().dropped, 1u);
}

TEST(BoundedQueueTest, WakesThoseThatWait) {
  BoundedQueue<int> full(1);
  full.push(1);
  BoundedQueue<int> empty(1);
  std::atomic<int> returned{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] { returned += full.push(2) ? 0 : 1; });
    threads.emplace_back([&] { returned += empty.pop() ? 0 : 1; });
  }
  while (full.stats().producers_waiting < 3 || empty.stats().consumers_waiting < 3)
    std::this_thread::yield();
  full.cancel();
  empty.close();
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(returned, 6);
  EXPECT_EQ(full.stats().producers_waiting + empty.stats().consumers_waiting, 0u);
}

TEST(BoundedQueueTest, TimedPopTellsTimeoutFromEnd) {
  BoundedQueue<int> queue(1);
  std::optional<int> item;
  EXPECT_EQ(queue.pop_for(0.001, &item), PopOutcome::kTimeout);
  EXPECT_GT(queue.stats().starved_empty_s, 0.0);
  queue.push(7);
  EXPECT_EQ(queue.pop_for(1e30, &item), PopOutcome::kItem);
  EXPECT_EQ(item, 7);
  queue.close();
  EXPECT_EQ(queue.pop_for(1e30, &item), PopOutcome::kEnd);
}

TEST(BoundedQueueTest, DeliversEveryItemOnceBetweenManyThreads) {
  BoundedQueue<std::unique_ptr<int>> queue(4);
  constexpr int kPerProducer = 2000;
  std::atomic<int64_t> sum{0};
  std::atomic<int> count{0};
  std::vector<std::thread> producers, consumers;
  for (int p = 0; p < 3; ++p)
    producers.emplace_back([&, p] {
      for (int i = 0; i < kPerProducer; ++i)
        ASSERT_TRUE(queue.push(std::make_unique<int>(p * kPerProducer + i)));
    });
  for (int c = 0; c < 3; ++c)
    consumers.emplace_back([&] {
      while (auto item = queue.pop()) {
        sum += **item;
        ++count;
      }
    });
  for (auto& thread : producers) thread.join();
  queue.close();
  for (auto& thread : consumers) thread.join();
  const int64_t n = 3 * kPerProducer;
  EXPECT_EQ(count, n);
  EXPECT_EQ(sum, n * (n - 1) / 2);
  const QueueStats stats = queue.stats();
  EXPECT_EQ(stats.pushed, static_cast<uint64_t>(n));
  EXPECT_EQ(stats.popped, static_cast<uint64_t>(n));
  EXPECT_LE(stats.max_depth, 4u);
}

TEST(BoundedQueueTest, MeasuresWaits) {
  BoundedQueue<int> queue(1);
  queue.push(1);
  std::thread producer([&] { queue.push(2); });
  while (queue.stats().producers_waiting == 0) std::this_thread::yield();
  queue.pop();
  producer.join();
  EXPECT_GT(queue.stats().blocked_full_s, 0.0);
  EXPECT_EQ(queue.stats().starved_empty_s, 0.0);
}

TEST(ThreadGroupTest, DeliversTheFirstErrorWithItsStage) {
  BoundedQueue<int> queue(1);
  int calls = 0;
  ThreadGroup group([&](const Status& status) {
    ++calls;
    EXPECT_EQ(status.to_string(), "decode: bad header");
    queue.cancel();
  });
  group.start("reader", [&]() -> Status {
    if (!queue.pop()) return cancelled("told to stop");
    return ok_status();
  });
  group.start("decode", [] { return data_error("bad header"); });
  const Status status = group.join();
  EXPECT_EQ(status.code(), StatusCode::kDataError);
  EXPECT_EQ(status.to_string(), "decode: bad header");
  EXPECT_EQ(calls, 1);
}

TEST(ThreadGroupTest, ExceptionsDoNotEscape) {
  ThreadGroup group;
  group.start("a", []() -> Status { throw std::runtime_error("boom"); });
  EXPECT_EQ(group.join().to_string(), "a: boom");
  EXPECT_EQ(run_guarded([]() -> Status { throw std::bad_alloc(); }).code(),
            StatusCode::kOutOfMemory);
  EXPECT_EQ(run_guarded([]() -> Status { throw 3; }).code(), StatusCode::kInternal);
  EXPECT_EQ(run_guarded([]() -> Status {
              AERIE_CHECK(false, "x");
              return ok_status();
            }).code(),
            StatusCode::kInternal);
}

TEST(ThreadGroupTest, NamesAndBindsThreads) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  ASSERT_EQ(::sched_getaffinity(0, sizeof allowed, &allowed), 0);
  int cpu = 0;
  while (!CPU_ISSET(static_cast<size_t>(cpu), &allowed)) ++cpu;
  std::string name;
  int bound = 0;
  bool on_cpu = false;
  ThreadGroup group;
  group.start("a-very-long-stage-name",
              [&] {
                char buffer[32];
                ::pthread_getname_np(::pthread_self(), buffer, sizeof buffer);
                name = buffer;
                cpu_set_t set;
                CPU_ZERO(&set);
                ::pthread_getaffinity_np(::pthread_self(), sizeof set, &set);
                bound = CPU_COUNT(&set);
                on_cpu = CPU_ISSET(static_cast<size_t>(cpu), &set) != 0;
                return ok_status();
              },
              {cpu});
  ASSERT_TRUE(group.join().ok());
  EXPECT_EQ(name, "a-very-long-sta");
  EXPECT_EQ(bound, 1);
  EXPECT_TRUE(on_cpu);
  EXPECT_FALSE(set_thread_affinity({-1}).ok());
  EXPECT_FALSE(set_thread_affinity({CPU_SETSIZE}).ok());
}

class ThreadPoolTest : public ::testing::TestWithParam<int> {
 protected:
  ThreadPool pool_{{.name = "test", .num_threads = GetParam(), .cpus = {}}};
};
INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, ::testing::Values(0, 1, 4));

TEST_P(ThreadPoolTest, RunsEverythingAndWaits) {
  std::atomic<int> done{0};
  for (int i = 0; i < 100; ++i)
    pool_.submit("count", [&] {
      ++done;
      return ok_status();
    });
  EXPECT_TRUE(pool_.wait().ok());
  EXPECT_EQ(done, 100);
}

TEST_P(ThreadPoolTest, DeliversErrorsToTheWaiter) {
  pool_.submit("good", [] { return ok_status(); });
  pool_.submit("bad", [] { return io_error("disk"); });
  EXPECT_EQ(pool_.wait().to_string(), "bad: disk");
  EXPECT_TRUE(pool_.wait().ok()) << "an error is delivered once";
  pool_.submit("thrown", []() -> Status { throw std::runtime_error("boom"); });
  EXPECT_EQ(pool_.wait().to_string(), "thrown: boom");
}

TEST_P(ThreadPoolTest, MapsInOrder) {
  for (const size_t grain : {size_t{1}, size_t{7}, ~size_t{0}}) {
    const auto squares = pool_.parallel_map<size_t>(
        100, [](size_t i) -> Result<size_t> { return i * i; }, grain);
    ASSERT_TRUE(squares.ok());
    for (size_t i = 0; i < 100; ++i) EXPECT_EQ((*squares)[i], i * i);
  }
  EXPECT_TRUE(pool_.parallel_for(0, [](size_t) { return io_error("never"); }).ok());
}

TEST_P(ThreadPoolTest, ReportsTheLowestFailingIndex) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    const Status status = pool_.parallel_for(200, [](size_t i) -> Status {
      if (i % 10 == 3) return data_error(str_cat("item ", i));
      return ok_status();
    });
    EXPECT_EQ(status.message(), "item 3");
  }
  EXPECT_TRUE(pool_.wait().ok()) << "parallel_for delivers its error itself";
}

TEST_P(ThreadPoolTest, NestedLoopsDoNotLockUp) {
  std::atomic<int> done{0};
  const Status status = pool_.parallel_for(8, [&](size_t) {
    return pool_.parallel_for(8, [&](size_t) {
      ++done;
      return ok_status();
    });
  });
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(done, 64);
}

TEST(ThreadPoolShutdownTest, FinishesQueuedWorkUnlessCancelled) {
  std::atomic<int> done{0};
  {
    ThreadPool pool({.name = "t", .num_threads = 2, .cpus = {}});
    for (int i = 0; i < 50; ++i)
      pool.submit("w", [&] {
        ++done;
        return ok_status();
      });
  }
  EXPECT_EQ(done, 50);
  BoundedQueue<int> gate(1);
  BoundedQueue<int> started(1);
  done = 0;
  {
    ThreadPool pool({.name = "t", .num_threads = 1, .cpus = {}});
    pool.submit("gate", [&] {
      started.push(1);
      gate.pop();
      return ok_status();
    });
    pool.submit("dropped", [&] {
      ++done;
      return ok_status();
    });
    started.pop();
    pool.cancel();
    gate.close();
  }
  EXPECT_EQ(done, 0);
}

#if !defined(AERIE_SANITIZE_ADDRESS) && !defined(AERIE_SANITIZE_THREAD)
// No room for the stacks of 200 threads: the system refuses them as it does past a limit of
// processes, which root does not have.
void allow_few_threads() {
  const rlimit limit{512u << 20, 512u << 20};
  ::setrlimit(RLIMIT_AS, &limit);
}

TEST(ThreadLimitDeathTest, APoolWorksWithTheThreadsItGets) {
  const auto work = [] {
    allow_few_threads();
    std::atomic<int> done{0};
    {
      ThreadPool pool({.name = "t", .num_threads = 200, .cpus = {}});
      if (pool.num_threads() >= 200) std::exit(1);
      for (int i = 0; i < 300; ++i)
        pool.submit("w", [&] {
          ++done;
          return ok_status();
        });
      if (!pool.wait().ok()) std::exit(2);
    }
    std::exit(done == 300 ? 0 : 3);
  };
  EXPECT_EXIT(work(), ::testing::ExitedWithCode(0), "refuses another thread");
}

TEST(ThreadLimitDeathTest, AGroupReportsAThreadThatCannotStart) {
  const auto work = [] {
    allow_few_threads();
    BoundedQueue<int> queue(1);
    ThreadGroup group([&](const Status&) { queue.cancel(); });
    for (int i = 0; i < 200; ++i)
      group.start("stage", [&]() -> Status {
        queue.pop();
        return ok_status();
      });
    const Status status = group.join();
    std::exit(status.code() == StatusCode::kUnavailable && !status.hint().empty() ? 0 : 1);
  };
  EXPECT_EXIT(work(), ::testing::ExitedWithCode(0), "");
}
#endif

}  // namespace
}  // namespace aerie
