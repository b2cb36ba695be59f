#include "aerie/models/nest/config/test_util.h"

#include <gtest/gtest.h>

#include "aerie/base/strings.h"
#include "aerie/base/testing/paths.h"
#include "aerie/config/resolver.h"
#include "aerie/config/yaml.h"
#include "aerie/models/nest/config/nest_schema.h"
#include "aerie/models/nest/config/run_config.h"

namespace aerie::config {
namespace {

Checked check_value(const Value& written, ValidateOptions options) {
  Checked checked;
  Value config = nest_schema().aerie_defaults();
  const Status merged = merge(config, written);
  EXPECT_TRUE(merged.ok()) << merged.to_string();
  std::set<std::string> reads;
  ResolveOptions resolve_options;
  resolve_options.reads = &reads;
  auto resolved = resolve_all(config, resolve_options);
  if (!resolved.ok()) {
    ADD_FAILURE() << resolved.status().to_string();
    return checked;
  }
  checked.resolved = std::move(resolved).value();
  options.interpolation_reads = &reads;
  checked.findings = validate(nest_schema(), checked.resolved, options);
  if (checked.findings.errors().empty()) {
    auto run = build_run_config(checked.resolved);
    checked.build = run.status();
    if (run.ok()) checked.run = std::move(run).value();
  }
  return checked;
}

std::string lines(const std::vector<Finding>& findings) {
  std::string out;
  for (const Finding& finding : findings) out += finding.to_string() + "\n";
  return out;
}

}  // namespace

std::string Checked::errors() const {
  return lines(findings.errors()) + (build.ok() ? "" : build.to_string() + "\n");
}

std::string Checked::warnings() const {
  return lines(findings.warnings());
}

Checked check_text(const std::string& yaml, ValidateOptions options) {
  auto value = parse_yaml(yaml, "test.yaml");
  if (!value.ok()) {
    ADD_FAILURE() << value.status().to_string();
    return {};
  }
  return check_value(*value, options);
}

Checked check_file(const std::string& path, ValidateOptions options) {
  auto value = load_yaml(path);
  if (!value.ok()) {
    ADD_FAILURE() << value.status().to_string();
    return {};
  }
  return check_value(*value, options);
}

Checked check_stock(const std::vector<std::pair<std::string, Value>>& changes,
                    ValidateOptions options) {
  auto value = load_yaml(stock_path());
  if (!value.ok()) {
    ADD_FAILURE() << value.status().to_string();
    return {};
  }
  for (const auto& [key, change] : changes) {
    Value copy = change;
    copy.set_origin_deep(Origin::command_line(str_cat(key, "=", change.brief())));
    const Status status = value->set(key, std::move(copy));
    EXPECT_TRUE(status.ok()) << status.to_string();
  }
  return check_value(*value, options);
}

std::string stock_path() {
  return config_dir("/nest/nest_fast-conformer.yaml");
}

}  // namespace aerie::config
