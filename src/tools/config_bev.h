// `aerie config` for configurations of bird's-eye-view models.
#pragma once

#include <string>
#include <vector>

#include "aerie/base/status.h"

namespace aerie::tools {

// Whether the arguments of `aerie config` are about such a configuration.
bool is_bev_config_command(const std::vector<std::string>& args);
Status run_bev_config(const std::vector<std::string>& args);

}  // namespace aerie::tools
