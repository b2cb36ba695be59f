// Rules that involve more than one key. Internal to the schema library.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "aerie/config/schema/trainer_config.h"
#include "aerie/config/schema/validate.h"
#include "aerie/config/value.h"

namespace aerie::config {

// All rules; values of a wrong type are left out (validate() has reported them).
void check_relations(const Value& root, const ValidateOptions& options, Findings& findings);

// What the rules see: values by path, the table's default where a key is absent.
class CheckContext {
 public:
  CheckContext(const Value& root, const ValidateOptions& options, Findings& findings)
      : root_(root), options_(options), findings_(findings) {}

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

  const Value& root_;
  const ValidateOptions& options_;
  Findings& findings_;
};

// accelerator, devices and num_nodes; what cannot be read keeps its default.
TrainerConfig device_keys(const CheckContext& context);

void check_model(CheckContext& context);
void check_datasets(CheckContext& context);
void check_optim(CheckContext& context);
void check_trainer(CheckContext& context);

}  // namespace aerie::config
