// One way from a command line to a checked configuration, used by `aerie train`, `aerie config` and
// every other command that takes a config: options and overrides are parsed, files composed, the
// `aerie:` defaults filled in, interpolations resolved, the result validated and put into structs.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/config/dialects/hydra/compose.h"
#include "aerie/config/schema/effect.h"
#include "aerie/config/schema/validate.h"
#include "aerie/config/value.h"
#include "aerie/models/nest/config/nest_config.h"

namespace aerie::config {

// What a command line says about the config. Hydra's short names (-cp, -cn, -cd, -c) work too.
struct ConfigArgs {
  std::string config_path;  // --config-path, relative to the working directory
  std::string config_name;  // --config-name, extension optional
  std::string config_dir;   // --config-dir, searched after config_path
  std::string cfg;          // --cfg: "job", "hydra" or "all"; empty: not given
  bool resolve = false;     // --resolve, with --cfg
  bool allow_unknown = false;
  bool help = false;
  std::vector<std::string> overrides;        // what has the form of an override, in order
  std::vector<std::string> files;            // *.yaml given instead of --config-name
  std::vector<std::string> words;            // other words, in order
  std::map<std::string, std::string> extra;  // the command's own options: "--json" -> ""
};

// An option that the command itself understands.
struct ExtraOption {
  std::string_view name;  // "--dry-run"
  bool takes_value = false;
};

// Anything that starts with '-' is an option; unknown ones are errors that name the nearest.
Result<ConfigArgs> parse_config_args(const std::vector<std::string>& args,
                                     const std::vector<ExtraOption>& extra_options = {});

struct LoadOptions {
  bool for_training = false;    // see ValidateOptions
  std::optional<int> num_gpus;  // unset: count_visible_gpus()
  // Return instead of failing when validation finds errors; `run` is then not filled in.
  bool keep_errors = false;
};

struct LoadedConfig {
  Composed composed;  // as written, interpolations unresolved; the `aerie:` node filled in
  Value resolved;     // effective values; model_config.yaml is its `model` node
  // The same for config.yaml and other files that stay: what comes from the environment
  // (${oc.env:...}), where people keep secrets, is left as the expression.
  Value portable;
  std::set<std::string> reads;               // keys that interpolations read
  std::map<std::string, IdleKey> idle_keys;  // accepted, and without effect on this run
  Findings findings;  // warnings, to be shown to the user (errors with keep_errors)
  RunConfig run;
};

// Every error is kInvalidArgument (exit code 2) and names file and line, or the override.
Result<LoadedConfig> load_run_config(const ConfigArgs& args, const LoadOptions& options = {});

// What `--cfg job [--resolve]` prints; validates nothing, as in Hydra.
Result<std::string> job_config_text(const ConfigArgs& args);

// The lines of `--help` that explain the shared options.
std::string_view config_options_help();

}  // namespace aerie::config
