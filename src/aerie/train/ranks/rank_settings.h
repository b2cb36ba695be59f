// What a configuration says about training with other ranks.
#pragma once

#include "aerie/base/status.h"
#include "aerie/config/schema/aerie_config.h"
#include "aerie/config/schema/optim_config.h"
#include "aerie/config/schema/trainer_config.h"
#include "aerie/train/ranks/engine_ranks.h"

namespace aerie::train {

// `autograd`: as RankSettings has it. `world`: the number of ranks; one alone neither exchanges
// statistics nor takes over buffers. Refuses what cannot be done together.
Result<RankSettings> rank_settings(const config::TrainerConfig& trainer,
                                   const config::AerieConfig& aerie,
                                   config::OptimizerKind optimizer, bool autograd, int world);

}  // namespace aerie::train
