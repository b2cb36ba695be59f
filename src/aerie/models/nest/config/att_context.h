// model.encoder.att_context_size. Errors say what was expected; the caller adds the key and where
// it was written.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/config/value.h"

namespace aerie::config {

// [-1, -1] or [[a, b], ...].
Result<std::vector<std::array<int64_t, 2>>> parse_att_context(const Value& value);

}  // namespace aerie::config
