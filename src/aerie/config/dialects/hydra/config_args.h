// The command line of configurations written for Hydra, whatever the family: what names files and
// folders, overrides, and options shared by all commands that take a configuration.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/status.h"

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

// The lines of `--help` that explain the shared options.
std::string_view config_options_help();

}  // namespace aerie::config
