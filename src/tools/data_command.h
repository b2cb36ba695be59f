// Subcommands of `aerie data`; each lives in its own file, data_<name>.cc, and is listed in
// data_command.cc.
#pragma once

#include <string>
#include <vector>

#include "aerie/base/status.h"

namespace aerie::tools {

Status run_data_pack(const std::vector<std::string>& args);
Status run_data_shard(const std::vector<std::string>& args);
Status run_data_stats(const std::vector<std::string>& args);
Status run_data_synth(const std::vector<std::string>& args);
Status run_data_validate(const std::vector<std::string>& args);

// The value of --kind among the arguments, empty when it is not there. Kinds have options of their
// own, so the kind is looked up before they are parsed.
std::string kind_of(const std::vector<std::string>& args);

}  // namespace aerie::tools
