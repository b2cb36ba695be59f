#include "aerie/config/schema/engine_keys.h"
#include "aerie/config/schema/schema.h"

namespace aerie::config {
namespace {

template <typename T>
std::vector<T> list(std::span<const T> items) {
  return {items.begin(), items.end()};
}

}  // namespace

SchemaParts engine_schema() {
  SchemaParts parts;
  parts.groups = {
      {"Top level", "Unknown keys here are reported and otherwise left alone.",
       list(top_level_keys())},
      {"aerie",
       "Our own keys. The node always exists with these defaults, so `aerie.seed=1` needs no `+`, "
       "whatever file is loaded.",
       list(own_fields().rows())},
      {"model", "", optim_group_keys()},
      {"model.optim",
       "The keys an optimizer or a schedule takes depend on its name; one that belongs to another "
       "is an error.",
       optim_keys()},
      {"trainer", "Lightning's Trainer.", list(trainer_fields().rows())},
      {"exp_manager", "NeMo's experiment manager; keys outside this list are always errors.",
       list(exp_manager_fields().rows())},
  };
  parts.shared = {
      {"model.optim.args.params", "model.optim", "args|sched|name|_target_"},
      {"model.optim.sched.args.params", "model.optim.sched", "args|name"},
  };
  parts.targets = list(engine_targets());
  parts.checks = {check_init_from, check_optim, check_trainer};
  parts.idle_rules = list(engine_idle_rules());
  return parts;
}

}  // namespace aerie::config
