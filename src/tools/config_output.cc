#include "config_output.h"

#include <cstdio>

#include <nlohmann/json.hpp>

#include "aerie/base/printable.h"
#include "aerie/base/strings.h"
#include "aerie/config/schema/config_text.h"
#include "aerie/config/schema/key_table.h"
#include "aerie/config/schema/type_spec.h"
#include "json_output.h"

namespace aerie::tools {

using config::Finding;
using Json = nlohmann::ordered_json;

namespace {

Json finding_json(const Finding& finding) {
  return Json{{"severity", finding.severity == Finding::Severity::kError ? "error" : "warning"},
              {"key", finding.key},
              {"message", finding.message},
              {"hint", finding.hint},
              {"where", finding.where}};
}

}  // namespace

void print_warnings(const config::Findings& findings) {
  for (const Finding& finding : findings.warnings())
    std::fprintf(stderr, "warning: %s\n", printable_lines(finding.to_string()).c_str());
}

Status print_findings(const std::string& file, const config::Findings& findings, bool json) {
  const Status status = findings.to_status();
  if (json) {
    Json root;
    root["ok"] = status.ok();
    root["file"] = file;
    root["findings"] = Json::array();
    for (const Finding& finding : findings.all()) root["findings"].push_back(finding_json(finding));
    print_document(root, 2);
  } else {
    print_warnings(findings);
    if (status.ok())
      std::printf("%s: ok%s\n", printable(file).c_str(),
                  findings.warnings().empty() ? "" : ", with warnings");
  }
  return status;
}

void print_differences(const NamedTree& before, const NamedTree& after, bool json) {
  const auto differences = config::config_differences(before.tree, after.tree);
  const auto text = [](const config::Value* value) {
    return value == nullptr ? std::string("(absent)") : value->brief(200);
  };
  const auto origin = [](const config::Value* value) {
    return value == nullptr ? std::string() : config::short_origin(value->origin());
  };
  if (json) {
    Json list = Json::array();
    for (const auto& difference : differences)
      list.push_back(Json{{"key", difference.key},
                          {"before", text(difference.before)},
                          {"before_origin", origin(difference.before)},
                          {"after", text(difference.after)},
                          {"after_origin", origin(difference.after)}});
    print_document(list, 2);
    return;
  }
  std::printf("--- %s\n+++ %s\n", printable(before.file).c_str(), printable(after.file).c_str());
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
}

Status print_keys(const config::Schema& schema, const std::string& prefix, bool json) {
  Json list = Json::array();
  size_t shown = 0;
  for (const config::KeySpec* key : schema.all_keys()) {
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

}  // namespace aerie::tools
