// The data sets of a bird's-eye-view run as the loop's sources. No torch here.
#pragma once

#include "aerie/base/status.h"
#include "aerie/models/bev/config/run_config.h"
#include "aerie/train/job.h"

namespace aerie::bev {

// Opens tables and maps; starts the loaders. Errors name the node.
Result<train::JobData> open_bev_data(const BevRunConfig& run, const train::DataOptions& options);

}  // namespace aerie::bev
