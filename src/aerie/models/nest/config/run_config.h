// From a resolved, validated tree to the plain structs of nest_config.h.
#pragma once

#include <string>
#include <string_view>

#include "aerie/base/status.h"
#include "aerie/config/value.h"
#include "aerie/models/nest/config/nest_config.h"

namespace aerie::config {

// `resolved` has passed validate() without errors; a value of a wrong type is reported all the
// same.
// `???` is left at the struct's default (PathList says is_missing).
Result<RunConfig> build_run_config(const Value& resolved);

// NeMo's metric prefix of a validation or test set: the file's stem (or the name itself when it is
// no path), '-' to '_', without "manifest" and "dataset", ending in '_'. Empty when nothing is
// left, which NeMo refuses.
std::string dataset_metric_name(std::string_view manifest_or_name);

}  // namespace aerie::config
