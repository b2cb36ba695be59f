// Functions in the value of an override: str(), int(), float(), bool(), sort(). Internal to config.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/config/value.h"

namespace aerie::config {

struct FunctionCall {
  std::string name;
  std::vector<Value> arguments;
  std::vector<std::pair<std::string, Value>> named;
};

// kUnsupported for what makes a sweep (choice, range, ...), kInvalidArgument for everything wrong.
Result<Value> evaluate_function(const FunctionCall& call);

}  // namespace aerie::config
