// Merging with the rules that overrides need beyond merge() of value.h. Internal to config.
#pragma once

#include <string>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/config/value.h"

namespace aerie::config {

// Merges `source` into the node at `path` of `root` (which exists). With `struct_mode` a key that
// is not there is a kNotFound error ("Key 'z' is not in struct"), and `missing` is its path.
Status merge_at(Value& root, const std::vector<std::string>& path, const Value& source,
                bool struct_mode, std::vector<std::string>& missing);

}  // namespace aerie::config
