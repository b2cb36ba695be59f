#include "aerie/config/schema/build_loop_config.h"
#include "aerie/config/schema/optim_rules.h"

namespace aerie::config {
namespace {

NodeReader arguments_reader(const NodeReader& node) {
  if (node.is_map() && !arguments_below(*node.node()).empty())
    return node.child("args").child("params");
  return node;
}

std::optional<SchedulerConfig> build_schedule(const NodeReader& node,
                                              const TrainerConfig& trainer) {
  if (!node.is_map()) return std::nullopt;
  SchedulerConfig out;
  node.read("name", out.name);
  const ScheduleRule* rule = find_schedule(out.name);
  if (rule == nullptr) {
    node.fail("name", *node.node(), str_cat("unknown schedule '", out.name, "'"));
    return std::nullopt;
  }
  out.kind = rule->kind;
  const NodeReader args = arguments_reader(node);
  node.read("max_steps", out.max_steps);
  // NeMo puts the trainer's bound over it before it looks.
  const bool bounded = trainer.max_steps >= 0 || trainer.fast_dev_run > 0;
  if (out.max_steps == -1 && !bounded) return std::nullopt;
  args.read("warmup_steps", out.warmup_steps);
  args.read("warmup_ratio", out.warmup_ratio);
  args.read("hold_steps", out.hold_steps);
  args.read("hold_ratio", out.hold_ratio);
  args.read("constant_steps", out.constant_steps);
  args.read("constant_ratio", out.constant_ratio);
  out.min_lr = out.kind == ScheduleKind::kSquareAnnealing ? 1e-5 : 0.0;
  args.read("min_lr", out.min_lr);
  args.read("d_model", out.d_model);
  args.read("decay_rate", out.decay_rate);
  args.read("power", out.power);
  args.read("cycle", out.cycle);
  args.read("last_epoch", out.last_epoch);
  args.read("step_size", out.step_size);
  out.gamma = out.kind == ScheduleKind::kCyclicLR ? 1.0 : 0.1;
  args.read("gamma", out.gamma);
  out.mode = out.kind == ScheduleKind::kCyclicLR ? "triangular" : "min";
  args.read("mode", out.mode);
  args.read("factor", out.factor);
  args.read("patience", out.patience);
  args.read("threshold", out.threshold);
  args.read_enum("threshold_mode", out.threshold_rel, {{"rel", true}, {"abs", false}});
  args.read("cooldown", out.cooldown);
  args.read("eps", out.eps);
  node.read("monitor", out.monitor);
  args.read("base_lr", out.base_lr);
  args.read("max_lr", out.max_lr);
  args.read("step_size_up", out.step_size_up);
  args.read("step_size_down", out.step_size_down);
  args.read_enum("scale_mode", out.scale_per_cycle, {{"cycle", true}, {"iterations", false}});
  args.read("cycle_momentum", out.cycle_momentum);
  args.read("base_momentum", out.base_momentum);
  args.read("max_momentum", out.max_momentum);
  return out;
}

}  // namespace

void build_optim(const NodeReader& model, const TrainerConfig& trainer, OptimConfig& optim,
                 std::vector<ParamGroupConfig>& groups_out) {
  const NodeReader node = model.child("optim");
  if (node.is_map()) {
    const OptimizerRule* rule = optimizer_of(*node.node());
    if (rule == nullptr) {
      node.fail("name", *node.node(), "this optimizer is not built in");
      return;
    }
    optim.kind = rule->kind;
    optim.name = rule->name;
    const NodeReader args = arguments_reader(node);
    const bool plain_style = args.path() == node.path();
    if (rule->kind == OptimizerKind::kNovograd) optim.betas = {0.95, 0.98};
    // torch's own default; NeMo's structured style (args) starts from 0 instead.
    if (rule->kind == OptimizerKind::kAdamW && plain_style) optim.weight_decay = 1e-2;
    node.read("lr", optim.lr);
    args.read("betas", optim.betas);
    args.read("eps", optim.eps);
    args.read("weight_decay", optim.weight_decay);
    args.read("amsgrad", optim.amsgrad);
    args.read("maximize", optim.maximize);
    // torch's AdamW is Adam with this argument, and with another default of the decay.
    bool decoupled = false;
    args.read("decoupled_weight_decay", decoupled);
    if (decoupled) optim.kind = OptimizerKind::kAdamW;
    args.read("momentum", optim.momentum);
    args.read("dampening", optim.dampening);
    args.read("nesterov", optim.nesterov);
    args.read("grad_averaging", optim.grad_averaging);
    args.read("luc", optim.luc);
    args.read("luc_trust", optim.luc_trust);
    args.read("luc_eps", optim.luc_eps);
    optim.sched = build_schedule(node.child("sched"), trainer);
  }
  const NodeReader groups = model.child("optim_param_groups");
  if (!groups.is_map()) return;
  for (const MapEntry& entry : groups.node()->as_map()) {
    const NodeReader group = groups.child(entry.key);
    ParamGroupConfig one;
    one.module = entry.key;
    group.read("lr", one.lr);
    group.read("betas", one.betas);
    group.read("eps", one.eps);
    group.read("weight_decay", one.weight_decay);
    group.read("momentum", one.momentum);
    group.read("dampening", one.dampening);
    group.read("nesterov", one.nesterov);
    group.read("amsgrad", one.amsgrad);
    groups_out.push_back(std::move(one));
  }
}

}  // namespace aerie::config
