// Configurations of BEVFusion: YAML that inherits from its folders (torchpack), with Python
// expressions in ${...}.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/config/value.h"

namespace aerie::config::mm {

struct TorchpackFile {
  Value config;                    // a map; ${...} not yet evaluated
  std::vector<std::string> files;  // in order of merging
};

// `path` and before it every default.yaml of the folders above, the outermost first. Maps merge,
// everything else is replaced.
Result<TorchpackFile> load_torchpack(Env& env, const std::string& path);

// --model.a.b V: Python literals are values, everything else is text.
Status apply_torchpack_changes(const std::vector<std::pair<std::string, std::string>>& changes,
                               Value& config);

// Texts that are ${expression} as a whole become its value: names of the top level, keys of maps
// behind a dot, indexes, lists, arithmetic and `+` of texts; nothing else, and nothing is run.
// `names_read` collects the names that were used.
Status evaluate_expressions(Value& config, std::set<std::string>& names_read);

}  // namespace aerie::config::mm
