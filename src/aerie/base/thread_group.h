// ThreadGroup: named long-running threads (the stages of a pipeline) whose failures are not lost.
//
//   ThreadGroup group([&](const Status&) { queue.cancel(); });  // wakes the others when one fails
//   group.start("decode", [&]() -> Status { ... });
//   Status status = group.join();                               // "decode: cannot read x.wav: ..."
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "aerie/base/status.h"

namespace aerie {

// Name shown by debuggers and top; at most 15 bytes are kept.
void set_thread_name(const std::string& name);
// Restricts the calling thread to these CPUs (numbers as in /proc/cpuinfo).
Status set_thread_affinity(const std::vector<int>& cpus);
// Runs `work`; an exception becomes a Status (InternalError and others: kInternal, bad_alloc:
// kOutOfMemory). No exception leaves a thread of ours.
Status run_guarded(const std::function<Status()>& work);

// What std::thread throws when the system has no room for another one, as a message for users.
Status thread_error(const std::system_error& error);

// Threads: start() and join() from one thread; status() from any.
class ThreadGroup final {
 public:
  // `on_error` is called once, by the failing thread, with the first error; it must wake whatever
  // the other threads wait for (cancel their queues).
  explicit ThreadGroup(std::function<void(const Status&)> on_error = {});
  ~ThreadGroup();  // joins; the work must be on its way to its end
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  // A kCancelled result is not an error: it is how a stage says that it was told to stop.
  // An affinity that the system refuses is logged and ignored; a thread that it refuses counts as
  // one that failed, and size() does not grow.
  void start(const std::string& name, std::function<Status()> work, std::vector<int> cpus = {});
  // Waits for all threads; the first error, with the thread's name as context.
  Status join();
  // The first error so far.
  Status status() const;
  size_t size() const { return threads_.size(); }

 private:
  void report(const std::string& name, Status status);

  const std::function<void(const Status&)> on_error_;
  mutable std::mutex mutex_;
  Status first_error_;
  std::vector<std::thread> threads_;
};

}  // namespace aerie
