// A bird's-eye-view run as a training job. No torch here: commands include this.
#pragma once

#include <memory>

#include "aerie/models/bev/config/bev_loader.h"
#include "aerie/train/job.h"

namespace aerie::bev {

// `config` outlives the job.
std::unique_ptr<train::Job> make_bev_job(const LoadedBevConfig& config);

}  // namespace aerie::bev
