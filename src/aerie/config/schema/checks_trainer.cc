// Rules about trainer and exp_manager.
#include "aerie/base/strings.h"
#include "aerie/config/schema/checks.h"
#include "aerie/config/schema/devices.h"
#include "aerie/config/schema/engine_keys.h"
#include "aerie/config/schema/value_parsers.h"

namespace aerie::config {
namespace {

void check_devices(CheckContext& context) {
  const Value* written = context.written("trainer.devices");
  const auto devices = parse_devices(written != nullptr ? *written : Value());
  if (!devices.ok()) {
    context.error("trainer.devices", devices.status().message(), "for example 1, -1 or [0]");
    return;
  }
  const TrainerConfig trainer = device_keys(context);
  const ValidateOptions& options = context.options();
  const auto plan = plan_devices(trainer, options.num_gpus);
  if (!plan.ok()) {
    // What this machine lacks another may have.
    if (options.for_training)
      context.error("trainer.devices", plan.status().message(), plan.status().hint());
    return;
  }
  if (plan->world_size == 1) return;
  if (trainer.strategy.name == "single_device")
    context.error("trainer.strategy",
                  str_cat("single_device cannot train on ", plan->world_size, " devices"),
                  "set trainer.strategy=ddp, or trainer.devices=1");
  if (!plan->gpu && trainer.strategy.process_group_backend == "nccl")
    context.error("trainer.strategy.process_group_backend", "nccl needs GPUs",
                  "leave it out, or set gloo");
  if (!context.flag("trainer.use_distributed_sampler").value_or(true))
    context.warn("trainer.use_distributed_sampler",
                 "samples are divided among the devices all the same; NeMo would let every device "
                 "read all of them unless the data is tarred or Lhotse's");
  if (!context.flag("trainer.sync_batchnorm").value_or(false))
    context.warn("trainer.sync_batchnorm",
                 str_cat("is off: BatchNorm takes its statistics from each of the ",
                         plan->world_size, " devices alone"),
                 "trainer.sync_batchnorm=true");
}

void check_limits(CheckContext& context) {
  for (const char* key : {"limit_train_batches", "limit_val_batches", "limit_test_batches",
                          "overfit_batches", "val_check_interval"}) {
    const std::string path = str_cat("trainer.", key);
    const Value* value = context.written(path);
    if (value == nullptr || !value->is_number()) continue;
    const auto limit = parse_batch_limit(*value);
    if (!limit.ok())
      context.error(path, limit.status().message());
    else if (std::string_view(key) == "val_check_interval" && !limit->is_fraction &&
             limit->count == 0)
      context.error(path, "must be above 0", "limit_val_batches=0 turns validation off");
  }
  if (context.integer("trainer.accumulate_grad_batches").value_or(1) < 1) return;
  const struct {
    const char* path;
    bool numbers;
  } kTimes[] = {
      {"trainer.max_time", false},
      {"trainer.strategy.timeout", true},
      {"exp_manager.max_time_per_run", false},
      {"exp_manager.checkpoint_callback_params.train_time_interval", true},
  };
  for (const auto& time : kTimes) {
    const Value* value = context.written(time.path);
    if (value == nullptr) continue;
    const auto seconds = parse_duration(*value, time.numbers);
    if (!seconds.ok())
      context.error(time.path, seconds.status().message(), seconds.status().hint());
  }
}

void check_exp_manager(CheckContext& context) {
  const Value* node = context.written("exp_manager");
  if (node == nullptr || !node->is_map()) return;
  const Value* logger = context.written("trainer.logger");
  const bool has_logger = logger != nullptr && !(logger->is_bool() && !logger->as_bool());
  bool makes_logger = false;
  for (const char* key :
       {"create_tensorboard_logger", "create_wandb_logger", "create_mlflow_logger"})
    makes_logger = makes_logger || context.flag(str_cat("exp_manager.", key)).value_or(false);
  if (context.flag("exp_manager.log_local_rank_0_only").value_or(false) &&
      context.flag("exp_manager.log_global_rank_0_only").value_or(false))
    context.error("exp_manager.log_local_rank_0_only",
                  "log_local_rank_0_only and log_global_rank_0_only cannot both be true");
  if (has_logger && makes_logger)
    context.error("trainer.logger",
                  "the trainer has a logger while exp_manager creates one; only one of them can",
                  "set trainer.logger=false");
  if (context.flag("trainer.enable_checkpointing").value_or(false) &&
      context.flag("exp_manager.create_checkpoint_callback").value_or(false))
    context.error("trainer.enable_checkpointing",
                  "the trainer writes checkpoints while exp_manager does; only one of them can",
                  "set trainer.enable_checkpointing=false");
}

}  // namespace

TrainerConfig device_keys(const CheckContext& context) {
  TrainerConfig trainer;
  const Value* devices = context.written("trainer.devices");
  if (const auto parsed = parse_devices(devices != nullptr ? *devices : Value()); parsed.ok())
    trainer.devices = *parsed;
  trainer.num_nodes = context.integer("trainer.num_nodes").value_or(1);
  const std::string accelerator = context.text("trainer.accelerator").value_or("auto");
  if (accelerator == "cpu") trainer.accelerator = Accelerator::kCpu;
  if (accelerator == "gpu" || accelerator == "cuda") trainer.accelerator = Accelerator::kGpu;
  const Value* strategy = context.written("trainer.strategy");
  if (strategy != nullptr && strategy->is_string()) trainer.strategy.name = strategy->as_string();
  const auto target = context.text("trainer.strategy._target_");
  if (target &&
      find_target(engine_targets(), "trainer.strategy", *target) == "SingleDeviceStrategy")
    trainer.strategy.name = "single_device";
  trainer.strategy.process_group_backend =
      context.text("trainer.strategy.process_group_backend").value_or("");
  return trainer;
}

void check_trainer(CheckContext& context) {
  check_devices(context);
  check_limits(context);
  check_exp_manager(context);
  if (context.text("aerie.on_nan").value_or("") == "fallback") {
    const auto precision = context.written("trainer.precision");
    const auto parsed = parse_precision(precision != nullptr ? *precision : Value());
    if (parsed.ok() && *parsed != Precision::k16Mixed)
      context.warn("aerie.on_nan", "fallback has no effect unless trainer.precision is 16-mixed");
  }
}

}  // namespace aerie::config
