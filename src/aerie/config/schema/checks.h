// Rules that involve more than one key: what those of the engine and of families look at.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "aerie/config/schema/trainer_config.h"
#include "aerie/config/schema/validate.h"
#include "aerie/config/value.h"

namespace aerie::config {

// What the rules see: values by path, the schema's default where a key is absent. Values of a wrong
// type are left out (validate() has reported them).
class CheckContext {
 public:
  CheckContext(const Schema& schema, const Value& root, const ValidateOptions& options,
               Findings& findings)
      : schema_(schema), root_(root), options_(options), findings_(findings) {
    // What is of the wrong type or out of range has been told so: a rule would only say it again.
    for (const Finding& finding : findings.all())
      if (finding.severity == Finding::Severity::kError) told_.insert(finding.key);
  }

  const Schema& schema() const { return schema_; }
  const ValidateOptions& options() const { return options_; }
  // The value as written; null when absent, null or `???`.
  const Value* written(std::string_view path) const;
  std::optional<int64_t> integer(std::string_view path) const;
  std::optional<double> number(std::string_view path) const;
  std::optional<bool> flag(std::string_view path) const;
  std::optional<std::string> text(std::string_view path) const;

  void error(std::string_view path, std::string message, std::string hint = {});
  void warn(std::string_view path, std::string message, std::string hint = {});

 private:
  const Value* effective(std::string_view path) const;
  void add(Finding::Severity severity, std::string_view path, std::string message,
           std::string hint);

  const Schema& schema_;
  const Value& root_;
  const ValidateOptions& options_;
  Findings& findings_;
  std::set<std::string, std::less<>> told_;
};

// accelerator, devices and num_nodes; what cannot be read keeps its default.
TrainerConfig device_keys(const CheckContext& context);

// Rules of the engine that a family with schedules of its own takes one by one: the optimizer
// without its schedule, and the trainer.
void check_optimizer(CheckContext& context);
void check_trainer(CheckContext& context);

// What rules about idle keys look at.
struct Situation {
  const CheckContext& config;
  bool one_device = true;
  bool gpu = false;
  std::string node;  // of a key below a placeholder: "model.train_ds."

  bool off(std::string_view key) const { return !config.flag(key).value_or(false); }
  bool absent(std::string_view key) const { return config.written(key) == nullptr; }
};

}  // namespace aerie::config
