// What a YAML scalar's text means: PyYAML's implicit types (YAML 1.1) and, for reading, OmegaConf's
// changes to them. Internal to the YAML reader and writer.
#pragma once

#include <string>
#include <string_view>

#include "aerie/base/status.h"
#include "aerie/config/value.h"

namespace aerie::config {

enum class ScalarType {
  kString,
  kNull,
  kBool,
  kInt,
  kFloat,
  kMerge,       // <<
  kDefaultKey,  // =
  kTimestamp,
};

// As OmegaConf's loader types an unquoted scalar: floats like 1e5, no timestamps.
ScalarType type_when_read(std::string_view text);
// As PyYAML's own resolver types it, which is what its dumper quotes against.
ScalarType type_when_written(std::string_view text);

// The value of a scalar of that type; fails where PyYAML's constructor does (`0b_`, `!!int x`), and
// on numbers to the base 60 beyond 64 bits.
Result<Value> make_bool(std::string_view text);
Result<Value> make_int(std::string_view text);
Result<Value> make_float(std::string_view text);

// Whether Python's int() or float() would take the text; OmegaConf quotes such strings.
bool python_takes_as_number(std::string_view text);
// Python's float(): decimal, exponent, inf, infinity, nan, underscores between digits, blanks
// around.
std::optional<double> python_float(std::string_view text);

}  // namespace aerie::config
