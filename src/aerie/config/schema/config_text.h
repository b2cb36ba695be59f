// Effective configurations as text: annotated YAML, JSON, differences.
#pragma once

#include <string>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/config/value.h"

namespace aerie::config {

// Block YAML with the origin of every value as a trailing comment ("nest.yaml:12", "command line",
// "default"). Reading it back gives the same values.
Result<std::string> annotated_yaml(const Value& config);

// {"config": {...}, "origins": {"a.b": "nest.yaml:12:5", ...}}; missing values are "???", numbers
// that JSON lacks (.inf, .nan) strings.
std::string config_json(const Value& config);

struct Difference {
  std::string key;
  const Value* before = nullptr;  // null: the key is only in the second
  const Value* after = nullptr;
};
// Leaves that differ (lists count as leaves), in the order of the first, then of the second.
std::vector<Difference> config_differences(const Value& before, const Value& after);

// "nest.yaml:12", "command line: a=1", "default"
std::string short_origin(const Origin& origin);

}  // namespace aerie::config
