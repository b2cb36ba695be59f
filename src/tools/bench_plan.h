// `aerie bench step --plan`: what a step chooses, printed without running it.
#pragma once

#include <cstdint>
#include <string>

#include "aerie/base/status.h"
#include "aerie/models/nest/config/run_config.h"

namespace aerie::tools {

struct PlannedCase {
  std::string text, json;
};
// device_model: a name of kernels::device_models(); empty: this machine's GPU, or the first of
// them.
Result<PlannedCase> plan_case(const config::RunConfig& run, int64_t batch, double seconds,
                              const std::string& device_model);

}  // namespace aerie::tools
