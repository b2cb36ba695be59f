#pragma once

#include "aerie/config/schema/optim_config.h"
#include "aerie/optim/optimizer.h"

namespace aerie::optim {

// Of a group that has none of its own.
GroupSettings group_settings(const config::OptimConfig& config);

}  // namespace aerie::optim
