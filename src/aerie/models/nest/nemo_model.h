// Configurations of models as archives carry them, and initial weights for a run (init_from_*).
#pragma once

#include <string>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/checkpoint/state_dict.h"
#include "aerie/config/value.h"
#include "aerie/models/nest/config/nest_config.h"

namespace aerie::ckpt {

// The ModelConfig of a resolved `model` node that stands alone.
Result<config::ModelConfig> model_config_of(const config::Value& model_node);

// init_from_nemo_model / init_from_ptl_ckpt: loads what fits by name. String form: all names;
// mapping form: per source include/exclude. One report per source.
Result<std::vector<LoadReport>> initialize_from(Env& env, const config::InitFromConfig& init,
                                                nn::ParameterRegistry& registry);

}  // namespace aerie::ckpt
