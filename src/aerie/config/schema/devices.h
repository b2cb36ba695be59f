// Which devices a run uses: one process (rank) a device.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/config/schema/trainer_config.h"

namespace aerie::config {

struct DevicePlan {
  bool gpu = false;
  std::vector<int64_t> ids;  // of the GPUs used on this machine, a rank each; zeros on the CPU
  int64_t own = 0;           // the one of this process
  int64_t world_size = 1;    // over all nodes
};

// Processes that somebody started for this run (torchrun, SLURM, aerie itself), this one of them.
struct LaunchedRanks {
  int64_t size = 1;  // over all nodes
  int64_t local_size = 1, local_rank = 0;
};
// Told once, before a configuration is opened; everything below follows it.
void set_launched_ranks(const LaunchedRanks& ranks);
const std::optional<LaunchedRanks>& launched_ranks();

// What accelerator, devices and num_nodes mean on a machine that shows `num_gpus` GPUs. Fails where
// they ask for what is not there, or for another number of processes than were started.
Result<DevicePlan> plan_devices(const TrainerConfig& trainer, int num_gpus,
                                const std::optional<LaunchedRanks>& launched = launched_ranks());

// GPUs that the driver shows to this process.
int count_visible_gpus();

}  // namespace aerie::config
