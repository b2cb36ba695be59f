#include "aerie/base/thread_pool.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "aerie/base/log.h"

namespace aerie {

// Shared by the caller and its helpers. A helper that starts after the loop has ended finds nothing
// to claim and touches only this object, which it co-owns; that is why the caller need not wait for
// it.
struct ThreadPool::Loop {
  const std::function<Status(size_t)>* fn;
  size_t count;
  size_t grain;

  std::mutex mutex;
  std::condition_variable finished;
  size_t next = 0;
  size_t num_active = 0;
  size_t error_index = std::numeric_limits<size_t>::max();
  Status error;

  bool claim(size_t* first, size_t* last) {
    const std::lock_guard lock(mutex);
    if (next >= count || !error.ok()) return false;
    *first = next;
    *last = next + std::min(grain, count - next);
    next = *last;
    ++num_active;
    return true;
  }

  void run() {
    size_t first, last;
    while (claim(&first, &last)) {
      Status status;
      size_t index = first;
      for (; index < last; ++index) {
        status = run_guarded([&] { return (*fn)(index); });
        if (!status.ok()) break;
      }
      const std::lock_guard lock(mutex);
      // Chunks are claimed in order, so every lower index has started and will report: the lowest
      // failing index is the same for any number of threads.
      if (!status.ok() && index < error_index) {
        error_index = index;
        error = std::move(status);
      }
      if (--num_active == 0) finished.notify_all();
    }
  }

  Status wait() {
    std::unique_lock lock(mutex);
    finished.wait(lock, [&] { return num_active == 0; });
    return error;
  }
};

ThreadPool::ThreadPool(ThreadPoolOptions options) : num_threads_(std::max(0, options.num_threads)) {
  for (int i = 0; i < num_threads_; ++i) {
    std::vector<int> cpus;
    if (!options.cpus.empty()) cpus = {options.cpus[static_cast<size_t>(i) % options.cpus.size()]};
    threads_.start(
        str_cat(options.name, "/", i),
        [this] {
          run_worker();
          return ok_status();
        },
        std::move(cpus));
  }
  if (const int started = static_cast<int>(threads_.size()); started < num_threads_) {
    AERIE_LOG_ONCE(warn, "threads", "working with ", started, " of ", num_threads_,
                   " threads: ", threads_.status().to_string());
    // The workers are waiting for the lock or for work: nobody reads it yet.
    num_threads_ = started;
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_ready_.notify_all();
  (void)threads_.join();
}

void ThreadPool::submit(std::string stage, std::function<Status()> work) {
  Task task{std::move(stage), std::move(work)};
  if (num_threads_ == 0) {
    run_task(task);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  work_ready_.notify_one();
}

void ThreadPool::run_worker() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_ready_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    ++num_running_;
    lock.unlock();
    run_task(task);
    lock.lock();
    --num_running_;
    if (num_running_ == 0 && tasks_.empty()) idle_.notify_all();
  }
}

void ThreadPool::run_task(const Task& task) {
  Status status = run_guarded(task.work);
  if (status.ok()) return;
  const std::lock_guard lock(mutex_);
  if (first_error_.ok()) first_error_ = std::move(status).with_context(task.stage);
}

Status ThreadPool::wait() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return num_running_ == 0 && tasks_.empty(); });
  return std::exchange(first_error_, Status());
}

void ThreadPool::cancel() {
  std::deque<Task> dropped;  // destroyed after the lock is gone
  const std::lock_guard lock(mutex_);
  dropped.swap(tasks_);
  if (num_running_ == 0) idle_.notify_all();
}

Status ThreadPool::parallel_for(size_t count, const std::function<Status(size_t)>& fn,
                                size_t grain) {
  const auto loop = std::make_shared<Loop>();
  loop->fn = &fn;
  loop->count = count;
  loop->grain = std::max<size_t>(1, grain);
  const size_t num_chunks = count / loop->grain + (count % loop->grain != 0 ? 1 : 0);
  const size_t num_threads = std::min(static_cast<size_t>(std::max(1, num_threads_)), num_chunks);
  const size_t num_helpers = num_threads > 0 ? num_threads - 1 : 0;
  for (size_t i = 0; i < num_helpers; ++i)
    submit("parallel_for", [loop] {
      loop->run();
      return ok_status();
    });
  loop->run();
  return loop->wait();
}

}  // namespace aerie
