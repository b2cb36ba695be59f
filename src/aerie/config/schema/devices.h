// Which devices a run uses.
#pragma once

#include <cstdint>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/config/schema/trainer_config.h"

namespace aerie::config {

struct DevicePlan {
  bool gpu = false;
  std::vector<int64_t> ids;  // of the GPUs used on this machine, in order; {0} on the CPU
  int64_t world_size = 1;    // over all nodes
  int64_t idle_gpus = 0;     // that "all" would take once several devices can train together
};

// What accelerator, devices and num_nodes mean on a machine that shows `num_gpus` GPUs. Fails where
// they ask for what is not there. "All" GPUs are one until several can train together; an explicit
// number above one is planned here and refused by callers.
Result<DevicePlan> plan_devices(const TrainerConfig& trainer, int num_gpus);

// GPUs that the driver shows to this process.
int count_visible_gpus();

}  // namespace aerie::config
