#include "aerie/config/schema/devices.h"

#include "aerie/base/strings.h"
#include "aerie/device/gpu.h"

namespace aerie::config {

Result<DevicePlan> plan_devices(const TrainerConfig& trainer, int num_gpus) {
  DevicePlan plan;
  plan.gpu = trainer.accelerator == Accelerator::kGpu ||
             (trainer.accelerator == Accelerator::kAuto && num_gpus > 0);
  if (plan.gpu && num_gpus == 0)
    return invalid_argument("trainer.accelerator asks for a GPU and there is none")
        .with_hint("set trainer.accelerator=auto or cpu");
  const DevicesConfig& devices = trainer.devices;
  const int64_t available = plan.gpu ? num_gpus : 1;
  int64_t count = 1;
  switch (devices.kind) {
    case DevicesConfig::Kind::kAuto:
    case DevicesConfig::Kind::kAll:
      plan.idle_gpus = available - 1;
      break;
    case DevicesConfig::Kind::kCount:
      count = devices.count;
      if (plan.gpu && count > available)
        return invalid_argument(str_cat("trainer.devices asks for ", count, " GPUs, there ",
                                        available == 1 ? "is 1" : str_cat("are ", available)));
      break;
    case DevicesConfig::Kind::kIds:
      count = static_cast<int64_t>(devices.ids.size());
      for (const int64_t id : devices.ids)
        if (plan.gpu && id >= available)
          return invalid_argument(
              str_cat("trainer.devices names GPU ", id, ", there ",
                      available == 1 ? "is only GPU 0" : str_cat("are ", available)));
      if (plan.gpu) plan.ids = devices.ids;
      break;
  }
  if (plan.ids.empty())
    for (int64_t id = 0; id < (plan.gpu ? count : 1); ++id) plan.ids.push_back(id);
  plan.world_size = count * trainer.num_nodes;
  return plan;
}

int count_visible_gpus() {
  return static_cast<int>(device::driver().gpus.size());
}

}  // namespace aerie::config
