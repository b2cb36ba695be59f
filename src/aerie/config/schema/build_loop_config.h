// From a resolved, validated tree to what the training loop reads.
#pragma once

#include <vector>

#include "aerie/base/status.h"
#include "aerie/config/schema/loop_config.h"
#include "aerie/config/schema/node_reader.h"
#include "aerie/config/schema/optim_config.h"
#include "aerie/config/value.h"

namespace aerie::config {

// `resolved` has passed validate() without errors; a value of a wrong type is reported all the
// same. `???` is left at the struct's default.
Result<LoopConfig> build_loop_config(const Value& resolved);

// The same for a family that reads more of the tree with the same reader, whose status tells the
// first error.
void build_loop_config(const NodeReader& root, LoopConfig& out);

// `model.optim` and `model.optim_param_groups`.
void build_optim(const NodeReader& model, const TrainerConfig& trainer, OptimConfig& optim,
                 std::vector<ParamGroupConfig>& groups);

}  // namespace aerie::config
