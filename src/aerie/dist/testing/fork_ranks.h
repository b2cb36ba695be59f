// Ranks for tests: forked processes of this one that meet on the loopback interface. The parent
// must not have started threads of torch (tests: do all work with tensors inside the ranks).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aerie/dist/process_group.h"

namespace aerie::dist {

// Calls `body` in `size` processes, each with its place in the world; its result is the exit status
// (0 to 99), failed gtest expectations make it 100. Waits for all; a process that a signal ended
// counts as 128 + its number.
std::vector<int> fork_ranks(int size, const std::function<int(const World&)>& body);

// The same with a joined group, which is left at the end when `body` returned 0. 101: cannot join.
std::vector<int> fork_groups(int size, const std::function<int(ProcessGroup&)>& body,
                             GroupOptions options = {.timeout_s = 60, .join_timeout_s = 60});

}  // namespace aerie::dist
