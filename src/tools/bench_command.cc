// `aerie bench`: finds the subcommand.
#include "bench_command.h"

#include <cstdio>

#include "command.h"

namespace aerie::tools {

namespace {

const Command kBenchCommands[] = {
    {"data", "how fast the loader delivers a data set, and what limits it", run_bench_data},
    {"kernels", "every CUDA kernel beside the floor of its memory traffic", run_bench_kernels},
#ifdef AERIE_WITH_TORCH
    {"claims", "what tuning guides promise, measured row by row", run_bench_claims},
    {"bev", "how fast LSS + Swin trains at several batch sizes", run_bench_bev},
    {"step", "how long a training step takes, phase by phase", run_bench_step},
#endif
};

void print_bench_usage() {
  std::printf("usage: aerie bench SUBCOMMAND [ARGS]\n\n");
  for (const Command& command : kBenchCommands)
    std::printf("  %-10s %s\n", command.name, command.summary);
  std::printf("\nexample: aerie bench data --manifest train.json --seconds 20\n");
  std::printf("`aerie bench SUBCOMMAND --help` shows its options.\n");
}

}  // namespace

Status run_bench(const std::vector<std::string>& args) {
  if (args.empty() || args[0] == "--help" || args[0] == "-h") {
    print_bench_usage();
    return args.empty() ? invalid_argument("no subcommand given") : ok_status();
  }
  std::vector<std::string> names;
  for (const Command& command : kBenchCommands) {
    if (args[0] == command.name) return command.run({args.begin() + 1, args.end()});
    names.push_back(command.name);
  }
  const std::string near = nearest_name(args[0], names);
  return invalid_argument(str_cat("unknown subcommand 'bench ", args[0], "'"))
      .with_hint(near.empty() ? "`aerie bench --help` lists them"
                              : str_cat("did you mean 'bench ", near, "'?"));
}

}  // namespace aerie::tools
