// `--kind nest|nuscenes` of `aerie data` and `aerie bench data`.
#pragma once

#include <string>
#include <vector>

#include "aerie/base/status.h"

namespace aerie::tools {

enum class DataKind { kNest, kNuscenes };

// Takes --kind out of `args`; nest where it is not given. Kinds have options of their own, so this
// comes before they are parsed.
Result<DataKind> take_kind(std::vector<std::string>& args);

}  // namespace aerie::tools
