// `aerie data synth --kind nuscenes`.
#pragma once

#include <string>
#include <vector>

#include "aerie/base/status.h"

namespace aerie::tools {

Status run_data_synth_nuscenes(const std::vector<std::string>& args);

}  // namespace aerie::tools
