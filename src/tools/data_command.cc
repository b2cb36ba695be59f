// `aerie data`: finds the subcommand.
#include "data_command.h"

#include <cstdio>

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

void print_data_usage() {
  std::printf("usage: aerie data SUBCOMMAND [ARGS]\n\n");
  for (const Command& command : kDataCommands)
    std::printf("  %-10s %s\n", command.name, command.summary);
  std::printf("\nexample: aerie data synth --out corpus --hours 1 --speakers 30\n");
  std::printf("`aerie data SUBCOMMAND --help` shows its options.\n");
}

}  // namespace

std::string kind_of(const std::vector<std::string>& args) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--kind" && i + 1 < args.size()) return args[i + 1];
    if (starts_with(args[i], "--kind=")) return args[i].substr(7);
  }
  return "";
}

Status run_data(const std::vector<std::string>& args) {
  if (args.empty() || args[0] == "--help" || args[0] == "-h") {
    print_data_usage();
    return args.empty() ? invalid_argument("no subcommand given") : ok_status();
  }
  std::vector<std::string> names;
  for (const Command& command : kDataCommands) {
    if (args[0] == command.name) return command.run({args.begin() + 1, args.end()});
    names.push_back(command.name);
  }
  const std::string near = nearest_name(args[0], names);
  return invalid_argument(str_cat("unknown subcommand 'data ", args[0], "'"))
      .with_hint(near.empty() ? "`aerie data --help` lists them"
                              : str_cat("did you mean 'data ", near, "'?"));
}

}  // namespace aerie::tools
