// Signals that ask a run to stop. The first one sets a flag that the run looks at between steps
// (save, then leave); the second one ends the process at once with 128 + its number.
#pragma once

#include <csignal>

namespace aerie {

// Catches SIGTERM, SIGINT and SIGUSR1 from construction to destruction, which restores what was
// there before. One at a time; make it in main, before other threads.
class SignalCatcher final {
 public:
  SignalCatcher();
  ~SignalCatcher();
  SignalCatcher(const SignalCatcher&) = delete;
  SignalCatcher& operator=(const SignalCatcher&) = delete;

 private:
  static constexpr int kNumSignals = 3;
  struct sigaction before_[kNumSignals];
};

// The signal that came first, 0 when none did. From any thread; costs one relaxed load.
int caught_signal();
// "SIGTERM", "SIGINT", ...; "another signal" for the rare ones.
const char* signal_name(int signal_number);

}  // namespace aerie
