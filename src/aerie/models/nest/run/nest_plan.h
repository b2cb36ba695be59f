// The step that the fast engine would make for a batch, without a model, a device or data.
#pragma once

#include <cstdint>

#include "aerie/base/status.h"
#include "aerie/models/nest/config/nest_config.h"
#include "aerie/models/nest/step/nest_step.h"

namespace aerie::train {

// Of a training batch of so many clips, whose lengths are spread from 0.8 to 1.0 of `seconds` as
// measure() has them. kUnsupported where the configuration needs the reference engine.
Result<kernels::NestStepConfig> plan_step(const config::RunConfig& config, int64_t batch,
                                          double seconds, const kernels::DeviceModel& device);

}  // namespace aerie::train
