#include "aerie/base/thread_group.h"

#include <exception>
#include <new>
#include <pthread.h>
#include <sched.h>

#include "aerie/base/log.h"

namespace aerie {

void set_thread_name(const std::string& name) {
  (void)::pthread_setname_np(::pthread_self(), name.substr(0, 15).c_str());
}

Status set_thread_affinity(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) {
    if (cpu < 0 || cpu >= CPU_SETSIZE) return invalid_argument(str_cat("there is no CPU ", cpu));
    CPU_SET(static_cast<size_t>(cpu), &set);
  }
  if (const int error = ::pthread_setaffinity_np(::pthread_self(), sizeof set, &set); error != 0)
    return errno_error("cannot bind the thread to the given CPUs", error);
  return ok_status();
}

Status run_guarded(const std::function<Status()>& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return out_of_memory("out of memory");
  } catch (const std::exception& error) {
    return internal_error(error.what());
  } catch (...) {
    return internal_error("unknown exception");
  }
}

Status thread_error(const std::system_error& error) {
  return unavailable(str_cat("the system refuses another thread: ", error.code().message()))
      .with_hint(
          "raise the limit of processes and threads (`ulimit -u`, or the pids limit of the "
          "container), or lower num_workers");
}

ThreadGroup::ThreadGroup(std::function<void(const Status&)> on_error)
    : on_error_(std::move(on_error)) {}

ThreadGroup::~ThreadGroup() {
  (void)join();
}

void ThreadGroup::start(const std::string& name, std::function<Status()> work,
                        std::vector<int> cpus) {
  try {
    threads_.emplace_back([this, name, work = std::move(work), cpus = std::move(cpus)] {
      set_thread_name(name);
      if (!cpus.empty()) {
        if (const Status bound = set_thread_affinity(cpus); !bound.ok())
          AERIE_LOG_ONCE(warn, "threads", bound.to_string());
      }
      report(name, run_guarded(work));
    });
  } catch (const std::system_error& error) {
    report(name, thread_error(error));
  }
}

void ThreadGroup::report(const std::string& name, Status status) {
  if (status.ok() || status.code() == StatusCode::kCancelled) return;
  Status named = std::move(status).with_context(name);
  {
    const std::lock_guard lock(mutex_);
    if (!first_error_.ok()) return;
    first_error_ = named;
  }
  if (on_error_) on_error_(named);
}

Status ThreadGroup::join() {
  for (std::thread& thread : threads_)
    if (thread.joinable()) thread.join();
  return status();
}

Status ThreadGroup::status() const {
  const std::lock_guard lock(mutex_);
  return first_error_;
}

}  // namespace aerie
