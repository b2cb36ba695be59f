// Hydra's defaults list: which files a config is made of, in which order, below which keys.
// Internal to config.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/config/dialects/hydra/config_repository.h"
#include "aerie/config/dialects/hydra/override.h"

namespace aerie::config {

struct ComposedPart {
  const ConfigFile* file = nullptr;
  std::string package;  // "a.b": where the file's content goes; empty: the root
};

struct DefaultsList {
  std::vector<ComposedPart> parts;                           // in order of merging
  std::vector<std::pair<std::string, std::string>> choices;  // group (or group@package) -> option
  std::vector<Override> value_overrides;                     // those that do not choose an option
};

// `overrides` without those of Hydra itself.
Result<DefaultsList> make_defaults_list(ConfigRepository& repository,
                                        const std::string& config_name,
                                        const std::vector<Override>& overrides);

}  // namespace aerie::config
