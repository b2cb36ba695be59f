// How many steps the schedule of a NEST run counts on.
#pragma once

#include <cstdint>
#include <optional>

#include "aerie/models/nest/config/nest_config.h"
#include "aerie/train/cadence.h"

namespace aerie::train {

// The M of the schedules: trainer.max_steps, else sched.max_steps, else what the epochs give.
// `planned`: of the whole run as far as steps and epochs bound it.
std::optional<int64_t> schedule_steps(const config::RunConfig& run, std::optional<int64_t> planned);
std::optional<int64_t> schedule_steps(const config::RunConfig& run, const Cadence& cadence);

}  // namespace aerie::train
