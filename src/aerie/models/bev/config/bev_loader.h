// One way from a command line to the configuration of a bird's-eye-view run: mm-style Python files,
// BEVFusion's YAML and our own, with the options of mm-style programs.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/config/dialects/mm/mm_args.h"
#include "aerie/config/schema/effect.h"
#include "aerie/config/schema/validate.h"
#include "aerie/config/value.h"
#include "aerie/models/bev/config/run_config.h"

namespace aerie::bev {

struct BevLoadOptions {
  bool for_training = false;    // see config::ValidateOptions
  std::optional<int> num_gpus;  // unset: those that the driver shows
  bool keep_errors = false;     // return instead of failing when the check finds errors
};

struct LoadedBevConfig {
  config::Value native;    // our own keys as written or translated, without defaults
  config::Value resolved;  // with the `aerie:` node filled in: what the run is built from
  std::vector<std::string> files;
  std::vector<std::string> notes;  // what has no effect on this run
  std::map<std::string, config::IdleKey> idle_keys;
  config::Findings findings;  // warnings (errors with keep_errors)
  BevRunConfig run;           // filled in when there are no errors
};

// Whether these arguments name a configuration of this family: a .py file, an option that only
// mm-style programs have, or a YAML file with the family's keys.
bool is_bev_command_line(Env& env, const std::vector<std::string>& args);

// Every error is kInvalidArgument and names file and line, or the option.
Result<LoadedBevConfig> load_bev_config(Env& env, const config::mm::MmArgs& args,
                                        const BevLoadOptions& options = {});

}  // namespace aerie::bev
