// Rules about optimizer and schedule.
#include "aerie/base/strings.h"
#include "aerie/config/schema/checks.h"
#include "aerie/config/schema/engine_keys.h"
#include "aerie/config/schema/optim_rules.h"
#include "aerie/config/schema/schema.h"
#include "aerie/config/schema/type_spec.h"

namespace aerie::config {
namespace {

void check_arguments(CheckContext& context, const Value& node, const std::string& path,
                     std::string_view owner, std::string_view arguments,
                     bool (*is_meta)(std::string_view), bool is_error) {
  const std::string base = path + std::string(arguments_below(node));
  const Value* holder = context.written(base);
  if (holder == nullptr || !holder->is_map()) return;
  for (const MapEntry& entry : holder->as_map()) {
    if (is_meta(entry.key) || is_choice(entry.key, arguments)) continue;
    const std::string key = str_cat(base, ".", entry.key);
    const std::string message = str_cat(std::string(owner), " has no argument '", entry.key, "'");
    if (is_error)
      context.error(key, message, str_cat("remove it: ~", key));
    else
      context.warn(key, str_cat(message, "; it is left out"));
  }
}

double number_of(const Value& node, std::string_view name, double fallback) {
  const Value* value = argument_of(node, name);
  return value != nullptr && value->is_number() ? value->as_float() : fallback;
}

bool given(const Value& node, std::string_view name) {
  const Value* value = argument_of(node, name);
  return value != nullptr && !value->is_null();
}

void check_schedule(CheckContext& context, const Value& sched, double lr) {
  const std::string path = "model.optim.sched";
  const auto name = context.text(path + ".name");
  const ScheduleRule* rule = name ? find_schedule(*name) : nullptr;
  if (rule == nullptr) return;
  check_arguments(context, sched, path, rule->name, rule->arguments, is_schedule_meta, false);
  const std::string base = path + std::string(arguments_below(sched)) + ".";
  for (const char* what : {"warmup", "hold", "constant"})
    if (given(sched, str_cat(what, "_steps")) && given(sched, str_cat(what, "_ratio")))
      context.error(str_cat(base, what, "_ratio"), str_cat("given together with ", what, "_steps"),
                    str_cat("set one of them to null"));
  const bool compares_floor =
      rule->kind == ScheduleKind::kNoamAnnealing || rule->kind == ScheduleKind::kCosineAnnealing;
  const double floor = number_of(sched, "min_lr", 0.0);
  if (compares_floor && lr < floor)
    context.error(base + "min_lr", str_cat("is ", floor, ", above model.optim.lr = ", lr));
  const auto needs = [&](const char* key) {
    if (!given(sched, key))
      context.error(base + key, str_cat("is needed by ", std::string(rule->name)));
  };
  switch (rule->kind) {
    case ScheduleKind::kNoamAnnealing:
      needs("d_model");
      break;
    case ScheduleKind::kNoamHoldAnnealing:
      if (!given(sched, "warmup_ratio")) needs("warmup_steps");
      break;
    case ScheduleKind::kStepLR:
      needs("step_size");
      break;
    case ScheduleKind::kExponentialLR:
      needs("gamma");
      break;
    case ScheduleKind::kReduceLROnPlateau:
    case ScheduleKind::kCyclicLR: {
      const bool cyclic = rule->kind == ScheduleKind::kCyclicLR;
      if (cyclic) {
        needs("base_lr");
        needs("max_lr");
      }
      const Value* mode = argument_of(sched, "mode");
      const std::string_view modes = cyclic ? "triangular|triangular2|exp_range" : "min|max";
      if (mode != nullptr && mode->is_string() && !is_choice(mode->as_string(), modes))
        context.error(base + "mode",
                      str_cat("'", mode->as_string(), "' is no mode of ", std::string(rule->name),
                              ": expected one of ", join(choice_names(modes), ", ")));
      break;
    }
    default:
      break;
  }
}

void check_betas(CheckContext& context, const std::string& path) {
  const Value* betas = context.written(path);
  if (betas != nullptr && betas->is_list() && betas->as_list().size() != 2)
    context.error(path, str_cat("expected two numbers, got ", betas->brief()));
}

}  // namespace

void check_optimizer(CheckContext& context) {
  const Value* optim = context.written("model.optim");
  if (optim == nullptr || !optim->is_map()) return;
  const OptimizerRule* rule = optimizer_of(*optim);
  if (rule != nullptr)
    check_arguments(context, *optim, "model.optim", rule->name, rule->arguments, is_optimizer_meta,
                    true);
  const std::string base = "model.optim" + std::string(arguments_below(*optim)) + ".";
  check_betas(context, base + "betas");
  if (rule != nullptr && rule->kind == OptimizerKind::kSgd) {
    const Value* nesterov = argument_of(*optim, "nesterov");
    if (nesterov != nullptr && nesterov->is_bool() && nesterov->as_bool() &&
        (number_of(*optim, "momentum", 0) <= 0 || number_of(*optim, "dampening", 0) != 0))
      context.error(base + "nesterov", "needs a momentum above 0 and no dampening");
  }
}

void check_optim(CheckContext& context) {
  check_optimizer(context);
  const Value* sched = context.written("model.optim.sched");
  if (sched != nullptr && sched->is_map())
    check_schedule(context, *sched, context.number("model.optim.lr").value_or(1e-3));
  const Value* groups = context.written("model.optim_param_groups");
  if (groups == nullptr || !groups->is_map()) return;
  for (const MapEntry& entry : groups->as_map()) {
    const std::string path = str_cat("model.optim_param_groups.", entry.key);
    check_betas(context, path + ".betas");
    const SchemaParts& parts = context.schema().parts();
    if (!is_choice(entry.key, parts.model_parts))
      context.error(path, str_cat("'", entry.key, "' not found in model"),
                    std::string(parts.model_parts_hint));
  }
}

}  // namespace aerie::config
