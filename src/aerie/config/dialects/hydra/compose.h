// From --config-path, --config-name, --config-dir and overrides to one tree, as Hydra composes it:
// the primary file, its `defaults:` list with config groups, packages and overrides of groups, then
// the value overrides in order.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/config/dialects/hydra/override.h"
#include "aerie/config/value.h"

namespace aerie::config {

struct ComposeRequest {
  std::string config_path;  // folder of the primary config; empty: the working directory
  std::string config_name;  // with or without .yaml; may have folders ("sub/name")
  std::string config_dir;   // searched after config_path; empty: none
  std::vector<std::string> overrides;
  // Keys that exist although no file has them (their values are the defaults), so that an override
  // needs no `+`. A map; added below what files say.
  std::optional<Value> known_defaults;
  bool struct_mode = true;
};

struct Composed {
  Value config;  // a map; interpolations and `???` unresolved
  std::string primary_file;
  std::vector<std::string> files;                            // every file read, in order of merging
  std::vector<std::pair<std::string, std::string>> choices;  // group -> option
  std::vector<Override> overrides;                           // applied ones, parsed
  std::vector<std::string> ignored;  // hydra.* overrides, which have no meaning here
};

Result<Composed> compose(const ComposeRequest& request);

}  // namespace aerie::config
