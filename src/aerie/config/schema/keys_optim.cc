// The keys of `model.optim`, `model.optim.sched` and `model.optim_param_groups`. Which of them an
// optimizer or a schedule takes is decided by its name (checks_optim.cc): an argument of another
// one is an error, as in NeMo. Arguments may stand in `args.params` instead, so they are tables of
// their own.
#include "aerie/base/strings.h"
#include "aerie/config/schema/build_loop_config.h"
#include "aerie/config/schema/engine_keys.h"
#include "aerie/config/schema/field_keys.h"
#include "aerie/config/schema/optim_rules.h"

namespace aerie::config {
namespace {

constexpr std::string_view kOtherOptimizers =
    "adadelta|adamax|adagrad|rmsprop|rprop|adafactor|adan|lamb|fused_adam|distributed_fused_adam|"
    "mcore_distributed_optim";

template <typename Rule>
std::string names_of(std::span<const Rule> rules) {
  std::vector<std::string> names;
  for (const Rule& rule : rules) names.emplace_back(rule.name);
  return join(names, "|");
}
std::string_view optimizer_names() {
  static const std::string kNames =
      str_cat(names_of(optimizer_rules()), "|", std::string(kOtherOptimizers));
  return kNames;
}
std::string_view schedule_names() {
  static const std::string kNames = names_of(schedule_rules());
  return kNames;
}

// torch's AdamW is Adam with this argument, and with another default of the decay.
void read_decoupled(const NodeReader& node, std::string_view key, OptimConfig& out) {
  bool decoupled = false;
  node.read(key, decoupled);
  if (decoupled) out.kind = OptimizerKind::kAdamW;
}

const FieldKeys<ParamGroupConfig>& group_keys() {
  using T = ParamGroupConfig;
  static const FieldKeys<T> table("model.optim_param_groups.*", [](FieldKeys<T>& keys) {
    keys.key("lr", &T::lr, works("Learning rate of this group.").range(">=0").not_null());
    keys.key("betas", &T::betas, works("Decay of this group's moments.").range("[0,1)").not_null());
    keys.key("eps", &T::eps,
             works("Floor of the denominator in this group.").range(">=0").not_null());
    keys.key("weight_decay", &T::weight_decay,
             works("Weight decay of this group.").range(">=0").not_null());
    keys.key("momentum", &T::momentum,
             works("sgd: momentum of this group.").range(">=0").not_null());
    keys.key("dampening", &T::dampening,
             works("sgd: dampening of this group's momentum.").not_null());
    keys.key("nesterov", &T::nesterov, works("sgd: Nesterov momentum in this group.").not_null());
    keys.key("amsgrad", &T::amsgrad,
             works("adam, adamw: AMSGrad in this group (the largest second moment so far divides).")
                 .not_null());
  });
  return table;
}

const FieldKeys<OptimConfig>& optimizer_keys() {
  using T = OptimConfig;
  static const FieldKeys<T> table("model.optim", [](FieldKeys<T>& keys) {
    keys.row("name", "str|null", "adam",
             works("Which optimizer updates the weights.")
                 .choices(optimizer_names())
                 .refuses(kOtherOptimizers, "built in are adamw, adam, sgd and novograd"));
    keys.row("_target_", "str|null", "null",
             works("The optimizer's class instead of its name: torch.optim.AdamW and so on."));
    keys.key("lr", &T::lr,
             works("Learning rate. NoamAnnealing multiplies it by d_model^-0.5.").range(">=0"));
  });
  return table;
}

const FieldKeys<OptimConfig>& optimizer_arguments() {
  using T = OptimConfig;
  static const FieldKeys<T> table("model.optim", [](FieldKeys<T>& keys) {
    keys.key("betas", &T::betas,
             works("Decay of the moments; novograd's default is [0.95, 0.98].").range("[0,1)"));
    keys.key("eps", &T::eps,
             works("Added to the denominator of the update, so that it is never 0.").range(">=0"));
    keys.key(
        "weight_decay", &T::weight_decay,
        works("Absent: 0.01 for adamw, else 0. Applies to every parameter, as in NeMo, but see "
              "aerie.no_weight_decay.")
            .range(">=0")
            .no_default());
    keys.key("amsgrad", &T::amsgrad,
             works("adamw, adam, novograd: divide by the largest second moment so far (AMSGrad)."));
    keys.row(
        "decoupled_weight_decay", "bool", "false",
        works("adam: the decay acts on the weights instead of the gradient, which makes it adamw."),
        read_decoupled);
    keys.key("maximize", &T::maximize, works("Go up the gradient instead of down."));
    keys.row("foreach", "bool|null", "null",
             no_effect("How torch loops over tensors; the same numbers."));
    keys.row("fused", "bool|null", "null",
             no_effect("How torch loops over tensors; the same numbers."));
    keys.row("capturable", "bool", "false", no_effect("A detail of CUDA graphs."));
    keys.row("differentiable", "bool", "false", no_effect("A detail of autograd."));
    keys.key("momentum", &T::momentum,
             works("sgd: share of the last update that is kept.").range(">=0").whole());
    keys.key("dampening", &T::dampening,
             works("sgd: share of the gradient that momentum leaves out.").whole());
    keys.key("nesterov", &T::nesterov, works("sgd: look ahead along the momentum (Nesterov)."));
    keys.key("grad_averaging", &T::grad_averaging,
             works("novograd: weight the gradient by 1 - beta1."));
    keys.key("luc", &T::luc, works("novograd: bound each layer's update by its weights' norm."));
    keys.key("luc_trust", &T::luc_trust,
             works("novograd with luc: the bound, as a share of the norm.").range(">0"));
    keys.key("luc_eps", &T::luc_eps,
             works("novograd with luc: floor of the update's norm.").range(">=0"));
  });
  return table;
}

const FieldKeys<OptimConfig>& optimizer_args_keys() {
  using T = OptimConfig;
  static const FieldKeys<T> table("model.optim", [](FieldKeys<T>& keys) {
    keys.row("args", "map|null", "null",
             works("NeMo's older style: `{name: auto, params: {betas: ...}}`. With it an absent "
                   "weight_decay is "
                   "0."));
    keys.row(
        "args.name", "str|null", "auto",
        works("Whose parameters they are; `auto`: the optimizer's own.").choices("auto|*_params"));
    keys.row("args.params", "map|null", "null", works("Arguments of the optimizer, by name."));
    keys.row("args.params.*", "any", "", works("Any argument of model.optim; the same rules."));
  });
  return table;
}

const FieldKeys<SchedulerConfig>& schedule_keys() {
  using T = SchedulerConfig;
  static const FieldKeys<T> table("model.optim.sched", [](FieldKeys<T>& keys) {
    keys.row("name", "str", "",
             works("Which schedule sets the learning rate.").choices(schedule_names()).required());
    keys.key("max_steps", &T::max_steps,
             works("Length of the schedule where trainer.max_steps is not given; there -1 means no "
                   "schedule.")
                 .range(">=-1"));
  });
  return table;
}

const FieldKeys<SchedulerConfig>& schedule_arguments() {
  using T = SchedulerConfig;
  static const FieldKeys<T> table("model.optim.sched", [](FieldKeys<T>& keys) {
    keys.key("warmup_steps", &T::warmup_steps,
             works("Optimizer steps in which the rate rises from 0.").range(">=0"));
    keys.key(
        "warmup_ratio", &T::warmup_ratio,
        works("Warm-up as a share of max_steps; not together with warmup_steps.").range("[0,1]"));
    keys.key("hold_steps", &T::hold_steps,
             works("Steps at the full rate after warm-up (Hold schedules).").range(">=0"));
    keys.key("hold_ratio", &T::hold_ratio,
             works("The same as a share of max_steps.").range("[0,1]"));
    keys.key("constant_steps", &T::constant_steps,
             works("CosineAnnealing, T5InverseSquareRootAnnealing: steps at a constant rate.")
                 .range(">=0"));
    keys.key("constant_ratio", &T::constant_ratio,
             works("The same as a share of max_steps.").range("[0,1]"));
    keys.key("min_lr", &T::min_lr,
             works("Floor of the rate; SquareAnnealing's default is 1e-5.").range(">=0"));
    keys.key("d_model", &T::d_model,
             works("NoamAnnealing: the width that scales the rate; required there.")
                 .range(">=1")
                 .no_default());
    keys.key("decay_rate", &T::decay_rate,
             works("NoamHoldAnnealing: exponent of the fall after the hold.").range(">=0"));
    keys.key("power", &T::power, works("Polynomial schedules: exponent of the fall."));
    keys.key("cycle", &T::cycle,
             works("Polynomial schedules: start again when the end is reached."));
    keys.key("last_epoch", &T::last_epoch, no_effect("A resumed run finds its own step."));
    keys.key("step_size", &T::step_size,
             works("StepLR: steps from one drop of the rate to the next.").range(">=1"));
    keys.key(
        "gamma", &T::gamma,
        works("StepLR (0.1), ExponentialLR (required), CyclicLR (1.0).").range(">0").no_default());
    keys.key("mode", &T::mode,
             works("ReduceLROnPlateau: min (default) or max; CyclicLR: triangular (default), ...")
                 .choices("min|max|triangular|triangular2|exp_range")
                 .no_default());
    keys.key("factor", &T::factor,
             works("ReduceLROnPlateau: what the rate is multiplied by.").range("(0,1)"));
    keys.key("patience", &T::patience,
             works("ReduceLROnPlateau: epochs without improvement before it acts.").range(">=0"));
    keys.key("threshold", &T::threshold,
             works("ReduceLROnPlateau: least change that counts as an improvement.").range(">=0"));
    keys.choice(
        "threshold_mode", &T::threshold_rel, {{"rel", true}, {"abs", false}},
        works("ReduceLROnPlateau: whether threshold is a share of the best or a difference."));
    keys.key("cooldown", &T::cooldown,
             works("ReduceLROnPlateau: epochs it waits after it acted.").range(">=0"));
    keys.key("eps", &T::eps,
             works("ReduceLROnPlateau: smaller changes of the rate are not made.").range(">=0"));
    keys.row("verbose", "bool|str", "false", no_effect("Deprecated in torch."));
    keys.key("base_lr", &T::base_lr, works("CyclicLR: the lowest rate of a cycle.").range(">=0"));
    keys.key("max_lr", &T::max_lr, works("CyclicLR: the highest rate of a cycle.").range(">=0"));
    keys.key("step_size_up", &T::step_size_up,
             works("CyclicLR: steps in which the rate rises.").range(">=1"));
    keys.key("step_size_down", &T::step_size_down,
             works("CyclicLR: steps in which it falls; null: as many.").range(">=1"));
    keys.choice("scale_mode", &T::scale_per_cycle, {{"cycle", true}, {"iterations", false}},
                works("CyclicLR: whether the height shrinks by cycles or by steps."));
    keys.key("cycle_momentum", &T::cycle_momentum,
             works("CyclicLR: momentum moves against the rate."));
    keys.key("base_momentum", &T::base_momentum,
             works("CyclicLR: momentum where the rate is highest.").range(">=0"));
    keys.key("max_momentum", &T::max_momentum,
             works("CyclicLR: momentum where the rate is lowest.").range(">=0"));
  });
  return table;
}

const FieldKeys<SchedulerConfig>& schedule_other_keys() {
  using T = SchedulerConfig;
  static const FieldKeys<T> table("model.optim.sched", [](FieldKeys<T>& keys) {
    keys.key("monitor", &T::monitor,
             works("What ReduceLROnPlateau watches; `loss` is the training loss.").nullable());
    keys.row("reduce_on_plateau", "bool", "false", no_effect("Follows from the schedule's name."));
    keys.row("iters_per_batch", "any", "null", no_effect("Computed."));
    keys.row("t_max_epochs", "any", "null", no_effect("Computed."));
    keys.row("t_accumulate_grad_batches", "any", "null", no_effect("Computed."));
    keys.row("t_limit_train_batches", "any", "null", no_effect("Computed."));
    keys.row("t_num_workers", "any", "null", no_effect("Computed."));
    keys.row("args", "map|null", "null",
             works("NeMo's older style: `{name: auto, params: {warmup_steps: ...}}`."));
    keys.row(
        "args.name", "str|null", "auto",
        works("Whose parameters they are; `auto`: the schedule's own.").choices("auto|*Params"));
    keys.row("args.params", "map|null", "null", works("Arguments of the schedule, by name."));
    keys.row("args.params.*", "any", "",
             works("Any argument of model.optim.sched; the same rules."));
  });
  return table;
}

constexpr KeySpec kOptim = {"model.optim",
                            "map|null",
                            "",
                            "",
                            "",
                            KeyStatus::kWorks,
                            "The optimizer and its schedule; null: nothing is trained."};
constexpr KeySpec kSched = {"model.optim.sched",
                            "map|null",
                            "null",
                            "",
                            "",
                            KeyStatus::kWorks,
                            "The learning-rate schedule; null or absent: constant."};
constexpr KeySpec kGroups = {
    "model.optim_param_groups",
    "map|null",
    "null",
    "",
    "",
    KeyStatus::kWorks,
    "Own optimizer settings per part of the model: `{encoder: {lr: 1e-4}}`."};

void append(std::vector<KeySpec>& rows, std::span<const KeySpec> more) {
  rows.insert(rows.end(), more.begin(), more.end());
}

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
  schedule_keys().read(node, out);
  // NeMo puts the trainer's bound over it before it looks.
  const bool bounded = trainer.max_steps >= 0 || trainer.fast_dev_run > 0;
  if (out.max_steps == -1 && !bounded) return std::nullopt;
  out.min_lr = out.kind == ScheduleKind::kSquareAnnealing ? 1e-5 : 0.0;
  out.gamma = out.kind == ScheduleKind::kCyclicLR ? 1.0 : 0.1;
  out.mode = out.kind == ScheduleKind::kCyclicLR ? "triangular" : "min";
  schedule_arguments().read(arguments_reader(node), out);
  schedule_other_keys().read(node, out);
  return out;
}

}  // namespace

