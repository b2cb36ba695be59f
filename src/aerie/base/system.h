// What this machine offers the process, containers taken into account: a quota of two CPUs on a
// host with 128 counts as two, a memory limit counts as the memory there is. Linux.
//
// `env` and `root` exist for tests: files are read below root + "/proc" and root + "/sys". Anything
// missing or unreadable falls back to the wider answer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aerie/base/env.h"

namespace aerie {

// CPU numbers that the scheduler may give to this process.
std::vector<int> allowed_cpus();
// Threads worth starting: allowed CPUs, at most the cgroup quota (rounded up); at least 1.
int cpu_count(Env& env = Env::real(), const std::string& root = "");
// Of the allowed CPUs those that are not a second hardware thread of another, at most cpu_count().
int physical_core_count(Env& env = Env::real(), const std::string& root = "");

struct MemoryInfo {
  uint64_t total_bytes = 0;      // of the machine or of the cgroup, whichever is less
  uint64_t available_bytes = 0;  // what can still be used without swapping (caches count as free)
};
MemoryInfo memory_info(Env& env = Env::real(), const std::string& root = "");

struct ProcessMemory {
  uint64_t rss_bytes = 0;        // resident, also pages of mapped files
  uint64_t anonymous_bytes = 0;  // resident and ours alone: heap and stacks
  uint64_t peak_rss_bytes = 0;
};
ProcessMemory process_memory(Env& env = Env::real(), const std::string& root = "");

// "Intel(R) Xeon(R) Platinum 8480C"; empty where it cannot be found out.
std::string cpu_name(Env& env = Env::real(), const std::string& root = "");
std::string host_name();

// CPU time of all threads of the process so far, user and system.
double process_cpu_s();
// The same of the calling thread.
double thread_cpu_s();

// "850 B", "1.5 KiB", "12.0 GiB".
std::string human_bytes(double bytes);

}  // namespace aerie
