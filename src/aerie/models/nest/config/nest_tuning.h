// What `aerie tune` may change of a NEST run.
#pragma once

#include "aerie/advisor/tune_space.h"
#include "aerie/models/nest/config/nest_config.h"

namespace aerie::config {

advisor::TuneSpace nest_tune_space(const RunConfig& run, const advisor::TuneMachine& machine);

}  // namespace aerie::config
