#include "process.h"

#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "aerie/base/check.h"
#include "aerie/base/clock.h"

namespace aerie::crash {

Process::Process(const std::vector<std::string>& command, const Options& options) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  pid_ = ::fork();
  AERIE_CHECK(pid_ >= 0, "fork failed");
  if (pid_ != 0) return;
  // The child: async-signal-safe calls only.
  const int log = ::open(options.log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  if (log < 0 || ::dup2(log, STDOUT_FILENO) < 0 || ::dup2(log, STDERR_FILENO) < 0) ::_exit(126);
  if (options.file_limit > 0) {
    const rlimit limit{options.file_limit, RLIM_INFINITY};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(126);
  }
  ::execv(argv[0], argv.data());
  ::_exit(127);
}

Process::~Process() {
  if (!running()) return;
  send(SIGKILL);
  wait();
}

bool Process::running() {
  return status_ == -1 && wait(0.0) == -1;
}

void Process::send(int signal_number) {
  if (status_ == -1) ::kill(pid_, signal_number);
}

void Process::lift_file_limit() {
  const rlimit limit{RLIM_INFINITY, RLIM_INFINITY};
  AERIE_CHECK(::prlimit(pid_, RLIMIT_FSIZE, &limit, nullptr) == 0, "prlimit failed");
}

int Process::wait(double seconds) {
  const double end = Clock::real().monotonic_s() + seconds;
  while (status_ == -1) {
    int raw = 0;
    if (::waitpid(pid_, &raw, WNOHANG) == pid_) {
      status_ = WIFEXITED(raw) ? WEXITSTATUS(raw) : 1000 + WTERMSIG(raw);
      break;
    }
    if (Clock::real().monotonic_s() >= end) return -1;
    ::usleep(2000);
  }
  return status_;
}

}  // namespace aerie::crash
