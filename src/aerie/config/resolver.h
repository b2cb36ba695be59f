// Interpolation: `${a.b}`, `${.sibling}`, `${..uncle}`, `${a.${b}}`, `x_${a}_y`,
// `${oc.env:HOME,x}`.
//
// Values are resolved when asked for; an interpolation that is the whole value keeps the type of
// what it names (also maps and lists), one inside text becomes text. Resolvers: oc.env, oc.select,
// oc.decode, oc.create, oc.dict.keys, oc.dict.values, oc.deprecated, Hydra's now, and NeMo's
// multiply, sum, gpu_name. Nothing here changes the tree. Errors are kInvalidArgument and name the
// key and where the interpolation is written; cycles name their chain.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/config/value.h"

namespace aerie::config {

struct ResolveOptions {
  // Looks up an environment variable; unset: the process environment.
  std::function<std::optional<std::string>(const std::string&)> env;
  // What gpu_name answers; unset: "cpu".
  std::function<std::string()> gpu_name;
  // Receives notes of oc.deprecated; unset: dropped.
  std::function<void(const std::string&)> warn;
  // Collects the full key of every node that an interpolation reads.
  std::set<std::string>* reads = nullptr;
  // Interpolations that read the environment, themselves or through others, stay as they are
  // written: for files that must not give away what the environment holds.
  bool keep_env = false;
  // A variable that is not set (and has no default) gives `???` instead of an error: for files
  // written with keep_env that are read where the variable is not known.
  bool unset_env_is_missing = false;
  // Values and text produced in all, against expansion bombs.
  size_t max_nodes = 500'000;
  size_t max_text_bytes = 64u << 20;
};

// The node at `path` with every interpolation on the way and below resolved. kNotFound when it does
// not exist; a `???` on the way or at the end is an error ("Missing mandatory value: a.b").
Result<Value> resolve_at(const Value& root, std::string_view path,
                         const ResolveOptions& options = {});

// The whole tree without interpolations; `???` stays unless an interpolation reads it. A resolved
// value keeps the origin of the interpolation.
Result<Value> resolve_all(const Value& root, const ResolveOptions& options = {});

// Whether the text parses as OmegaConf's interpolation grammar; the error says where it does not.
Status check_interpolation(std::string_view text);

}  // namespace aerie::config
