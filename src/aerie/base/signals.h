// Signals that ask a run to stop. The first one sets a flag that the run looks at between steps
// (save, then leave); the second one ends the process at once with 128 + its number. SIGHUP is
// never the second one: a terminal that closes sends it once from the shell and once from the
// kernel.
#pragma once

#include <csignal>

namespace aerie {

// Catches SIGTERM, SIGINT, SIGUSR1 and SIGHUP (unless it is ignored, as under nohup) from
// construction to destruction, which restores what was there before. One at a time; make it in
// main, before other threads.
class SignalCatcher final {
 public:
  SignalCatcher();
  ~SignalCatcher();
  SignalCatcher(const SignalCatcher&) = delete;
  SignalCatcher& operator=(const SignalCatcher&) = delete;

 private:
  static constexpr int kNumSignals = 4;
  struct sigaction before_[kNumSignals];
};

// The signal that came first, 0 when none did. From any thread; costs one relaxed load.
int caught_signal();
// "SIGTERM", "SIGINT", ...; "another signal" for the rare ones.
const char* signal_name(int signal_number);
// From now on writing to a pipe whose reader is gone is an error of that write (lost log lines),
// not the end of the process.
void ignore_broken_pipes();

}  // namespace aerie
