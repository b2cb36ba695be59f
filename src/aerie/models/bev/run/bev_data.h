// The data sets of a bird's-eye-view run as the loop's sources. No torch here.
#pragma once

#include <cstdint>
#include <memory>

#include "aerie/base/status.h"
#include "aerie/data/nuscenes/nuscenes_dataset.h"
#include "aerie/models/bev/config/run_config.h"
#include "aerie/train/job.h"

namespace aerie::bev {

// Opens tables and maps; starts the loaders. Errors name the node.
// `evaluated`, where it is not null: the data set of the evaluation, or null where there is none.
Result<train::JobData> open_bev_data(
    const BevRunConfig& run, const train::DataOptions& options,
    std::shared_ptr<const nuscenes::NuscenesDataset>* evaluated = nullptr);

}  // namespace aerie::bev
