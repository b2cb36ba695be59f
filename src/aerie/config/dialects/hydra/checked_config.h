// One way from a command line to a checked configuration, for any schema: options and overrides are
// parsed (config_args.h), files composed, the `aerie:` defaults filled in, interpolations resolved,
// the result validated. A family puts it into structs of its own.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "aerie/base/status.h"
#include "aerie/config/dialects/hydra/compose.h"
#include "aerie/config/dialects/hydra/config_args.h"
#include "aerie/config/schema/effect.h"
#include "aerie/config/schema/schema.h"
#include "aerie/config/schema/validate.h"
#include "aerie/config/value.h"

namespace aerie::config {

// Whose configurations are read.
struct HydraFamily {
  const Schema& schema;
  std::string_view example;        // a name for --config-name, in hints
  std::string_view ready_configs;  // the folder of shipped ones, in hints
};

struct LoadOptions {
  bool for_training = false;    // see ValidateOptions
  std::optional<int> num_gpus;  // unset: count_visible_gpus()
  // Return instead of failing when validation finds errors.
  bool keep_errors = false;
};

struct CheckedConfig {
  Composed composed;  // as written, interpolations unresolved; the `aerie:` node filled in
  Value resolved;     // effective values
  // The same for config.yaml and other files that stay: what comes from the environment
  // (${oc.env:...}), where people keep secrets, is left as the expression.
  Value portable;
  std::set<std::string> reads;               // keys that interpolations read
  std::map<std::string, IdleKey> idle_keys;  // accepted, and without effect on this run
  Findings findings;  // warnings, to be shown to the user (errors with keep_errors)
};

// Every error is kInvalidArgument (exit code 2) and names file and line, or the override.
Result<CheckedConfig> load_checked_config(const HydraFamily& family, const ConfigArgs& args,
                                          const LoadOptions& options = {});

// What `--cfg job [--resolve]` prints; validates nothing, as in Hydra.
Result<std::string> job_config_text(const HydraFamily& family, const ConfigArgs& args);

}  // namespace aerie::config
