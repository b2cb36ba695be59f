#include "aerie/dist/world.h"

#include <algorithm>
#include <cstdlib>

#include "aerie/base/parse.h"
#include "aerie/base/strings.h"

namespace aerie::dist {

namespace {

constexpr int kMaxRanks = 1 << 20;
constexpr uint16_t kDefaultPort = 29500;  // of torch

// Digits alone: no sign, no space.
std::optional<int64_t> whole_number(std::string_view text) {
  if (text.empty() || text.find_first_not_of("0123456789") != std::string_view::npos)
    return std::nullopt;
  const auto parsed = parse_int64(text);
  return parsed.ok() ? std::optional<int64_t>(*parsed) : std::nullopt;
}

// Variables of the environment as numbers, with messages that name them.
class Variables {
 public:
  explicit Variables(const ReadVariable& read) : read_(read) {}

  std::string text(const char* name) const { return read_(name); }
  bool has(const char* name) const { return !read_(name).empty(); }
  // The first of `names` that is set; null: none.
  const char* first(std::initializer_list<const char*> names) const {
    for (const char* name : names)
      if (has(name)) return name;
    return nullptr;
  }
  Result<int> number(const char* name, int lowest, int highest) const {
    const std::string value = read_(name);
    if (value.empty()) return invalid_argument(str_cat("the variable ", name, " is not set"));
    const std::optional<int64_t> parsed = whole_number(value);
    if (!parsed || *parsed < lowest || *parsed > highest)
      return invalid_argument(str_cat("the variable ", name, "='", value, "' is not a number from ",
                                      lowest, " to ", highest));
    return static_cast<int>(*parsed);
  }
  Result<int> number_or(const char* name, int otherwise, int lowest, int highest) const {
    if (name == nullptr || !has(name)) return otherwise;
    return number(name, lowest, highest);
  }

