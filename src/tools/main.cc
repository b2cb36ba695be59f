// The aerie binary: finds the subcommand and turns its Status into a message and an exit code.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <new>
#include <span>
#include <string>
#include <system_error>
#include <unistd.h>
#include <vector>

#include "aerie/base/check.h"
#include "aerie/base/mapping_guard.h"
#include "aerie/base/printable.h"
#include "aerie/base/status.h"
#include "aerie/base/thread_group.h"
#include "command.h"
#include "error_text.h"
#include "version.h"

namespace aerie::tools {
namespace {

constexpr int kExitUnhealthy = 4;
bool g_unhealthy = false;

const Command kCommands[] = {
#ifdef AERIE_WITH_TORCH
    {"train", "train NEST or LSS + Swin from a configuration", run_train},
    {"eval", "validation loss or mIoU of a checkpoint", run_eval},
#endif
    {"config", "show, check and compare configurations", run_config},
    {"data", "make, inspect, check and convert data", run_data},
    {"report", "write report.html for the folder of a run, or one page for several", run_report},
#ifdef AERIE_WITH_TORCH
    {"features", "write the features an encoder makes of recordings", run_features},
    {"probe", "measure what linear probes read out of frozen features", run_probe},
#endif
    {"inspect", "show what a run, checkpoint, archive or array file holds", run_inspect},
    {"convert", "write weights in another format: .nemo, .ckpt, .pt, .safetensors", run_convert},
#ifdef AERIE_WITH_TORCH
    {"tune", "find batch, loader settings and precision by trials, and write the config", run_tune},
#endif
    {"doctor", "say what ails a run and which change is worth most", run_doctor},
    {"plan", "predict the step on many GPUs from one that was measured", run_plan},
    {"bench", "measure the loader and the training step", run_bench},
};

const Command* find_command(const std::string& name) {
  for (const Command& command : kCommands)
    if (name == command.name) return &command;
  return nullptr;
}

void print_usage() {
  std::printf("usage: aerie COMMAND [ARGS]\n\n");
  for (const Command& command : kCommands)
    std::printf("  %-10s %s\n", command.name, command.summary);
  std::printf("\n`aerie help COMMAND` shows a command's options with an example.\n");
}

std::vector<std::string> command_names() {
  std::vector<std::string> names{"help"};
  for (const Command& command : kCommands) names.push_back(command.name);
  return names;
}

Status run(std::vector<std::string> args) {
  if (args.empty() || args[0] == "--help" || args[0] == "-h" ||
      (args[0] == "help" && args.size() == 1)) {
    print_usage();
    return args.empty() ? invalid_argument("no command given") : ok_status();
  }
  if (args[0] == "--version") {
    std::printf("%s", version_text().c_str());
    return ok_status();
  }
  if (args[0] == "help") {
    args.erase(args.begin());
    args.push_back("--help");
  }
  const Command* command = find_command(args[0]);
  if (command == nullptr) {
    const std::string near = nearest_name(args[0], command_names());
    return invalid_argument(str_cat("unknown command '", args[0], "'"))
        .with_hint(near.empty() ? "`aerie help` lists the commands"
                                : str_cat("did you mean '", near, "'?"));
  }
  return command->run({args.begin() + 1, args.end()});
}

// Where a caller has closed one of them, the next file that is opened would take its number, and
// messages would be written into it.
void open_standard_streams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd)
    if (::fcntl(fd, F_GETFD) == -1 && errno == EBADF) (void)::open("/dev/null", O_RDONLY);
}

}  // namespace

Status run_subcommand(const char* name, std::span<const Command> commands, const char* example,
                      const std::vector<std::string>& args) {
  if (args.empty() || args[0] == "--help" || args[0] == "-h") {
    std::printf("usage: aerie %s SUBCOMMAND [ARGS]\n\n", name);
    for (const Command& command : commands)
      std::printf("  %-10s %s\n", command.name, command.summary);
    std::printf("\nexample: %s\n`aerie %s SUBCOMMAND --help` shows its options.\n", example, name);
    return args.empty() ? invalid_argument("no subcommand given") : ok_status();
  }
  std::vector<std::string> names;
  for (const Command& command : commands) {
    if (args[0] == command.name) return command.run({args.begin() + 1, args.end()});
    names.push_back(command.name);
  }
  const std::string near = nearest_name(args[0], names);
  return invalid_argument(str_cat("unknown subcommand '", name, " ", args[0], "'"))
      .with_hint(near.empty() ? str_cat("`aerie ", name, " --help` lists them")
                              : str_cat("did you mean '", name, " ", near, "'?"));
}

void done_unhealthy() {
  g_unhealthy = true;
}

int exit_code_of(const Status& status) {
  return status.ok() && g_unhealthy ? kExitUnhealthy : exit_code_for(status.code());
}

}  // namespace aerie::tools

int main(int argc, char** argv) {
  // A file that may not grow (ulimit -f) is an error to report, as a full disk is, not a death.
  std::signal(SIGXFSZ, SIG_IGN);
  aerie::install_mapping_guard();
  aerie::tools::open_standard_streams();
  const auto finish = [](const aerie::Status& status) {
    if (!status.ok())
      std::fprintf(stderr, "error: %s\n",
                   aerie::printable_lines(aerie::tools::error_text(status)).c_str());
    return aerie::tools::exit_code_of(status);
  };
  try {
    return finish(aerie::tools::run({argv + 1, argv + argc}));
  } catch (const std::bad_alloc&) {
    return finish(aerie::out_of_memory("out of memory"));
  } catch (const std::system_error& error) {
    return finish(aerie::thread_error(error));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: internal error: %s\nThis is a bug in aerie; please report it.\n",
                 aerie::printable_lines(error.what()).c_str());
    return 1;
  }
}
