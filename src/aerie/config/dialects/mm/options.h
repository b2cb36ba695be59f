// `--options a.b=1 c=[x,y]` (also --cfg-options): changes of a configuration on the command line,
// by mmcv's grammar.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/config/value.h"

namespace aerie::config::mm {

// A whole number, a float, true or false in any case, None; `a,b` and `[a,b]` a list, `(a,b)` a
// tuple, inside each other as well; anything else is text. Blanks and outer quotes are dropped.
Result<Value> parse_option_value(std::string_view text);

// KEY=VALUE each. Keys are dotted; digits are indexes of lists; parents that are absent are made.
Status apply_options(const std::vector<std::string>& options, Value& config);

}  // namespace aerie::config::mm
