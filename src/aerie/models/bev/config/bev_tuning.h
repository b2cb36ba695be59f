// What `aerie tune` may change of a bird's-eye-view run, in our own keys.
#pragma once

#include "aerie/advisor/tune_space.h"
#include "aerie/models/bev/config/bev_loader.h"

namespace aerie::bev {

advisor::TuneSpace bev_tune_space(const LoadedBevConfig& loaded,
                                  const advisor::TuneMachine& machine);

}  // namespace aerie::bev
