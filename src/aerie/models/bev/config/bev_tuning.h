// What `aerie tune` may change of a bird's-eye-view run, in our own keys.
#pragma once

#include <string>
#include <vector>

#include "aerie/advisor/tune_space.h"
#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/models/bev/config/bev_loader.h"

namespace aerie::bev {

advisor::TuneSpace bev_tune_space(const LoadedBevConfig& loaded,
                                  const advisor::TuneMachine& machine);

// The arguments of a command with the change of a batch behind them, under the name that the batch
// has in the file: our own, or one of mm's two.
Result<std::vector<std::string>> with_batch(Env& env, const std::vector<std::string>& args,
                                            const std::vector<std::string>& changes);

}  // namespace aerie::bev
