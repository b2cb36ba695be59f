// One way from a command line to the configuration of a NEST run, used by `aerie train`, `aerie
// config` and every other command that takes a config: checked (checked_config.h) against NEST's
// schema and put into structs.
#pragma once

#include <string>

#include "aerie/base/status.h"
#include "aerie/config/dialects/hydra/checked_config.h"
#include "aerie/models/nest/config/nest_config.h"

namespace aerie::config {

// model_config.yaml is the `model` node of `resolved`.
struct LoadedConfig : CheckedConfig {
  RunConfig run;  // with keep_errors: filled in when there are none
};

Result<LoadedConfig> load_run_config(const ConfigArgs& args, const LoadOptions& options = {});

// What `--cfg job [--resolve]` prints; validates nothing, as in Hydra.
Result<std::string> job_config_text(const ConfigArgs& args);

}  // namespace aerie::config
