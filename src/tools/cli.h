// Glue between CLI11 and Status.
#pragma once

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "aerie/base/status.h"
#include "aerie/base/strings.h"

namespace aerie::tools {

// What is better said than by CLI11: options nobody knows, and manifests without their option.
inline Status explain_arguments(CLI::App& app, const std::vector<std::string>& args) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  const auto known = [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const std::string& arg : args) {
    if (arg == "--") break;
    const std::string name = arg.substr(0, arg.find('='));
    if (!starts_with(name, "--") || known(name)) continue;
    const std::string near = nearest_name(name, names);
    return invalid_argument(str_cat("unknown option '", name, "'"))
        .with_hint(near.empty() ? str_cat("`", app.get_name(), " --help` shows the options")
                                : str_cat("did you mean ", near, "?"));
  }
  const std::string manifest = !args.empty() && !starts_with(args[0], "-") ? args[0] : "";
  if (known("--manifest") && (ends_with(manifest, ".json") || ends_with(manifest, ".jsonl")))
    return invalid_argument(str_cat("unexpected argument '", manifest, "'"))
        .with_hint(str_cat("a manifest is given as --manifest ", manifest));
  return ok_status();
}

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
    if (Status better = explain_arguments(app, args); !better.ok()) return better;
    return invalid_argument(error.what())
        .with_hint(str_cat("`", app.get_name(), " --help` shows the options"));
  }
  return ok_status();
}

}  // namespace aerie::tools
