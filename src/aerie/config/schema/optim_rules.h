// Which arguments the optimizers and schedules take. Internal to the schema library.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/config/schema/optim_config.h"
#include "aerie/config/value.h"

namespace aerie::config {

struct OptimizerRule {
  OptimizerKind kind;
  std::string_view name;        // "adamw"
  std::string_view class_name;  // "AdamW", as in `_target_`
  std::string_view arguments;   // "betas|eps|..."
};
std::span<const OptimizerRule> optimizer_rules();

struct ScheduleRule {
  ScheduleKind kind;
  std::string_view name;
  std::string_view arguments;
};
std::span<const ScheduleRule> schedule_rules();

const OptimizerRule* find_optimizer(std::string_view name);
const ScheduleRule* find_schedule(std::string_view name);

// The rule that a `model.optim` node asks for: `_target_`, else `name`, else adam; null when it
// names none that is built in.
const OptimizerRule* optimizer_of(const Value& optim);

// The argument of an optimizer or schedule node: from `args.params` where `args` is given, else
// from the node itself. Null when absent.
const Value* argument_of(const Value& node, std::string_view name);
// Path below the node of where arguments are written: "" or ".args.params".
std::string_view arguments_below(const Value& node);

// Keys of a node that are not arguments.
bool is_optimizer_meta(std::string_view key);
bool is_schedule_meta(std::string_view key);

}  // namespace aerie::config
