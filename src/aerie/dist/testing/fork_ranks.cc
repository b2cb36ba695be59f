#include "aerie/dist/testing/fork_ranks.h"

#include <cstdio>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "aerie/dist/address.h"
#include "aerie/dist/join.h"

namespace aerie::dist {
namespace {

// Of the running test: what has failed before a child came into being is not its failure.
int num_failures() {
  const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
  if (test == nullptr) return 0;
  int count = 0;
  for (int i = 0; i < test->result()->total_part_count(); ++i)
    count += test->result()->GetTestPartResult(i).failed() ? 1 : 0;
  return count;
}

}  // namespace

std::vector<int> fork_ranks(int size, const std::function<int(const World&)>& body) {
  Listener listener = listen_anywhere("127.0.0.1").value();
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    AERIE_CHECK(child >= 0, "fork failed");
    if (child == 0) {
      World world;
      world.rank = world.local_rank = rank;
      world.size = world.local_size = size;
      world.master_addr = "127.0.0.1";
      world.master_port = listener.port;
      world.launcher = Launcher::kSelf;
      if (rank == 0)
        world.listen_fd = listener.fd;
      else
        close(listener.fd);
      int code = 102;
      const int failed_before = num_failures();
      try {
        code = body(world);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      }
      if (num_failures() > failed_before) code = 100;
      std::fflush(nullptr);
      _exit(code);
    }
    children.push_back(child);
  }
  close(listener.fd);
  std::vector<int> codes;
  for (const pid_t child : children) {
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  }
  return codes;
}

std::vector<int> fork_groups(int size, const std::function<int(ProcessGroup&)>& body,
                             GroupOptions options) {
  return fork_ranks(size, [&](const World& world) {
    auto group = join_ranks(world, options);
    if (!group.ok()) {
      std::fprintf(stderr, "rank %d: %s\n", world.rank, group.status().to_string().c_str());
      return 101;
    }
    const int code = body(**group);
    if (code == 0) (*group)->leave();
    return code;
  });
}

}  // namespace aerie::dist
