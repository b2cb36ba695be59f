#include "train_ranks.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "aerie/base/log.h"
#include "aerie/base/parse.h"
#include "aerie/base/printable.h"
#include "aerie/base/strings.h"
#include "aerie/config/schema/devices.h"
#include "aerie/dist/board.h"
#include "aerie/dist/join.h"
#include "aerie/dist/last_words.h"
#include "aerie/dist/launch.h"
#include "error_text.h"

extern char** environ;

namespace aerie::tools {

namespace {

using dist::Launcher;
using dist::process_variable;

std::string own_program() {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
  return std::string(path, length > 0 ? static_cast<size_t>(length) : 0);
}

Launcher launcher_of(const std::string& name) {
  if (name == "slurm") return Launcher::kSlurm;
  if (name == "mpi") return Launcher::kMpi;
  if (name == "pytorch") return Launcher::kPlain;
  return Launcher::kNone;
}

// This machine among those that Lightning's way of starting by hand names: NODE_RANK, MASTER_ADDR
// and MASTER_PORT on each.
Status take_node(const config::TrainerConfig& trainer, dist::LaunchOptions& out) {
  const std::string node = process_variable("NODE_RANK").empty() ? process_variable("GROUP_RANK")
                                                                 : process_variable("NODE_RANK");
  out.num_nodes = static_cast<int>(trainer.num_nodes);
  out.master_addr = process_variable("MASTER_ADDR");
  if (node.empty() || out.master_addr.empty())
    return invalid_argument(str_cat("trainer.num_nodes=", trainer.num_nodes,
                                    ": this machine does not know the others"))
        .with_hint(
            "start with torchrun or srun, or set NODE_RANK, MASTER_ADDR and MASTER_PORT on each "
            "machine");
  const auto number = parse_int64(node, 0, trainer.num_nodes - 1);
  if (!number.ok()) return number.status().with_context("NODE_RANK");
  out.node = static_cast<int>(*number);
  const std::string port = process_variable("MASTER_PORT");
  const auto parsed = parse_int64(port.empty() ? "29500" : port, 1, 65535);
  if (!parsed.ok()) return parsed.status().with_context("MASTER_PORT");
  out.master_port = static_cast<uint16_t>(*parsed);
  return ok_status();
}

}  // namespace

Result<TrainRanks> TrainRanks::find(const RankOptions& options) {
  TrainRanks out;
  out.options_ = options;
  const bool own = process_variable("AERIE_LAUNCHER") == "self";
  if (!options.local_rank.empty() && !process_variable("RANK").empty())
    setenv("LOCAL_RANK", options.local_rank.c_str(), /*overwrite=*/0);
  if (options.launcher != "none" || own) {
    AERIE_ASSIGN_OR_RETURN(out.world_, dist::world_from_environment(launcher_of(options.launcher)));
  }
  if (!out.world_) return out;
  const dist::World& world = *out.world_;
  out.node_task_ = world.launcher == Launcher::kSlurm && world.local_size == 1;
  set_log_rank(world.rank, world.size);
  if (dist::Board* board = dist::Board::inherited(); board != nullptr && world.size == 1)
    board->set_phase(board->own_rank(), dist::Phase::kForward);
  if (!out.node_task_)
    config::set_launched_ranks(
        {.size = world.size, .local_size = world.local_size, .local_rank = world.local_rank});
  return out;
}

bool TrainRanks::quiet() const {
  return world_ && (world_->rank > 0 || world_->launcher == Launcher::kSelf);
}

bool TrainRanks::starts_others(const config::LoopConfig& config) const {
  if (world_ && !node_task_) return false;
  const auto plan = config::plan_devices(config.trainer, config::count_visible_gpus());
  return options_.max_restarts > 0 || (plan.ok() && plan->world_size > 1);
}

Result<std::optional<int>> TrainRanks::launch(const config::LoopConfig& config,
                                              const std::vector<std::string>& args) const {
  if (world_ && !node_task_) return std::optional<int>();
  AERIE_ASSIGN_OR_RETURN(const config::DevicePlan plan,
                         config::plan_devices(config.trainer, config::count_visible_gpus()));
  const auto here = static_cast<int>(plan.ids.size());
  if (node_task_ && (here == 1 || world_->num_nodes != world_->size)) {
    config::set_launched_ranks({.size = world_->size, .local_size = 1, .local_rank = 0});
    AERIE_RETURN_IF_ERROR(
        config::plan_devices(config.trainer, config::count_visible_gpus()).status());
    return std::optional<int>();
  }
  if (plan.world_size == 1 && options_.max_restarts == 0) return std::optional<int>();

  if (!plan.gpu)
    AERIE_RETURN_IF_ERROR(dist::check_ranks_on_cpu(here).with_context("trainer.devices"));
  dist::LaunchOptions launch;
  launch.program = own_program();
  launch.args = {"train"};
  launch.args.insert(launch.args.end(), args.begin(), args.end());
  launch.local_size = here;
  launch.max_restarts = options_.max_restarts;
  if (node_task_) {
    if (config.trainer.num_nodes != world_->num_nodes)
      return invalid_argument(str_cat("trainer.num_nodes is ", config.trainer.num_nodes,
                                      ", SLURM gave ", world_->num_nodes));
    launch.node = world_->node;
    launch.num_nodes = world_->num_nodes;
    launch.master_addr = world_->master_addr;
    launch.master_port = world_->master_port;
  } else if (config.trainer.num_nodes > 1) {
    AERIE_RETURN_IF_ERROR(take_node(config.trainer, launch));
  }
  if (launch.num_nodes > 1 && options_.max_restarts > 0)
    return unsupported("--max-restarts works on one machine; several need a launcher that restarts")
        .with_hint("torchrun --max-restarts, or SLURM's requeue, with resume_if_exists=true");
  log_info("launch", "training in ", plan.world_size,
           plan.world_size == 1 ? " process" : " processes",
           launch.num_nodes > 1 ? str_cat(", ", here, " on this machine") : "",
           plan.gpu ? ", one a GPU" : ", on the CPU");
  AERIE_ASSIGN_OR_RETURN(const int code, dist::launch_ranks(launch));
  return std::optional<int>(code);
}

Result<std::shared_ptr<dist::ProcessGroup>> TrainRanks::join(
    const config::LoopConfig& config) const {
  if (!world_ || world_->size == 1) return std::shared_ptr<dist::ProcessGroup>();
  AERIE_ASSIGN_OR_RETURN(const config::DevicePlan plan,
                         config::plan_devices(config.trainer, config::count_visible_gpus()));
  const config::StrategyConfig& strategy = config.trainer.strategy;
  dist::GroupOptions options;
  options.backend = !strategy.process_group_backend.empty() ? strategy.process_group_backend
                    : plan.gpu                              ? "nccl"
                                                            : "gloo";
  if (options.backend == "nccl") AERIE_RETURN_IF_ERROR(dist::nccl_available());
  options.timeout_s = strategy.timeout_s;
  options.join_timeout_s = std::min(300.0, strategy.timeout_s);
  options.heartbeat_s = config.aerie.dist.heartbeat_s;
  options.gpu_index = plan.gpu ? static_cast<int>(plan.own) : -1;
  auto group = dist::join_ranks(*world_, options);
  if (!group.ok()) {
    dist::write_elastic_error(group.status());
    if (dist::Board* board = dist::Board::inherited(); board != nullptr) {
      // On a console that all ranks share it is said once.
      if (board->ended_for_other(board->own_rank())) {
        log_info("dist", group.status().to_string());
        flush_logs();
        _exit(exit_code_for(group.status().code()));
      }
      board->say_why(board->own_rank());
    }
    return group.status();
  }
  log_info("dist", world_->size, " ranks over ", options.backend, ", started by ",
           dist::launcher_name(world_->launcher),
           world_->num_nodes > 1 ? str_cat(", on ", world_->num_nodes, " machines") : "");
  return group;
}

void TrainRanks::end_badly(dist::ProcessGroup& group, const Status& status) const {
  Status why = status;
  if (const auto loss = group.loss(); loss) {
    dist::report_loss(*loss, *world_);
    why = loss->status;
  } else {
    dist::report_failure(error_text(why));
    group.fail(why);
  }
  dist::write_elastic_error(why);
  flush_logs();
  std::fflush(nullptr);
  _exit(exit_code_for(why.code()));
}

void TrainRanks::requeue(const train::RunResult& result) const {
  if (!result.on_signal || result.signal != SIGUSR1 || !first()) return;
  std::string job = process_variable("SLURM_JOB_ID");
  if (const std::string array = process_variable("SLURM_ARRAY_JOB_ID"); !array.empty())
    job = str_cat(array, "_", process_variable("SLURM_ARRAY_TASK_ID"));
  if (job.empty()) return;
  std::string program = "scontrol", verb = "requeue";
  char* argv[] = {program.data(), verb.data(), job.data(), nullptr};
  pid_t child = 0;
  int status = 0;
  if (posix_spawnp(&child, "scontrol", nullptr, nullptr, argv, environ) == 0 &&
      waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0)
    log_info("launch", "SLURM has job ", job, " in its queue again");
  else
    log_warn("launch", "`scontrol requeue ", job, "` failed; submit the job again to go on");
}

std::string TrainRanks::resume_folder() const {
  return world_ && world_->launcher == Launcher::kSelf && world_->restart_count > 0
             ? process_variable("AERIE_RESUME_FOLDER")
             : std::string();
}

}  // namespace aerie::tools
