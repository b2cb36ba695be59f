// BoundedQueue: hands items from any number of producers to any number of consumers, holding at
// most `capacity` of them. All waits are counted, so that a pipeline can say which stage holds it
// up.
//
// End of work:  close()   no more items come; consumers still get what is there, then nothing
//               cancel()  stop now: what is there is dropped, every waiting thread returns
//
// Threads: all methods from any thread. The destructor requires that no thread is inside a method.
// Memory: slots are allocated once; pushing and popping move the item and allocate nothing.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "aerie/base/check.h"

namespace aerie {

struct QueueStats {
  uint64_t pushed = 0;
  uint64_t popped = 0;
  uint64_t dropped = 0;          // by cancel()
  double blocked_full_s = 0.0;   // summed over producers
  double starved_empty_s = 0.0;  // summed over consumers
  size_t depth = 0;
  size_t max_depth = 0;
  size_t capacity = 0;
  size_t producers_waiting = 0;  // right now
  size_t consumers_waiting = 0;
};

enum class PopOutcome { kItem, kTimeout, kEnd };

template <typename T>
class BoundedQueue final {
 public:
  explicit BoundedQueue(size_t capacity) : slots_(capacity) {
    AERIE_CHECK(capacity > 0, "a queue needs room for one item");
  }
  BoundedQueue(const BoundedQueue&) = delete;
  BoundedQueue& operator=(const BoundedQueue&) = delete;

  // Waits while the queue is full. False after close() or cancel(); the item is then untouched.
  bool push(T&& item) {
    std::unique_lock lock(mutex_);
    wait(lock, not_full_, stats_.producers_waiting, stats_.blocked_full_s,
         [&] { return closed_ || size_ < slots_.size(); });
    return put(item);
  }
  bool push(const T& item) { return push(T(item)); }

  // Waits while the queue is empty. Nothing after cancel(), or after close() once it is drained.
  std::optional<T> pop() {
    std::unique_lock lock(mutex_);
    wait(lock, not_empty_, stats_.consumers_waiting, stats_.starved_empty_s,
         [&] { return closed_ || size_ > 0; });
    return take();
  }

  // As pop(), waiting at most `timeout_s`; *item is set only with kItem.
  PopOutcome pop_for(double timeout_s, std::optional<T>* item) {
    std::unique_lock lock(mutex_);
    const auto deadline =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(
                           std::chrono::duration<double>(timeout_s < 1e9 ? timeout_s : 1e9));
    if (!closed_ && size_ == 0) {
      const auto start = Clock::now();
      ++stats_.consumers_waiting;
      not_empty_.wait_until(lock, deadline, [&] { return closed_ || size_ > 0; });
      --stats_.consumers_waiting;
      stats_.starved_empty_s += seconds_since(start);
    }
    if (size_ == 0) return closed_ ? PopOutcome::kEnd : PopOutcome::kTimeout;
    *item = take();
    return PopOutcome::kItem;
  }

  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    not_full_.notify_all();
    not_empty_.notify_all();
  }

  void cancel() {
    std::vector<std::optional<T>> dropped;  // destroyed after the lock is gone
    {
      const std::lock_guard lock(mutex_);
      closed_ = cancelled_ = true;
      stats_.dropped += size_;
      for (; size_ > 0; --size_, head_ = next(head_))
        dropped.push_back(std::exchange(slots_[head_], std::nullopt));
    }
    not_full_.notify_all();
    not_empty_.notify_all();
  }

  bool closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
  }
  bool cancelled() const {
    const std::lock_guard lock(mutex_);
    return cancelled_;
  }
  size_t size() const {
    const std::lock_guard lock(mutex_);
    return size_;
  }
  size_t capacity() const { return slots_.size(); }
  QueueStats stats() const {
    const std::lock_guard lock(mutex_);
    QueueStats out = stats_;
    out.depth = size_;
    out.capacity = slots_.size();
    return out;
  }

 private:
  using Clock = std::chrono::steady_clock;

  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
  size_t next(size_t index) const { return index + 1 == slots_.size() ? 0 : index + 1; }

  // The clock is read only by threads that do wait.
  template <typename Ready>
  void wait(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, size_t& waiting,
            double& waited_s, Ready ready) {
    if (ready()) return;
    const auto start = Clock::now();
    ++waiting;
    changed.wait(lock, ready);
    --waiting;
    waited_s += seconds_since(start);
  }

  // Both with the lock held.
  bool put(T& item) {
    if (closed_) return false;
    slots_[(head_ + size_) % slots_.size()].emplace(std::move(item));
    ++size_;
    ++stats_.pushed;
    if (size_ > stats_.max_depth) stats_.max_depth = size_;
    not_empty_.notify_one();
    return true;
  }
  std::optional<T> take() {
    if (size_ == 0) return std::nullopt;
    std::optional<T> item = std::exchange(slots_[head_], std::nullopt);
    head_ = next(head_);
    --size_;
    ++stats_.popped;
    not_full_.notify_one();
    return item;
  }

  mutable std::mutex mutex_;
  std::condition_variable not_full_;
  std::condition_variable not_empty_;
  std::vector<std::optional<T>> slots_;  // a ring: size_ items from head_ on
  size_t head_ = 0;
  size_t size_ = 0;
  bool closed_ = false;
  bool cancelled_ = false;
  QueueStats stats_;
};

}  // namespace aerie
