// One process at a time in the folder of a run. A file `.aerie.lock` names the owner: host, boot
// id, process and its start time, and a counter that goes up every ten seconds.
//
//   owner on this boot and gone                the lock is taken over at once
//   owner on this boot and running             refused, with the owner's name
//   owner elsewhere (machine, boot, container) one minute for a sign of life: refused when it
//   comes,
//                                              taken over when it does not
//
// Commands that only read a run do not look at it. docs/training.md tells users about it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "aerie/base/clock.h"
#include "aerie/base/env.h"
#include "aerie/base/process.h"

namespace aerie::train {

inline constexpr char kLockName[] = ".aerie.lock";

struct RunLockOptions {
  ProcessIdentity self = this_process();
  std::function<ProcessLife(const ProcessIdentity&)> life = [](const ProcessIdentity& process) {
    return process_life(process);
  };
  double beat_s = 10.0;
  double patience_s = 60.0;
  std::function<bool()> stop;  // ends the waiting with kCancelled; may be empty
};

// What the file says.
struct LockRecord {
  ProcessIdentity owner;
  int64_t beat = 0;
  std::string time;  // of the beat; for people

  std::string to_json() const;
  static Result<LockRecord> from_json(const std::string& text);
};

class RunLock {
 public:
  // Creates `folder` where it is missing. kUnavailable names the owner that holds it.
  static Result<std::unique_ptr<RunLock>> acquire(Env& env, Clock& clock, const std::string& folder,
                                                  RunLockOptions options = {});
  ~RunLock();  // gives it back
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // Fails once another process has taken over, because this one gave no sign of life for too long:
  // it must not write to the folder any more.
  Status check() const;
  // One beat, as the thread does it.
  void beat();

 private:
  RunLock(Env& env, Clock& clock, const std::string& folder, RunLockOptions options);
  Status take();
  std::string next_record();
  Status write();
  Status fill(WritableFile& file);  // just made by this process, which holds the folder then
  Result<LockRecord> read() const;
  // Whether a sign of life of `seen` came before patience ran out; nothing when the file is gone.
  Result<std::optional<bool>> wait_for_beat(const std::string& seen);
  Status in_use(const LockRecord& owner) const;
  void run();

  Env& env_;
  Clock& clock_;
  const std::string folder_, path_;
  const RunLockOptions options_;
  int64_t beats_ = 0;
  bool held_ = false;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  Status lost_;
  std::thread thread_;
};

}  // namespace aerie::train
