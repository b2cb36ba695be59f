// Subcommands of `aerie bench`; each lives in its own file, bench_<name>.cc, and is listed in
// bench_command.cc.
#pragma once

#include <string>
#include <vector>

#include "aerie/base/status.h"

namespace aerie::tools {

Status run_bench_bev(const std::vector<std::string>& args);
Status run_bench_claims(const std::vector<std::string>& args);
Status run_bench_data(const std::vector<std::string>& args);
Status run_bench_kernels(const std::vector<std::string>& args);
Status run_bench_step(const std::vector<std::string>& args);

}  // namespace aerie::tools
