// Merging beyond merge() of value.h: with the rules of overrides, and below what is there.
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

// Adds what `into` lacks, below maps also deeply; never changes a value that is there, but a null
// where the defaults have a map counts as an empty map.
void fill_defaults(Value& into, const Value& defaults);

}  // namespace aerie::config
