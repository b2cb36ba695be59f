#include "config_bev.h"

#include <cstdio>

#include "aerie/base/env.h"
#include "aerie/base/printable.h"
#include "aerie/base/strings.h"
#include "aerie/config/schema/config_text.h"
#include "aerie/config/yaml.h"
#include "aerie/models/bev/config/bev_loader.h"
#include "aerie/models/bev/config/bev_schema.h"
#include "config_output.h"

namespace aerie::tools {
namespace {

using bev::LoadedBevConfig;

// The command's own options, taken out of the arguments.
struct Request {
  std::string verb, family, output;
  bool json = false, markdown = false, help = false;
  std::vector<std::string> rest;
};

Request read_request(const std::vector<std::string>& args) {
  Request out;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    const bool more = i + 1 < args.size();
    if (out.verb.empty() && !starts_with(arg, "-"))
      out.verb = arg;
    else if (arg == "--json")
      out.json = true;
    else if (arg == "--markdown")
      out.markdown = true;
    else if (arg == "--help" || arg == "-h")
      out.help = true;
    else if (arg == "--family" && more)
      out.family = args[++i];
    else if (starts_with(arg, "--family="))
      out.family = arg.substr(9);
    else if ((arg == "-o" || arg == "--output") && more)
      out.output = args[++i];
    else
      out.rest.push_back(arg);
  }
  return out;
}

Result<LoadedBevConfig> load(const std::vector<std::string>& args, bool keep_errors = false) {
  AERIE_ASSIGN_OR_RETURN(const config::mm::MmArgs parsed, config::mm::parse_mm_args(args));
  if (!parsed.words.empty())
    return invalid_argument(str_cat("'", parsed.words[0], "' is neither an option nor a file"))
        .with_hint(str_cat("keys are changed by --cfg-options ", parsed.words[0]));
  bev::BevLoadOptions options;
  options.keep_errors = keep_errors;
  return bev::load_bev_config(Env::real(), parsed, options);
}

void print_notes(const LoadedBevConfig& loaded) {
  for (const std::string& note : loaded.notes)
    std::fprintf(stderr, "note: %s\n", printable_lines(note).c_str());
}

Status show(const Request& request) {
  AERIE_ASSIGN_OR_RETURN(const LoadedBevConfig loaded, load(request.rest));
  print_warnings(loaded.findings);
  print_notes(loaded);
  if (request.json) {
    std::fputs(printable_json(config::config_json(loaded.resolved, loaded.idle_keys)).c_str(),
               stdout);
    return ok_status();
  }
  AERIE_ASSIGN_OR_RETURN(const std::string text,
                         config::annotated_yaml(loaded.resolved, loaded.idle_keys));
  std::fputs(text.c_str(), stdout);
  return ok_status();
}

Status convert(const Request& request) {
  AERIE_ASSIGN_OR_RETURN(const LoadedBevConfig loaded, load(request.rest));
  print_warnings(loaded.findings);
  print_notes(loaded);
  AERIE_ASSIGN_OR_RETURN(const std::string text, config::emit_yaml(loaded.native));
  if (!request.output.empty()) return Env::real().atomic_replace(request.output, text);
  std::fputs(text.c_str(), stdout);
  return ok_status();
}

Status diff(const Request& request) {
  std::vector<std::string> files, rest;
  for (const std::string& arg : request.rest)
    (files.size() < 2 && !starts_with(arg, "-") && rest.empty() ? files : rest).push_back(arg);
  if (files.size() != 2)
    return invalid_argument(str_cat("diff compares two configs, got ", files.size()));
  std::vector<LoadedBevConfig> sides;
  for (const std::string& file : files) {
    std::vector<std::string> args = {file};
    args.insert(args.end(), rest.begin(), rest.end());
    AERIE_ASSIGN_OR_RETURN(LoadedBevConfig side, load(args));
    sides.push_back(std::move(side));
  }
  print_differences({files[0], sides[0].resolved}, {files[1], sides[1].resolved}, request.json);
  return ok_status();
}

Status keys(const Request& request) {
  if (request.markdown) {
    std::fputs(bev::bev_keys_markdown().c_str(), stdout);
    return ok_status();
  }
  return print_keys(bev::bev_schema(), request.rest.empty() ? "" : request.rest[0], request.json);
}

}  // namespace

bool is_bev_config_command(const std::vector<std::string>& args) {
  const Request request = read_request(args);
  if (request.help) return false;
  if (request.verb == "keys") return request.family == "bev";
  if (request.verb == "convert") return true;
  return (request.verb == "show" || request.verb == "validate" || request.verb == "diff") &&
         bev::is_bev_command_line(Env::real(), request.rest);
}

Status run_bev_config(const std::vector<std::string>& args) {
  const Request request = read_request(args);
  if (request.verb == "show") return show(request);
  if (request.verb == "convert") return convert(request);
  if (request.verb == "diff") return diff(request);
  if (request.verb == "keys") return keys(request);
  AERIE_ASSIGN_OR_RETURN(const LoadedBevConfig loaded, load(request.rest, /*keep_errors=*/true));
  return print_findings(loaded.files.empty() ? "" : loaded.files.back(), loaded.findings,
                        request.json);
}

}  // namespace aerie::tools
