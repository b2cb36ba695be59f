// Which process this is, such that another one, later or on another machine, can tell whether it is
// still running: locks and names of temporary files carry it. Linux.
//
// `env` and `root` exist for tests: files are read below root + "/proc".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "aerie/base/env.h"

namespace aerie {

struct ProcessIdentity {
  std::string host;
  std::string boot_id;        // changes when the machine starts; empty: unknown
  std::string pid_namespace;  // containers count processes by themselves; empty: unknown
  int64_t pid = 0;
  int64_t start_ticks = 0;  // since the machine started; 0: unknown

  bool operator==(const ProcessIdentity&) const = default;
  std::string to_string() const;  // "process 1234 on host"
};

ProcessIdentity this_process(Env& env = Env::real(), const std::string& root = "");

enum class ProcessLife {
  kAlive,
  kDead,       // certain: same boot, same numbering of processes, and no such process any more
  kElsewhere,  // another machine, boot or container: cannot be seen from here
};
ProcessLife process_life(const ProcessIdentity& process, Env& env = Env::real(),
                         const std::string& root = "");

// Whether a process of this number runs here that may have written a file at `mtime_ns`: it was
// there before the file was.
bool pid_may_have_written(int64_t pid, int64_t mtime_ns, Env& env = Env::real(),
                          const std::string& root = "");

// An identity as part of a file name, "0123456789abcdef-<pid>-<start>", and back: the life of the
// process that made it. Names that are no such tag count as kElsewhere.
std::string process_tag(const ProcessIdentity& process);
ProcessLife tag_life(std::string_view tag, Env& env = Env::real(), const std::string& root = "");

}  // namespace aerie
