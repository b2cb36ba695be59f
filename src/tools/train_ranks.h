// The processes of `aerie train`: whether this one is a rank that somebody started, has to start
// ranks itself, or trains alone.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/config/schema/loop_config.h"
#include "aerie/dist/process_group.h"
#include "aerie/dist/world.h"
#include "aerie/train/run.h"

namespace aerie::tools {

struct RankOptions {
  int max_restarts = 0;
  std::string launcher;    // --launcher of mm: none, pytorch, slurm or mpi; empty: not given
  std::string local_rank;  // --local_rank, as torch.distributed.launch hands it on
};

class TrainRanks final {
 public:
  // Looks at the environment; before a configuration is opened, which follows it.
  static Result<TrainRanks> find(const RankOptions& options);

  // Whether messages about the configuration are another process's business.
  bool quiet() const;
  // Whether this is one of several processes that somebody started.
  bool started_by_others() const { return world_ && world_->size > 1; }
  // Rank 0, or alone: the one that prints results.
  bool first() const { return !world_ || world_->rank == 0; }

  // Whether launch() would start any.
  bool starts_others(const config::LoopConfig& config) const;
  // Where the configuration asks for processes that nobody has started: starts them with the
  // arguments of this command, waits, and gives their exit code.
  Result<std::optional<int>> launch(const config::LoopConfig& config,
                                    const std::vector<std::string>& args) const;
  // Meets the other ranks; null: there are none.
  Result<std::shared_ptr<dist::ProcessGroup>> join(const config::LoopConfig& config) const;

  // The run failed on this rank, or another one was lost: says so, tells the others, and ends the
  // process. Threads that wait for lost ranks could not be joined.
  [[noreturn]] void end_badly(dist::ProcessGroup& group, const Status& status) const;
  // Back into SLURM's queue when its signal before the time limit stopped the run.
  void requeue(const train::RunResult& result) const;

  // The folder that a restart goes on in; empty: as configured.
  std::string resume_folder() const;

 private:
  RankOptions options_;
  std::optional<dist::World> world_;
  bool node_task_ = false;  // SLURM started one process a machine: it may be a launcher there
};

}  // namespace aerie::tools
