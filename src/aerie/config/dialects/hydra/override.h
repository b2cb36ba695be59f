// Hydra's command-line overrides: `a.b=1`, `+a.b=[1,2]`, `++a={k: v}`, `~a`, `group=option`,
// `group@package=option`. Values are typed by Hydra's grammar, not by YAML's: `012`, `yes` and
// `1:30` stay strings.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "aerie/base/status.h"
#include "aerie/config/value.h"

namespace aerie::config {

struct Override {
  enum class Kind { kChange, kAdd, kForceAdd, kDelete };
  Kind kind = Kind::kChange;
  std::string key;                     // key path, or group ("db", "hydra/launcher")
  std::optional<std::string> package;  // after `@`
  std::optional<Value> value;          // none: `~key`
  std::string text;                    // as typed

  bool is_group() const { return key.find('/') != std::string::npos || package.has_value(); }
};

// A sweep (`a=1,2`, `a=choice(...)`) is an error: only one run at a time is made.
Result<Override> parse_override(std::string_view text);

// Applies one value override. With `struct_mode` a plain `a.b=v` needs `a.b` to exist. Messages
// carry what Hydra's carry, and the nearest existing name.
Status apply_override(Value& config, const Override& override, bool struct_mode = true);

}  // namespace aerie::config
