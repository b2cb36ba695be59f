// `aerie data`: finds the subcommand.
#include "data_command.h"

#include <string>
#include <vector>

#include "command.h"

namespace aerie::tools {

namespace {

const Command kDataCommands[] = {
    {"pack", "store decoded audio for fast training", run_data_pack},
    {"shard", "write a tarred data set as NeMo's converter does", run_data_shard},
    {"stats", "hours, durations, codecs and the padding that batches cost", run_data_stats},
    {"synth", "make a speech-like corpus, or camera data in nuScenes' format", run_data_synth},
    {"validate", "read everything and list what is broken", run_data_validate},
};

}  // namespace

std::string kind_of(const std::vector<std::string>& args) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--kind" && i + 1 < args.size()) return args[i + 1];
    if (starts_with(args[i], "--kind=")) return args[i].substr(7);
  }
  return "";
}

Status run_data(const std::vector<std::string>& args) {
  return run_subcommand("data", kDataCommands,
                        "aerie data synth --out corpus --hours 1 --speakers 30", args);
}

}  // namespace aerie::tools
