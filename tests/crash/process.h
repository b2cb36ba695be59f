// A child process of a crash test: started, watched, killed.
#pragma once

#include <cstdint>
#include <string>
#include <sys/types.h>
#include <vector>

namespace aerie::crash {

class Process {
 public:
  struct Options {
    std::string log;          // standard output and error, appended
    uint64_t file_limit = 0;  // RLIMIT_FSIZE in bytes; 0: none
  };
  Process(const std::vector<std::string>& command, const Options& options);
  ~Process();  // kills what is still running
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  bool running();
  void send(int signal_number);
  void lift_file_limit();
  // Waits up to `seconds` and returns the exit status, 1000 + the signal that ended it, or -1 when
  // it is still running.
  int wait(double seconds = 300.0);

 private:
  pid_t pid_ = -1;
  int status_ = -1;
};

}  // namespace aerie::crash
