// `aerie bench step --world N,M,...`: the step on ranks of this machine, what reducing costs, what
// the keys of DDP change, and what `aerie plan` would have said.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "aerie/base/status.h"
#include "aerie/models/nest/run/nest_measure.h"

namespace aerie::tools {

struct WorldBench {
  std::vector<std::string> args;  // of the command, for the ranks
  std::vector<int> worlds;
  int threads = 0;  // a rank; 0: the cores, divided
  bool keys = true;
  bool json = false;
  config::RunConfig run;
  train::NestMeasureOptions measure;
  // A measured step as --json prints it.
  std::function<nlohmann::ordered_json(const train::NestMeasurement&)> to_json;
};

// Starts ranks for every case, one after another, and prints what they found.
Status run_bench_world(const WorldBench& bench);
// The part of a rank: measures what `part` names and, on rank 0, leaves it in `file`.
Status run_bench_rank(const WorldBench& bench, const std::string& part, const std::string& file);

}  // namespace aerie::tools
