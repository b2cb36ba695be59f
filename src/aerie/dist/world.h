// Who this process is among those that train together, and where they meet. No torch here.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/status.h"

namespace aerie::dist {

enum class Launcher {
  kNone,      // one process, nobody started it for training on several devices
  kSelf,      // aerie started its own ranks (launch.h)
  kTorchrun,  // torch.distributed.run
  kSlurm,     // srun: a task a rank
  kPlain,     // RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT set by hand or by another tool
  kMpi,       // mpirun: variables of Open MPI, MPICH or MVAPICH
};
const char* launcher_name(Launcher launcher);

struct World {
  int rank = 0, size = 1;  // over all nodes
  int local_rank = 0, local_size = 1;
  int node = 0, num_nodes = 1;
  std::string master_addr;
  uint16_t master_port = 0;
  // torchrun's agent hosts the store; otherwise rank 0 does.
  bool agent_store = false;
  // A socket that listens at master_port already, inherited from the launcher by rank 0; -1: none.
  int listen_fd = -1;
  int restart_count = 0;  // how often the launcher has started the ranks again
  Launcher launcher = Launcher::kNone;
};

// A variable of the environment; empty: not set.
using ReadVariable = std::function<std::string(const char* name)>;
std::string process_variable(const char* name);

// Which launcher's variables to follow: kNone takes those that are there (self, torchrun, plain,
// SLURM, MPI, in this order), the others insist on theirs.
Result<std::optional<World>> world_from_environment(
    Launcher launcher = Launcher::kNone, const ReadVariable& variable = process_variable);

// "node[01-03,07],login1" -> node01 node02 node03 node07 login1; SLURM's notation, several brackets
// in a name included.
Result<std::vector<std::string>> expand_host_list(std::string_view list);

}  // namespace aerie::dist
