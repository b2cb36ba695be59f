#include "aerie/config/schema/devices.h"

#include <algorithm>

#include "aerie/base/strings.h"
#include "aerie/device/gpu.h"

namespace aerie::config {

namespace {

std::optional<LaunchedRanks>& told_ranks() {
  static std::optional<LaunchedRanks> ranks;
  return ranks;
}

std::string gpus_there(int64_t count) {
  return count == 1 ? "there is 1" : str_cat("there are ", count);
}

// NCCL cannot reduce between two ranks on one GPU; Gloo, through the host, can.
Status check_ids(const TrainerConfig& trainer, bool gpu, int64_t num_gpus) {
  const std::vector<int64_t>& ids = trainer.devices.ids;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (gpu && ids[i] >= num_gpus)
      return invalid_argument(
          str_cat("trainer.devices names GPU ", ids[i], ", ",
                  num_gpus == 1 ? "there is only GPU 0" : gpus_there(num_gpus)));
    if (std::find(ids.begin(), ids.begin() + static_cast<int64_t>(i), ids[i]) !=
            ids.begin() + static_cast<int64_t>(i) &&
        trainer.strategy.process_group_backend != "gloo")
      return invalid_argument(str_cat("device ", ids[i], " is listed twice"))
          .with_hint("two processes on one device need process_group_backend gloo");
  }
  return ok_status();
}

Status check_launched(const DevicesConfig& devices, int64_t count, int64_t num_nodes,
                      const LaunchedRanks& launched) {
  const bool any =
      devices.kind == DevicesConfig::Kind::kAuto || devices.kind == DevicesConfig::Kind::kAll;
  if (any || count * num_nodes == launched.size) return ok_status();
  return invalid_argument(str_cat("trainer.devices and trainer.num_nodes ask for ",
                                  count * num_nodes, " processes, ", launched.size,
                                  launched.size == 1 ? " was" : " were", " started"))
      .with_hint("trainer.devices=auto follows the launcher");
}

}  // namespace

void set_launched_ranks(const LaunchedRanks& ranks) {
  told_ranks() = ranks;
}

const std::optional<LaunchedRanks>& launched_ranks() {
  return told_ranks();
}

Result<DevicePlan> plan_devices(const TrainerConfig& trainer, int num_gpus,
                                const std::optional<LaunchedRanks>& launched) {
  DevicePlan plan;
  plan.gpu = trainer.accelerator == Accelerator::kGpu ||
             (trainer.accelerator == Accelerator::kAuto && num_gpus > 0);
  if (plan.gpu && num_gpus == 0)
    return invalid_argument("trainer.accelerator asks for a GPU and there is none")
        .with_hint("set trainer.accelerator=auto or cpu");
  const DevicesConfig& devices = trainer.devices;
  // Launchers such as SLURM can show each process a GPU of its own as the only one.
  const bool bound = launched && plan.gpu && num_gpus == 1 && launched->local_size > 1;
  int64_t count = 1;
  switch (devices.kind) {
    case DevicesConfig::Kind::kAuto:
    case DevicesConfig::Kind::kAll:
      count = launched ? launched->local_size : plan.gpu ? num_gpus : 1;
      break;
    case DevicesConfig::Kind::kCount:
      count = devices.count;
      break;
    case DevicesConfig::Kind::kIds:
      count = static_cast<int64_t>(devices.ids.size());
      if (!bound) AERIE_RETURN_IF_ERROR(check_ids(trainer, plan.gpu, num_gpus));
      break;
  }
  if (plan.gpu && !bound && devices.kind != DevicesConfig::Kind::kIds && count > num_gpus)
    return invalid_argument(
        str_cat("trainer.devices asks for ", count, " GPUs, ", gpus_there(num_gpus)));
  if (launched) AERIE_RETURN_IF_ERROR(check_launched(devices, count, trainer.num_nodes, *launched));

  for (int64_t i = 0; i < count; ++i)
    plan.ids.push_back(!plan.gpu || bound                          ? 0
                       : devices.kind == DevicesConfig::Kind::kIds ? devices.ids[i]
                                                                   : i);
  plan.world_size = launched ? launched->size : count * trainer.num_nodes;
  const int64_t local_rank = launched ? launched->local_rank : 0;
  if (local_rank >= count)
    return invalid_argument(str_cat("this is process ", local_rank, " of this machine (from 0), ",
                                    "trainer.devices asks for ", count));
  plan.own = plan.ids[local_rank];
  return plan;
}

int count_visible_gpus() {
  return static_cast<int>(device::driver().gpus.size());
}

}  // namespace aerie::config
