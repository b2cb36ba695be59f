// Runner, optimizer, precision, policies, evaluation, checkpoints and logs.
#include <algorithm>
#include <limits>
#include <tuple>

#include "aerie/base/strings.h"
#include "aerie/config/schema/optim_rules.h"
#include "aerie/config/schema/type_spec.h"
#include "aerie/models/bev/config/mm_parts.h"
#include "aerie/models/bev/config/policies.h"

namespace aerie::bev {
namespace {

using config::List;
using config::Value;

Value at(const Value& value, const Value& from) {
  Value out = value;
  return std::move(out).with_origin(from.origin());
}

bool is_set(const Value* value) {
  return value != nullptr && value->is_bool() && value->as_bool();
}

// Any of the three spellings; they must agree.
void accumulation(MmState& state, MmNode& node, std::string_view key) {
  if (const Value* count = node.take(key); count != nullptr)
    state.set("trainer.accumulate_grad_batches", *count, node.path_of(key));
}

// A scale that is not given may stand in another dict: mmseg writes it into optimizer_config,
// beside an empty fp16.
void loss_scale(MmState& state, const Value* scale, const Value& from) {
  state.set("trainer.precision", at(Value("16-mixed"), from));
  if (scale != nullptr) state.set("aerie.loss_scale", *scale, "loss_scale");
}

void grad_clip(MmState& state, MmNode node) {
  if (!node.present()) return;
  node.move("max_norm", "trainer.gradient_clip_val");
  if (const Value* clip = node.take("clip_value"); clip != nullptr) {
    state.set("trainer.gradient_clip_val", *clip, node.path_of("clip_value"));
    state.set("trainer.gradient_clip_algorithm", at(Value("value"), *clip));
  }
  if (const Value* norm = node.take("norm_type"); norm != nullptr)
    state.set(
        "trainer.gradient_clip_norm_type",
        *norm == Value("inf") ? at(Value(std::numeric_limits<double>::infinity()), *norm) : *norm);
  node.ignore({"error_if_nonfinite", "type"});
  node.finish();
}

void multipliers(MmNode node) {
  if (!node.present()) return;
  constexpr const char* kGroups = "model.optim.param_groups.";
  node.move("custom_keys", std::string(kGroups) + "custom_keys");
  for (const char* key :
       {"bias_lr_mult", "bias_decay_mult", "norm_decay_mult", "dwconv_decay_mult"})
    node.move(key, std::string(kGroups) + key);
  node.ignore({"bypass_duplicate"});
  node.ignore({"dcn_offset_lr_mult"}, "there are no deformable convolutions");
  node.finish();
}

void optimizer(MmState& state, MmNode node) {
  if (!node.present()) return;
  const std::string type = node.text("type");
  const std::string name = to_lower(type);
  if (name != "adamw" && name != "adam" && name != "sgd" && name != "novograd")
    state.error(node.path_of("type"), node.value(), str_cat("there is no optimizer '", type, "'"),
                "AdamW, Adam, SGD and Novograd are there");
  else
    state.set("model.optim.name", at(Value(name), *node.take("type")));
  const config::OptimizerRule* rule = config::find_optimizer(name);
  for (const char* key : {"betas", "eps", "amsgrad", "momentum", "dampening", "nesterov"}) {
    const Value* value = node.take(key);
    if (value != nullptr && rule != nullptr && !config::is_choice(key, rule->arguments))
      state.error(node.path_of(key), *value, str_cat(type, " has no argument '", key, "'"),
                  "leave it out; _delete_=True in the dict leaves out what a base says");
    else
      node.move(key, str_cat("model.optim.", key));
  }
  for (const char* key : {"lr", "weight_decay", "lr_scaling"})
    node.move(key, str_cat("model.optim.", key));
  multipliers(node.child("paramwise_cfg"));
  node.ignore({"constructor", "foreach", "fused", "capturable", "differentiable", "maximize"});
  node.finish();
}

void optimizer_config(MmState& state, MmNode node) {
  if (!node.present()) return;
  const std::string type = node.text("type");
  const bool half = type == "Fp16OptimizerHook" || type == "GradientCumulativeFp16OptimizerHook";
  if (!type.empty() && !half && type != "OptimizerHook" &&
      type != "GradientCumulativeOptimizerHook")
    state.error(node.path_of("type"), node.value(), str_cat("there is no hook '", type, "'"),
                "OptimizerHook, Fp16OptimizerHook, GradientCumulativeOptimizerHook and "
                "GradientCumulativeFp16OptimizerHook are there");
  grad_clip(state, node.child("grad_clip"));
  accumulation(state, node, "cumulative_iters");
  const Value* scale = node.take("loss_scale");
  if (half) loss_scale(state, scale, node.value());
  if (!half && scale != nullptr)
    state.error(node.path_of("loss_scale"), *scale, "only hooks of fp16 have a loss scale",
                "type='Fp16OptimizerHook', or fp16=dict(loss_scale=...)");
  node.ignore({"coalesce", "bucket_size_mb", "distributed", "detect_anomalous_params"});
  node.finish();
}

// mmengine's optim_wrapper; whether it is one of fp16.
bool optim_wrapper(MmState& state, MmNode node) {
  if (!node.present()) return false;
  const std::string type = node.text("type");
  if (!type.empty() && type != "OptimWrapper" && type != "AmpOptimWrapper")
    state.error(node.path_of("type"), node.value(), str_cat("there is no wrapper '", type, "'"),
                "OptimWrapper and AmpOptimWrapper are there");
  const std::string dtype = node.text("dtype");
  const Value* scale = node.take("loss_scale");
  const bool half = type == "AmpOptimWrapper" && dtype != "bfloat16";
  if (half)
    loss_scale(state, scale, node.value());
  else if (type == "AmpOptimWrapper")
    state.set("trainer.precision", at(Value("bf16-mixed"), node.value()));
  accumulation(state, node, "accumulative_counts");
  grad_clip(state, node.child("clip_grad"));
  multipliers(node.child("paramwise_cfg"));
  MmNode wrapped = node.child("optimizer");
  // Arguments of both would be mixed.
  if (wrapped.present() && state.native.find("model.optim") != nullptr)
    state.error(node.path_of("optimizer"), wrapped.value(),
                "there is an optimizer outside of it too",
                "write one of them; mmcv 1.x has optimizer and optimizer_config");
  else
    optimizer(state, std::move(wrapped));
  node.ignore({"constructor"});
  node.finish();
  return half;
}

void policy(MmState& state, MmNode node, const std::string& native, bool momentum,
            RunnerKind runner) {
  if (!node.present()) return;
  const std::string name = node.text("policy");
  const Policy* found = find_policy(name);
  if (found == nullptr || (momentum && found->momentum_arguments == "-")) {
    std::vector<std::string> known;
    for (const std::string& one : split(momentum ? momentum_policy_names() : policy_names(), '|'))
      if (find_policy(one)->name == one) known.push_back(one);  // one spelling of each
    const std::string near = nearest_name(name, known);
    return state.error(node.path_of("policy"), node.value(),
                       str_cat("there is no policy '", name, "'"),
                       near.empty() ? str_cat("there are ", join(known, ", "))
                                    : str_cat("did you mean '", near, "'?"));
  }
  state.set(native, Value(config::Map()).with_origin(node.value().origin()));
  state.set(native + ".name", at(Value(found->name), *node.take("policy")));
  // mmcv's runner of iterations changes the default of its hooks.
  const bool by_iteration = found->policy == optim::MmPolicy::kCyclic ||
                            found->policy == optim::MmPolicy::kOneCycle ||
                            runner == RunnerKind::kIterations;
  if (const Value* by_epoch = node.take("by_epoch"); by_epoch != nullptr)
    state.set(native + ".by_epoch", *by_epoch);
  else
    state.set(native + ".by_epoch", Value(!by_iteration));
  for (const char* key : {"warmup", "warmup_iters", "warmup_ratio", "warmup_by_epoch"})
    node.move(key, str_cat(native, ".", key));
  const std::string_view arguments = momentum ? found->momentum_arguments : found->arguments;
  if (!arguments.empty())
    for (const std::string& key : split(arguments, '|')) node.move(key, str_cat(native, ".", key));
  node.finish();
}

}  // namespace

RunnerKind translate_runner(MmState& state, MmNode& top) {
  MmNode node = top.child("runner");
  const Value* epochs = nullptr;
  const Value* iterations = nullptr;
  RunnerKind kind = RunnerKind::kIterations;
  if (node.present()) {
    const std::string type = node.text("type");
    if (type == "EpochBasedRunner" || type == "CustomEpochBasedRunner")
      kind = RunnerKind::kEpochs;
    else if (type != "IterBasedRunner")
      state.error(node.path_of("type"), node.value(), str_cat("there is no runner '", type, "'"),
                  "IterBasedRunner, EpochBasedRunner and CustomEpochBasedRunner are there");
    epochs = node.take("max_epochs");
    iterations = node.take("max_iters");
    accumulation(state, node, "accumulative_counts");
    node.ignore({"dataset"});
    node.finish();
    if (kind == RunnerKind::kIterations && epochs != nullptr)
      state.error(
          node.path_of("max_epochs"), *epochs, "IterBasedRunner counts iterations",
          "write max_iters, or type='EpochBasedRunner'; _delete_=True in the dict leaves out "
          "what a base says");
    if (kind == RunnerKind::kEpochs && iterations != nullptr)
      state.error(
          node.path_of("max_iters"), *iterations, "EpochBasedRunner counts epochs",
          "write max_epochs, or type='IterBasedRunner'; _delete_=True in the dict leaves out "
          "what a base says");
  }
  // Older files, which have no runner.
  const Value* total_epochs = top.take("total_epochs");
  const Value* total_iters = top.take("total_iters");
  if (node.present()) {
    for (const auto& [name, total, length] : {std::tuple{"total_epochs", total_epochs, epochs},
                                              std::tuple{"total_iters", total_iters, iterations}})
      if (total != nullptr && (length == nullptr || !(*total == *length)))
        state.warn(name, *total, "is not used: runner says how long the run is",
                   length == nullptr ? "" : str_cat("it says ", length->brief(40)));
  } else if (total_epochs != nullptr) {
    epochs = total_epochs;
    kind = RunnerKind::kEpochs;
  } else {
    iterations = total_iters;
  }
  state.set("aerie.step_unit", Value("micro"));
  if (kind == RunnerKind::kIterations && iterations != nullptr)
    state.set("trainer.max_steps", *iterations);
  if (kind == RunnerKind::kEpochs && epochs != nullptr) state.set("trainer.max_epochs", *epochs);
  if ((kind == RunnerKind::kIterations ? iterations : epochs) == nullptr) {
    const Value* newer = top.take("train_cfg");
    state.error("runner",
                node.present()     ? node.value()
                : newer != nullptr ? *newer
                                   : Value(),
                "the length of the run is not given",
                str_cat(newer != nullptr ? "train_cfg is mmengine's; mmcv 1.x has runner, data, "
                                           "lr_config and evaluation: "
                                         : "",
                        "runner=dict(type='IterBasedRunner', max_iters=200000)"));
  }
  return kind;
}

void translate_optimizer(MmState& state, MmNode& top) {
  optimizer(state, top.child("optimizer"));
  optimizer_config(state, top.child("optimizer_config"));
  const bool amp = optim_wrapper(state, top.child("optim_wrapper"));
  if (const Value* fp16 = top.take("fp16"); fp16 != nullptr) {
    MmNode node(state, fp16, "fp16");
    const Value* enabled = node.take("enabled");
    const Value* scale = node.take("loss_scale");
    if (node.present() && (enabled == nullptr || is_set(enabled))) loss_scale(state, scale, *fp16);
    node.ignore({"distributed", "coalesce", "bucket_size_mb"});
    node.finish();
  }
  // mmcv's default is 512, mmengine's `dynamic`.
  const Value* precision = state.native.find("trainer.precision");
  if (precision != nullptr && *precision == Value("16-mixed") &&
      state.native.find("aerie.loss_scale") == nullptr)
    state.set("aerie.loss_scale", at(amp ? Value("dynamic") : Value(512.0), *precision));
}

void translate_policies(MmState& state, MmNode& top, RunnerKind runner) {
  policy(state, top.child("lr_config"), "model.optim.sched", false, runner);
  policy(state, top.child("momentum_config"), "model.optim.momentum_sched", true, runner);
}

void translate_evaluation(MmState& state, MmNode& top, RunnerKind runner) {
  MmNode node = top.child("evaluation");
  const bool by_epoch = runner == RunnerKind::kEpochs;
  const Value* counts_epochs = node.take("by_epoch");
  if (counts_epochs != nullptr && is_set(counts_epochs) != by_epoch)
    state.error(node.path_of("by_epoch"), *counts_epochs,
                "evaluations count as the runner does: iterations or epochs");
  const Value* interval = node.take("interval");
  if (by_epoch) {
    state.set("trainer.check_val_every_n_epoch", interval != nullptr ? *interval : Value(1));
  } else {
    // Counted over the whole run; mmcv's default is every iteration, which nobody means.
    state.set("trainer.check_val_every_n_epoch", Value());
    if (interval != nullptr) state.set("trainer.val_check_interval", *interval);
  }
  if (!node.present()) {
    if (!by_epoch) state.set("trainer.limit_val_batches", Value(0));
    return;
  }
  if (const Value* metric = node.take("metric"); metric != nullptr)
    state.set("model.metrics", metric->is_list() ? *metric : at(Value(List{*metric}), *metric));
  node.move("start", "aerie.eval_start");
  if (const Value* best = node.take("save_best"); best != nullptr) {
    const std::string name = best->is_string() ? best->as_string() : "";
    if (name != "mIoU" && name != "auto" && name != "map" && name != "map/mean/iou@max")
      state.error(node.path_of("save_best"), *best, "checkpoints are judged by mIoU",
                  "write save_best='mIoU'");
    else
      state.set("aerie.checkpoints.save_best", at(Value(true), *best));
  }
  if (is_set(node.take("efficient_test")))
    state.warn(node.path_of("efficient_test"), *node.take("efficient_test"),
               "is deprecated in mmseg and has no effect: evaluation is always progressive "
               "(pre_eval)");
  if (const Value* rule = node.take("rule"); rule != nullptr && !(*rule == Value("greater")))
    state.error(node.path_of("rule"), *rule, "mIoU is better where it is greater", "leave it out");
  node.ignore({"dynamic_intervals"}, "every evaluation comes at evaluation.interval");
  node.ignore({"pre_eval", "gpu_collect", "out_dir", "pipeline", "classwise", "tmpdir",
               "broadcast_bn_buffer", "test_fn", "priority"});
  node.finish();
}

void translate_checkpoints(MmState& state, MmNode& top, RunnerKind runner) {
  constexpr const char* kNode = "exp_manager.checkpoint_callback_params.";
  const auto key = [&](const char* name) { return std::string(kNode) + name; };
  state.set(key("monitor"), Value("mIoU"));
  state.set(key("mode"), Value("max"));
  state.set("aerie.checkpoints.keep", Value("newest"));
  MmNode node = top.child("checkpoint_config");
  const Value* by_epoch = node.take("by_epoch");
  const bool epochs = by_epoch != nullptr ? is_true(by_epoch) : runner == RunnerKind::kEpochs;
  // Not written, or not positive: none but the last, as in mmcv.
  const auto positive = [](const Value* value) {
    return value != nullptr && !(value->is_number() && value->as_float() <= 0.0);
  };
  const Value* interval = node.take("interval");
  const Value none;
  state.set(key("every_n_train_steps"), !epochs && positive(interval) ? *interval : none);
  state.set(key("every_n_epochs"), epochs && positive(interval) ? *interval : none);
  state.set(key("save_on_train_epoch_end"), Value(true));
  const Value* most = node.take("max_keep_ckpts");
  state.set(key("save_top_k"), positive(most) ? *most : Value(-1));
  if (!node.present()) return;
  node.move("save_last", key("save_last"));
  node.move("create_symlink", "aerie.checkpoints.latest");
  if (const Value* full = node.take("save_optimizer"); full != nullptr && full->is_bool())
    state.set(key("save_weights_only"), at(Value(!full->as_bool()), *full));
  node.move("out_dir", key("dirpath"));
  node.ignore({"meta", "sync_buffer", "filename_tmpl", "type", "file_client_args"});
  node.finish();
}

void translate_logs(MmState& state, MmNode& top) {
  MmNode node = top.child("log_config");
  if (!node.present()) return;
  node.move("interval", "trainer.log_every_n_steps");
  bool tensorboard = false, text = true;
  if (const Value* hooks = node.take("hooks"); hooks != nullptr && hooks->is_list()) {
    const List& list = hooks->as_list();
    text = false;
    for (size_t i = 0; i < list.size(); ++i) {
      const Value* type = list[i].child("type");
      const std::string name = type != nullptr && type->is_string() ? type->as_string() : "";
      if (name == "TensorboardLoggerHook")
        tensorboard = true;
      else if (name == "TextLoggerHook")
        text = true;
      else if (name == "MMSegWandbHook" || ends_with(name, "LoggerHook"))
        state.warn(str_cat("log_config.hooks.", i), list[i],
                   str_cat(name, " is not there; the run goes on without it"));
      else
        state.error(str_cat("log_config.hooks.", i), list[i],
                    str_cat("there is no log hook '", name, "'"),
                    "TextLoggerHook and TensorboardLoggerHook are there");
    }
  }
  state.set("exp_manager.create_tensorboard_logger", Value(tensorboard));
  if (!text) state.set("aerie.text_log", Value(false));
  node.ignore({"ignore_last", "reset_flag", "by_epoch"});
  node.finish();
}

}  // namespace aerie::bev
