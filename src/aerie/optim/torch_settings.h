// Settings of a parameter group under torch's names.
#pragma once

#include "aerie/config/schema/optim_config.h"
#include "aerie/config/value.h"
#include "aerie/optim/optimizer.h"

namespace aerie::optim {

// As torch's optimizer of this kind keeps them, in its order; without lr, initial_lr and params.
config::Map torch_settings(config::OptimizerKind kind, const GroupSettings& settings);

}  // namespace aerie::optim
