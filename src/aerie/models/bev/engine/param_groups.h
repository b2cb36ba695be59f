// Which parameters share a learning rate and a weight decay: mmcv's paramwise_cfg over the names of
// a model.
#pragma once

#include <vector>

#include "aerie/models/bev/config/run_config.h"
#include "aerie/nn/param_registry.h"
#include "aerie/optim/optimizer.h"

namespace aerie::bev {

// One group for every pair of multipliers that occurs, those without any first. mmcv makes a group
// of every parameter; the updates are the same.
std::vector<optim::OptimizerGroup> parameter_groups(const nn::ParameterRegistry& registry,
                                                    const BevOptimConfig& config);

// Names of the parameters that the model never decays (undecayed_parameters()), but for those whose
// custom key has a decay_mult.
std::vector<std::string> undecayed_names(const nn::ParameterRegistry& registry,
                                         const BevOptimConfig& config);

}  // namespace aerie::bev
