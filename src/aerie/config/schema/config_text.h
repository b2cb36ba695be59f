// Effective configurations as text: annotated YAML, JSON, differences.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/config/schema/effect.h"
#include "aerie/config/value.h"

namespace aerie::config {

// Block YAML with the origin of every value as a trailing comment ("nest.yaml:12", "command line",
// "default"), and why it has no effect where it has none. Reading it back gives the same values.
Result<std::string> annotated_yaml(const Value& config,
                                   const std::map<std::string, IdleKey>& idle = {});

// {"config": {...}, "origins": {"a.b": "nest.yaml:12:5", ...}, "no_effect": {"a.b": "one device"}};
// missing values are "???", numbers that JSON lacks (.inf, .nan) strings.
std::string config_json(const Value& config, const std::map<std::string, IdleKey>& idle = {});

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
