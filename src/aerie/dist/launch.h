// Starts the ranks of this machine: this program again, once a device, with its place in the world
// in the environment. To be called before anything touches CUDA or starts threads.
//
// Signals are handed on. When a rank ends badly the others get a moment to notice by themselves
// and are ended then; what happened is said once, with the rank's phase and last log lines.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aerie/base/status.h"

namespace aerie::dist {

struct LaunchOptions {
  std::string program;            // path of the executable
  std::vector<std::string> args;  // without the program's name
  int local_size = 1;             // ranks on this machine
  int node = 0, num_nodes = 1;    // this machine among several, alike ones
  std::string master_addr;        // with several nodes: host of node 0, and its port
  uint16_t master_port = 0;
  int max_restarts = 0;  // after ranks that died
  double grace_s = 6;    // between the first bad end and SIGKILL for the rest
};

// As many ranks as share this machine's processors without taking all of its memory.
Status check_ranks_on_cpu(int ranks);

// The exit code for this process: that of the rank that ended badly first, 1 after a signal.
Result<int> launch_ranks(const LaunchOptions& options);

}  // namespace aerie::dist
