// One subcommand of the aerie binary. Each lives in its own file, <name>_command.cc, and is listed
// in main.cc.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "aerie/base/status.h"

namespace aerie::tools {

struct Command {
  const char* name;
  const char* summary;  // one line for `aerie help`
  // Runs the command; args exclude "aerie" and the command's name. Prints its own output; an error
  // Status is printed by main, which turns its code into the exit code (0 done, 1 run failed, 2
  // command line or config wrong, 3 data wrong); see also done_unhealthy().
  // `--help` must print usage with an example and return ok.
  Status (*run)(const std::vector<std::string>& args);
};

// A command that did all it was asked to and whose result should not be trusted says so here: it
// returns ok and the exit code becomes 4.
void done_unhealthy();

// Runs the one of `commands` that args name, for a command of several ("data"); `example` ends its
// usage.
Status run_subcommand(const char* name, std::span<const Command> commands, const char* example,
                      const std::vector<std::string>& args);

Status run_bench(const std::vector<std::string>& args);
Status run_config(const std::vector<std::string>& args);
Status run_convert(const std::vector<std::string>& args);
Status run_doctor(const std::vector<std::string>& args);
Status run_eval(const std::vector<std::string>& args);
Status run_inspect(const std::vector<std::string>& args);
Status run_plan(const std::vector<std::string>& args);
Status run_report(const std::vector<std::string>& args);
Status run_train(const std::vector<std::string>& args);
Status run_tune(const std::vector<std::string>& args);
Status run_data(const std::vector<std::string>& args);
Status run_features(const std::vector<std::string>& args);
Status run_probe(const std::vector<std::string>& args);

}  // namespace aerie::tools
