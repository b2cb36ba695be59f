// From a resolved, validated tree to the plain structs of nest_config.h.
#pragma once

#include "aerie/base/status.h"
#include "aerie/config/value.h"
#include "aerie/models/nest/config/nest_config.h"

namespace aerie::config {

// `resolved` has passed validate() without errors; a value of a wrong type is reported all the
// same.
// `???` is left at the struct's default (PathList says is_missing).
Result<RunConfig> build_run_config(const Value& resolved);

}  // namespace aerie::config
