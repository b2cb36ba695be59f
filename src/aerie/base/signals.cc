#include "aerie/base/signals.h"

#include <atomic>
#include <cstring>
#include <unistd.h>

#include "aerie/base/check.h"

namespace aerie {

namespace {

constexpr int kSignals[] = {SIGTERM, SIGINT, SIGUSR1, SIGHUP};

std::atomic<int> first_signal{0};
std::atomic<bool> catching{false};
static_assert(std::atomic<int>::is_always_lock_free, "must be usable in a signal handler");

// Only async-signal-safe calls here.
void handle_stop(int signal_number) {
  int none = 0;
  if (first_signal.compare_exchange_strong(none, signal_number)) return;
  if (signal_number == SIGHUP) return;
  static const char text[] = "\naerie: second signal, leaving at once\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, sizeof text - 1);
  ::_exit(128 + signal_number);
}

}  // namespace

SignalCatcher::SignalCatcher() {
  AERIE_CHECK(!catching.exchange(true), "only one SignalCatcher at a time");
  first_signal = 0;
  struct sigaction action {};
  action.sa_handler = handle_stop;
  // Interrupted reads and writes go on by themselves.
  action.sa_flags = SA_RESTART;
  // One handler at a time, so that "second" is well defined.
  ::sigemptyset(&action.sa_mask);
  for (const int signal_number : kSignals) ::sigaddset(&action.sa_mask, signal_number);
  for (int i = 0; i < kNumSignals; ++i) {
    ::sigaction(kSignals[i], nullptr, &before_[i]);
    if (kSignals[i] == SIGHUP && before_[i].sa_handler == SIG_IGN) continue;
    ::sigaction(kSignals[i], &action, nullptr);
  }
}

SignalCatcher::~SignalCatcher() {
  for (int i = 0; i < kNumSignals; ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
  first_signal = 0;
  catching = false;
}

int caught_signal() {
  return first_signal.load(std::memory_order_relaxed);
}

const char* signal_name(int signal_number) {
  switch (signal_number) {
    case SIGTERM:
      return "SIGTERM";
    case SIGINT:
      return "SIGINT";
    case SIGUSR1:
      return "SIGUSR1";
    case SIGHUP:
      return "SIGHUP";
    case SIGKILL:
      return "SIGKILL";
    case SIGSEGV:
      return "SIGSEGV";
    case SIGABRT:
      return "SIGABRT";
    default:
      return "another signal";
  }
}

void ignore_broken_pipes() {
  std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace aerie
