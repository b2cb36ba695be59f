// `aerie bench`: finds the subcommand.
#include "bench_command.h"

#include <string>
#include <vector>

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

}  // namespace

Status run_bench(const std::vector<std::string>& args) {
  return run_subcommand("bench", kBenchCommands,
                        "aerie bench data --manifest train.json --seconds 20", args);
}

}  // namespace aerie::tools
