// ThreadPool: a fixed number of named threads for short pieces of work.
//
//   ThreadPool pool({.name = "stats", .num_threads = 4});
//   auto infos = pool.parallel_map<Info>(paths.size(), [&](size_t i) { return inspect(paths[i]);
//   });
//
// With 0 threads all work runs in the calling thread, with the same results.
// Threads: all methods from any thread, also from work running in the pool (parallel_for then uses
// the calling thread and those that are free, so nesting cannot lock up; wait() there would).
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/base/thread_group.h"

namespace aerie {

struct ThreadPoolOptions {
  std::string name = "pool";   // threads are called name/0, name/1, ...
  int num_threads = 1;         // fewer where the system refuses threads
  std::vector<int> cpus = {};  // thread i runs on cpus[i % size]; empty: anywhere
};

class ThreadPool final {
 public:
  explicit ThreadPool(ThreadPoolOptions options);
  ~ThreadPool();  // finishes all queued work first; call cancel() to be quicker
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Queues work; returns at once (0 threads: after running it). The first error or exception is
  // kept for wait(), with `stage` as its context; later work still runs.
  void submit(std::string stage, std::function<Status()> work);
  // Waits until nothing is queued or running; returns the first error since the last wait() and
  // forgets it.
  Status wait();
  // Drops what is queued and has not started.
  void cancel();

  // Calls fn(i) for 0 <= i < count, `grain` neighbouring indices at a time, on num_threads()
  // threads (the calling one is one of them), and returns when all is done. After a failure no new
  // index is started; the result is the error of the lowest failing index, whatever the number of
  // threads.
  Status parallel_for(size_t count, const std::function<Status(size_t)>& fn, size_t grain = 1);

  // The results of fn(i) in order of i.
  template <typename T>
  Result<std::vector<T>> parallel_map(size_t count, const std::function<Result<T>(size_t)>& fn,
                                      size_t grain = 1) {
    std::vector<std::optional<T>> found(count);
    AERIE_RETURN_IF_ERROR(parallel_for(
        count,
        [&](size_t i) -> Status {
          AERIE_ASSIGN_OR_RETURN(found[i], fn(i));
          return ok_status();
        },
        grain));
    std::vector<T> out;
    out.reserve(count);
    for (std::optional<T>& item : found) out.push_back(std::move(*item));
    return out;
  }

  int num_threads() const { return num_threads_; }

 private:
  struct Task {
    std::string stage;
    std::function<Status()> work;
  };
  struct Loop;  // one parallel_for

  void run_worker();
  void run_task(const Task& task);

  int num_threads_;  // constant once constructed
  std::mutex mutex_;
  std::condition_variable work_ready_;
  std::condition_variable idle_;
  std::deque<Task> tasks_;
  size_t num_running_ = 0;
  bool stopping_ = false;
  Status first_error_;
  ThreadGroup threads_;  // last: its threads use the members above
};

}  // namespace aerie
