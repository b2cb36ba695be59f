// Log lines from before there is a log file.
#pragma once

namespace aerie {

// While one lives, what is logged is kept, and every file that add_log_file() opens begins with it,
// with the times it was said at: a run's own log tells how its folder was found, locked and cleaned
// up, which is said before the log may lie in it. One at a time.
class EarlyLog {
 public:
  EarlyLog();
  ~EarlyLog();
  EarlyLog(const EarlyLog&) = delete;
  EarlyLog& operator=(const EarlyLog&) = delete;
};

}  // namespace aerie
