// Paths as data sets take them. Errors say what was expected; the caller adds the key and where it
// was written.
#pragma once

#include "aerie/base/status.h"
#include "aerie/config/value.h"
#include "aerie/data/speech/config/dataset_config.h"

namespace aerie::config {

// A string, a list of strings, a list of lists of strings.
Result<PathList> parse_path_list(const Value& value);

}  // namespace aerie::config
