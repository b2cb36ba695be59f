// Which operations a training step runs in which precision: not what the configuration asks for,
// but what a step that is run and watched does.
#pragma once

#include <string>

#include "aerie/base/status.h"
#include "aerie/models/bev/config/run_config.h"

namespace aerie::bev {

// Runs one step of one sample without data. On a CPU pictures and grid are smaller: which
// operations run does not depend on it, and float16 is slow there.
Result<std::string> precision_table(const BevRunConfig& run, bool gpu, int64_t gpu_index = 0);

}  // namespace aerie::bev
