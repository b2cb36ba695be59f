// Glue between CLI11 and Status.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "aerie/base/status.h"

namespace aerie::tools {

// Parses `args` into the app's bound variables. *help is set when --help was asked for and printed;
// the command then returns ok at once.
inline Status parse_args(CLI::App& app, const std::vector<std::string>& args, bool* help) {
  *help = false;
  try {
    app.parse(std::vector<std::string>(args.rbegin(), args.rend()));  // CLI11 takes them reversed
  } catch (const CLI::CallForHelp&) {
    std::printf("%s", app.help().c_str());
    *help = true;
  } catch (const CLI::ParseError& error) {
    return invalid_argument(error.what())
        .with_hint(str_cat("`", app.get_name(), " --help` shows the options"));
  }
  return ok_status();
}

}  // namespace aerie::tools