 private:
  const ReadVariable& read_;
};

Status check_world(const World& world) {
  if (world.local_rank >= world.local_size)
    return invalid_argument(str_cat("local rank ", world.local_rank, " is not below the ",
                                    world.local_size, " ranks of this node"));
  if (world.local_size > world.size)
    return invalid_argument(
        str_cat("a node has ", world.local_size, " ranks, all together only ", world.size));
  if (world.node >= world.num_nodes)
    return invalid_argument(
        str_cat("node ", world.node, " is not below the number of nodes, ", world.num_nodes));
  return ok_status();
}

// torchrun, aerie's own launcher and variables set by hand have the same names.
Result<World> torch_world(const Variables& vars, Launcher launcher) {
  World world;
  world.launcher = launcher;
  AERIE_ASSIGN_OR_RETURN(world.size, vars.number("WORLD_SIZE", 1, kMaxRanks));
  AERIE_ASSIGN_OR_RETURN(world.rank, vars.number("RANK", 0, world.size - 1));
  AERIE_ASSIGN_OR_RETURN(
      world.local_size,
      vars.number_or("LOCAL_WORLD_SIZE", vars.has("LOCAL_RANK") ? 0 : world.size, 1, world.size));
  // Without LOCAL_RANK all ranks are taken to be on one host.
  AERIE_ASSIGN_OR_RETURN(world.local_rank,
                         vars.number_or("LOCAL_RANK", world.rank, 0, world.size - 1));
  const char* nodes = vars.first({"GROUP_WORLD_SIZE", "NNODES", "NUM_NODES"});
  const char* node = vars.first({"GROUP_RANK", "NODE_RANK"});
  if (world.local_size == 0) {
    // Hosts alike: what the number of nodes leaves for each; one host when it is not told.
    AERIE_ASSIGN_OR_RETURN(world.num_nodes, vars.number_or(nodes, 1, 1, world.size));
    world.local_size = std::max(world.size / world.num_nodes, world.local_rank + 1);
  }
  AERIE_ASSIGN_OR_RETURN(
      world.num_nodes,
      vars.number_or(nodes, (world.size + world.local_size - 1) / world.local_size, 1, world.size));
  AERIE_ASSIGN_OR_RETURN(
      world.node, vars.number_or(node, std::min(world.rank / world.local_size, world.num_nodes - 1),
                                 0, world.num_nodes - 1));
  world.master_addr = vars.text("MASTER_ADDR");
  if (world.master_addr.empty()) {
    if (world.num_nodes > 1)
      return invalid_argument("the variable MASTER_ADDR is not set")
          .with_hint("the name or address of the host of rank 0");
    world.master_addr = "127.0.0.1";
  }
  AERIE_ASSIGN_OR_RETURN(const int port, vars.number_or("MASTER_PORT", kDefaultPort, 1, 65535));
  world.master_port = static_cast<uint16_t>(port);
  if (launcher == Launcher::kTorchrun) {
    world.agent_store = vars.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
    AERIE_ASSIGN_OR_RETURN(world.restart_count,
                           vars.number_or("TORCHELASTIC_RESTART_COUNT", 0, 0, kMaxRanks));
  }
  if (launcher == Launcher::kSelf) {
    AERIE_ASSIGN_OR_RETURN(world.listen_fd, vars.number_or("AERIE_STORE_FD", -1, 0, 1 << 20));
    AERIE_ASSIGN_OR_RETURN(world.restart_count,
                           vars.number_or("AERIE_RESTART_COUNT", 0, 0, kMaxRanks));
  }
  AERIE_RETURN_IF_ERROR(check_world(world));
  return world;
}

// "4(x2),3" of SLURM_TASKS_PER_NODE: how many tasks node `node` has.
std::optional<int> tasks_of_node(std::string_view list, int node) {
  for (const std::string& part : split(list, ',')) {
    const size_t bracket = part.find("(x");
    const std::optional<int64_t> tasks = whole_number(part.substr(0, bracket));
    int64_t nodes = 1;
    if (bracket != std::string::npos && part.ends_with(')')) {
      const auto repeat = whole_number(part.substr(bracket + 2, part.size() - bracket - 3));
      if (!repeat) return std::nullopt;
      nodes = *repeat;
    }
    if (!tasks || *tasks < 1 || *tasks > kMaxRanks || nodes < 1) return std::nullopt;
    if (node < nodes) return static_cast<int>(*tasks);
    node -= static_cast<int>(nodes);
  }
  return std::nullopt;
}

Result<World> slurm_world(const Variables& vars) {
  World world;
  world.launcher = Launcher::kSlurm;
  const char* tasks = vars.first({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"});
  AERIE_ASSIGN_OR_RETURN(world.size,
                         vars.number(tasks == nullptr ? "SLURM_NTASKS" : tasks, 1, kMaxRanks));
  AERIE_ASSIGN_OR_RETURN(world.rank, vars.number("SLURM_PROCID", 0, world.size - 1));
  AERIE_ASSIGN_OR_RETURN(world.local_rank, vars.number("SLURM_LOCALID", 0, world.size - 1));

  const char* list = vars.first({"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"});
  std::vector<std::string> hosts;
  if (list != nullptr) {
    auto expanded = expand_host_list(vars.text(list));
    if (!expanded.ok()) return expanded.status().with_context(list);
    hosts = std::move(expanded).value();
  }
  const char* nodes = vars.first({"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"});
  const int listed = std::max(1, static_cast<int>(hosts.size()));
  AERIE_ASSIGN_OR_RETURN(world.num_nodes, vars.number_or(nodes, listed, 1, kMaxRanks));
  const char* per_node = vars.first({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  const int even = (world.size + world.num_nodes - 1) / world.num_nodes;
  AERIE_ASSIGN_OR_RETURN(
      world.node, vars.number_or("SLURM_NODEID", std::min(world.rank / even, world.num_nodes - 1),
                                 0, world.num_nodes - 1));
  const std::optional<int> here =
      per_node == nullptr ? std::nullopt : tasks_of_node(vars.text(per_node), world.node);
  world.local_size = std::max(here.value_or(even), world.local_rank + 1);

  // As Lightning: the first host of the list, a port made of the last digits of the job's number;
  // MASTER_ADDR and MASTER_PORT go before both.
  world.master_addr = vars.text("MASTER_ADDR");
  if (world.master_addr.empty()) {
    if (!hosts.empty())
      world.master_addr = hosts.front();
    else if (world.num_nodes == 1)
      world.master_addr = "127.0.0.1";
    else
      return invalid_argument("neither SLURM_NODELIST nor MASTER_ADDR is set");
  }
  int port = 12910;
  const char* job = vars.first({"SLURM_JOB_ID", "SLURM_JOBID"});
  if (job != nullptr) {
    const std::string id = vars.text(job);
    const auto digits = whole_number(id.substr(id.size() - std::min<size_t>(4, id.size())));
    if (!digits)
      return invalid_argument(str_cat("the variable ", job, "='", id, "' is not a number"));
    port = 15000 + static_cast<int>(*digits);
  }
  AERIE_ASSIGN_OR_RETURN(port, vars.number_or("MASTER_PORT", port, 1, 65535));
  world.master_port = static_cast<uint16_t>(port);
  AERIE_ASSIGN_OR_RETURN(world.restart_count,
                         vars.number_or("SLURM_RESTART_COUNT", 0, 0, kMaxRanks));
  AERIE_RETURN_IF_ERROR(check_world(world));
  return world;
}

struct MpiNames {
  const char *rank, *size, *local_rank, *local_size;
};
constexpr MpiNames kMpiNames[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
};

const MpiNames* mpi_names(const Variables& vars) {
  for (const MpiNames& names : kMpiNames)
    if (vars.has(names.rank) && vars.has(names.size)) return &names;
  return nullptr;
}

Result<World> mpi_world(const Variables& vars, const MpiNames& names) {
  World world;
  world.launcher = Launcher::kMpi;
  AERIE_ASSIGN_OR_RETURN(world.size, vars.number(names.size, 1, kMaxRanks));
  AERIE_ASSIGN_OR_RETURN(world.rank, vars.number(names.rank, 0, world.size - 1));
  AERIE_ASSIGN_OR_RETURN(world.local_rank,
                         vars.number_or(names.local_rank, world.rank, 0, world.size - 1));
  AERIE_ASSIGN_OR_RETURN(
      world.local_size,
      vars.number_or(names.local_size, std::max(world.size, world.local_rank + 1), 1, world.size));
  world.num_nodes = (world.size + world.local_size - 1) / world.local_size;
  world.node = std::min(world.rank / world.local_size, world.num_nodes - 1);
  world.master_addr = vars.text("MASTER_ADDR");
  if (world.master_addr.empty()) {
    if (world.num_nodes > 1)
      return invalid_argument("ranks on several hosts under MPI need the variable MASTER_ADDR")
          .with_hint("mpirun -x MASTER_ADDR=<host of rank 0> ...");
    world.master_addr = "127.0.0.1";
  }
  AERIE_ASSIGN_OR_RETURN(const int port, vars.number_or("MASTER_PORT", kDefaultPort, 1, 65535));
  world.master_port = static_cast<uint16_t>(port);
  AERIE_RETURN_IF_ERROR(check_world(world));
  return world;
}

// A shell inside an allocation has SLURM's variables too, and is no task of a job.
bool slurm_shell(const Variables& vars) {
  const std::string name = vars.text("SLURM_JOB_NAME");
  return name == "bash" || name == "interactive";
}

Result<std::optional<World>> as_optional(Result<World> world) {
  if (!world.ok()) return world.status();
  return std::optional<World>(std::move(world).value());
}

}  // namespace

const char* launcher_name(Launcher launcher) {
  switch (launcher) {
    case Launcher::kNone:
      return "none";
    case Launcher::kSelf:
      return "aerie";
    case Launcher::kTorchrun:
      return "torchrun";
    case Launcher::kSlurm:
      return "SLURM";
    case Launcher::kPlain:
      return "environment variables";
    case Launcher::kMpi:
      return "MPI";
  }
  return "unknown";
}

std::string process_variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

Result<std::optional<World>> world_from_environment(Launcher launcher,
                                                    const ReadVariable& variable) {
  const Variables vars(variable);
  const bool ranked = vars.has("RANK") || vars.has("WORLD_SIZE");
  if (vars.text("AERIE_LAUNCHER") == "self" && ranked)
    return as_optional(torch_world(vars, Launcher::kSelf));
  const bool any = launcher == Launcher::kNone;
  if (launcher == Launcher::kTorchrun || launcher == Launcher::kPlain || (any && ranked)) {
    if (!vars.has("RANK") || !vars.has("WORLD_SIZE"))
      return invalid_argument(str_cat("the variable ", vars.has("RANK") ? "WORLD_SIZE" : "RANK",
                                      " is not set",
                                      ranked ? ", but the other of RANK and WORLD_SIZE is" : ""))
          .with_hint(
              "start with torchrun --no-python, or set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR "
              "and MASTER_PORT for every rank; unset them for a run on its own");
    const bool elastic = vars.has("TORCHELASTIC_RUN_ID");
    return as_optional(torch_world(vars, elastic ? Launcher::kTorchrun : Launcher::kPlain));
  }
  if (launcher == Launcher::kSlurm && !vars.has("SLURM_PROCID"))
    return invalid_argument("the variable SLURM_PROCID is not set")
        .with_hint("start with srun, a task a rank or a task a machine, or by another way");
  if (launcher == Launcher::kSlurm ||
      (any && vars.has("SLURM_PROCID") && vars.has("SLURM_LOCALID") &&
       vars.first({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}) != nullptr && !slurm_shell(vars)))
    return as_optional(slurm_world(vars));
  const MpiNames* mpi = mpi_names(vars);
  if (launcher == Launcher::kMpi && mpi == nullptr)
    return invalid_argument("no variables of mpirun are set")
        .with_hint("Open MPI, MVAPICH and MPICH are known; start with mpirun, or by another way");
  if (mpi != nullptr && (any || launcher == Launcher::kMpi))
    return as_optional(mpi_world(vars, *mpi));
  return std::optional<World>();
}

Result<std::vector<std::string>> expand_host_list(std::string_view list) {
  constexpr size_t kMaxHosts = 1 << 17;
  const auto wrong = [&](const char* why) {
    return invalid_argument(str_cat("the list of hosts '", list, "' cannot be read: ", why));
  };
  // Commas outside of brackets separate entries.
  std::vector<std::string> entries(1);
  int depth = 0;
  for (const char c : list) {
    if (c == '[' && ++depth > 1) return wrong("a bracket in a bracket");
    if (c == ']' && --depth < 0) return wrong("']' without '['");
    if (c == ',' && depth == 0)
      entries.emplace_back();
    else
      entries.back() += c;
  }
  if (depth != 0) return wrong("'[' without ']'");

  std::vector<std::string> hosts;
  for (const std::string& entry : entries) {
    if (entry.empty()) return wrong("an empty name");
    std::vector<std::string> names{""};
    for (size_t at = 0; at < entry.size();) {
      if (entry[at] != '[') {
        for (std::string& name : names) name += entry[at];
        ++at;
        continue;
      }
      const size_t end = entry.find(']', at);
      std::vector<std::string> numbers;
      for (const std::string& range : split(entry.substr(at + 1, end - at - 1), ',')) {
        const size_t dash = range.find('-');
        const std::string low = range.substr(0, dash);
        const std::string high = dash == std::string::npos ? low : range.substr(dash + 1);
        const auto first = whole_number(low), last = whole_number(high);
        if (!first || !last) return wrong("a range that is not of numbers");
        if (*last < *first) return wrong("a range that runs backwards");
        if (static_cast<uint64_t>(*last - *first) >= kMaxHosts) return wrong("too many hosts");
        for (int64_t number = *first; number <= *last; ++number) {
          std::string digits = std::to_string(number);
          if (digits.size() < low.size()) digits.insert(0, low.size() - digits.size(), '0');
          numbers.push_back(std::move(digits));
        }
      }
      if (names.size() * numbers.size() > kMaxHosts) return wrong("too many hosts");
      std::vector<std::string> longer;
      for (const std::string& name : names)
        for (const std::string& number : numbers) longer.push_back(name + number);
      names = std::move(longer);
      at = end + 1;
    }
    if (hosts.size() + names.size() > kMaxHosts) return wrong("too many hosts");
    hosts.insert(hosts.end(), names.begin(), names.end());
  }
  return hosts;
}

}  // namespace aerie::dist
