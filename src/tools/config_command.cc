// aerie config show | validate | diff | keys
#include <cstdio>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "aerie/base/printable.h"
#include "aerie/base/strings.h"
#include "aerie/config/schema/config_text.h"
#include "aerie/config/schema/key_table.h"
#include "aerie/config/schema/type_spec.h"
#include "aerie/models/nest/config/nest_schema.h"
#include "aerie/models/nest/config/run_config_loader.h"
#include "command.h"
#include "json_output.h"

namespace aerie::tools {
namespace {

using config::ConfigArgs;
using config::Finding;
using config::LoadedConfig;
using Json = nlohmann::ordered_json;

void print_config_help() {
  std::printf(
      "usage: aerie config show     [OPTIONS] [OVERRIDES]   effective values and where each came "
      "from\n"
      "       aerie config validate [OPTIONS] [OVERRIDES]   check without running\n"
      "       aerie config diff A B [OPTIONS] [OVERRIDES]   what differs between two configs\n"
      "       aerie config keys     [PREFIX] [--markdown]   every key that exists, with help\n\n"
      "%s"
      "  --json              machine-readable output\n\n"
      "examples:\n"
      "  aerie config show --config-path config --config-name nest_fast-conformer_fast \\\n"
      "    model.train_ds.manifest_filepath=train.json trainer.max_steps=1000\n"
      "  aerie config validate my_nest.yaml\n"
      "  aerie config diff --config-path config nest_fast-conformer nest_fast-conformer_fast\n"
      "  aerie config keys trainer\n\n"
      "exit code: 0 fine, 2 the command line or the config is wrong\n",
      std::string(config::config_options_help()).c_str());
}

void print_warnings(const LoadedConfig& loaded) {
  for (const Finding& finding : loaded.findings.warnings())
    std::fprintf(stderr, "warning: %s\n", printable_lines(finding.to_string()).c_str());
}

Status show(const ConfigArgs& args) {
  if (!args.cfg.empty()) {
    AERIE_ASSIGN_OR_RETURN(const std::string text, config::job_config_text(args));
    std::fputs(text.c_str(), stdout);
    return ok_status();
  }
  AERIE_ASSIGN_OR_RETURN(const LoadedConfig loaded, config::load_run_config(args));
  print_warnings(loaded);
  std::string text;
  if (args.extra.contains("--json")) {
    text = printable_json(config::config_json(loaded.resolved, loaded.idle_keys));
  } else {
    AERIE_ASSIGN_OR_RETURN(text, config::annotated_yaml(loaded.resolved, loaded.idle_keys));
  }
  std::fputs(text.c_str(), stdout);
  return ok_status();
}

Json finding_json(const Finding& finding) {
  return Json{{"severity", finding.severity == Finding::Severity::kError ? "error" : "warning"},
              {"key", finding.key},
              {"message", finding.message},
              {"hint", finding.hint},
              {"where", finding.where}};
}

Status validate(const ConfigArgs& args) {
  config::LoadOptions options;
  options.keep_errors = true;
  AERIE_ASSIGN_OR_RETURN(const LoadedConfig loaded, config::load_run_config(args, options));
  const Status status = loaded.findings.to_status();
  if (args.extra.contains("--json")) {
    Json root;
    root["ok"] = status.ok();
    root["file"] = loaded.composed.primary_file;
    root["findings"] = Json::array();
    for (const Finding& finding : loaded.findings.all())
      root["findings"].push_back(finding_json(finding));
    print_document(root, 2);
  } else {
    print_warnings(loaded);
    if (status.ok())
      std::printf("%s: ok%s\n", printable(loaded.composed.primary_file).c_str(),
                  loaded.findings.warnings().empty() ? "" : ", with warnings");
  }
  return status;
}

// A config of `diff`: a file, or a name in --config-path.
ConfigArgs one_side(const ConfigArgs& args, const std::string& name, bool is_file) {
  ConfigArgs side = args;
  side.words.clear();
  side.files.clear();
  side.config_name.clear();
  if (is_file)
    side.files.push_back(name);
  else
    side.config_name = name;
  return side;
}

Status diff(const ConfigArgs& args) {
  std::vector<ConfigArgs> sides;
  for (const std::string& file : args.files) sides.push_back(one_side(args, file, true));
  for (size_t i = 1; i < args.words.size(); ++i)
    sides.push_back(one_side(args, args.words[i], false));
  if (sides.size() != 2)
    return invalid_argument(str_cat("diff compares two configs, got ", sides.size()))
        .with_hint(
            "for example: aerie config diff --config-path config nest_fast-conformer my_nest");
  AERIE_ASSIGN_OR_RETURN(const LoadedConfig before, config::load_run_config(sides[0]));
  AERIE_ASSIGN_OR_RETURN(const LoadedConfig after, config::load_run_config(sides[1]));
  const auto differences = config::config_differences(before.resolved, after.resolved);
  const auto text = [](const config::Value* value) {
    return value == nullptr ? std::string("(absent)") : value->brief(200);
  };
  const auto origin = [](const config::Value* value) {
    return value == nullptr ? std::string() : config::short_origin(value->origin());
  };
  if (args.extra.contains("--json")) {
    Json list = Json::array();
    for (const auto& difference : differences)
      list.push_back(Json{{"key", difference.key},
                          {"before", text(difference.before)},
                          {"before_origin", origin(difference.before)},
                          {"after", text(difference.after)},
                          {"after_origin", origin(difference.after)}});
    print_document(list, 2);
    return ok_status();
  }
  std::printf("--- %s\n+++ %s\n", printable(before.composed.primary_file).c_str(),
              printable(after.composed.primary_file).c_str());
  for (const auto& difference : differences) {
    std::printf("%s\n", printable(difference.key).c_str());
    if (difference.before != nullptr)
      std::printf("  - %-40s # %s\n", printable(text(difference.before)).c_str(),
                  printable(origin(difference.before)).c_str());
    if (difference.after != nullptr)
      std::printf("  + %-40s # %s\n", printable(text(difference.after)).c_str(),
                  printable(origin(difference.after)).c_str());
  }
  if (differences.empty()) std::printf("no difference\n");
  return ok_status();
}

Status keys(const ConfigArgs& args) {
  if (args.extra.contains("--markdown")) {
    std::fputs(config::nest_schema().markdown().c_str(), stdout);
    return ok_status();
  }
  const std::string prefix = args.words.size() > 1 ? args.words[1] : "";
  const bool json = args.extra.contains("--json");
  Json list = Json::array();
  size_t shown = 0;
  for (const config::KeySpec* key : config::nest_schema().all_keys()) {
    std::string path(key->path);
    // The three data sets share their rows; any of their names finds them.
    for (const char* name : {"train_ds", "validation_ds", "test_ds"})
      if (starts_with(prefix, str_cat("model.", name)) && starts_with(path, "model.<ds>"))
        path.replace(6, 4, name);
    if (!starts_with(path, prefix)) continue;
    ++shown;
    if (json) {
      list.push_back(Json{{"key", path},
                          {"type", key->type},
                          {"default", key->default_value},
                          {"range", key->range},
                          {"choices", config::choice_names(key->choices)},
                          {"refused", config::choice_names(key->refused)},
                          {"status", config::key_status_name(key->status)},
                          {"note", key->note},
                          {"help", key->help}});
      continue;
    }
    std::printf("%s: %s", path.c_str(), std::string(key->type).c_str());
    if (!key->default_value.empty()) std::printf(" = %s", std::string(key->default_value).c_str());
    if (key->status != config::KeyStatus::kWorks)
      std::printf("  [%s]", config::key_status_name(key->status));
    std::printf("\n    %s\n", std::string(key->help).c_str());
  }
  if (shown == 0)
    return invalid_argument(str_cat("no key starts with '", prefix, "'"))
        .with_hint("`aerie config keys` lists all");
  if (json) print_document(list, 2);
  return ok_status();
}

}  // namespace

Status run_config(const std::vector<std::string>& args) {
  AERIE_ASSIGN_OR_RETURN(const ConfigArgs parsed,
                         config::parse_config_args(args, {{"--json"}, {"--markdown"}}));
  if (parsed.help) {
    print_config_help();
    return ok_status();
  }
  const std::vector<std::string> kVerbs = {"show", "validate", "diff", "keys"};
  const std::string verb = parsed.words.empty() ? "" : parsed.words[0];
  if (verb != "diff" && verb != "keys" && parsed.words.size() > 1) {
    const std::string& extra = parsed.words[1];
    return invalid_argument(str_cat("'", extra, "' is neither an option nor an override"))
        .with_hint(str_cat("an override has the form ", extra, "=value"));
  }
  if (verb == "show") return show(parsed);
  if (verb == "validate") return validate(parsed);
  if (verb == "diff") return diff(parsed);
  if (verb == "keys") return keys(parsed);
  const std::string near = nearest_name(verb, kVerbs);
  return invalid_argument(verb.empty() ? "config needs show, validate, diff or keys"
                                       : str_cat("unknown: aerie config ", verb))
      .with_hint(near.empty() ? "`aerie help config` explains them"
                              : str_cat("did you mean '", near, "'?"));
}

}  // namespace aerie::tools