std::vector<KeySpec> optim_group_keys() {
  std::vector<KeySpec> rows = {kGroups};
  append(rows, group_keys().rows());
  return rows;
}

std::vector<KeySpec> optim_keys() {
  std::vector<KeySpec> rows = {kOptim};
  append(rows, optimizer_keys().rows());
  append(rows, optimizer_arguments().rows());
  append(rows, optimizer_args_keys().rows());
  rows.push_back(kSched);
  append(rows, schedule_keys().rows());
  append(rows, schedule_arguments().rows());
  append(rows, schedule_other_keys().rows());
  return rows;
}

void build_optim(const NodeReader& model, const TrainerConfig& trainer, OptimConfig& optim,
                 std::vector<ParamGroupConfig>& groups) {
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
    optimizer_keys().read(node, optim);
    optimizer_arguments().read(args, optim);
    optim.sched = build_schedule(node.child("sched"), trainer);
  }
  const NodeReader nodes = model.child("optim_param_groups");
  if (!nodes.is_map()) return;
  for (const MapEntry& entry : nodes.node()->as_map()) {
    ParamGroupConfig one;
    one.module = entry.key;
    group_keys().read(nodes.child(entry.key), one);
    groups.push_back(std::move(one));
  }
}

}  // namespace aerie::config
