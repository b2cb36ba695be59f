// Rows of `trainer:`.
#include "aerie/config/schema/engine_keys.h"

namespace aerie::config {
namespace {

constexpr KeyStatus kWorks = KeyStatus::kWorks;
constexpr KeyStatus kNoEffect = KeyStatus::kNoEffect;
constexpr KeyStatus kLater = KeyStatus::kLater;
constexpr KeyStatus kRefused = KeyStatus::kRefused;

constexpr std::string_view kSeveral = "training on several devices";
constexpr std::string_view kPython = "it takes Python objects";

constexpr KeySpec kTrainer[] = {
    {"trainer.devices", "int|str|list[int]", "auto", "[-1,65536]", "", kWorks,
     "How many, which (`[0]`), `auto` or -1 for all GPUs; without a GPU -1 means 1.",
     "one device trains for now: with `auto` and -1 other GPUs stay idle, a number or list of "
     "several is refused"},
    {"trainer.num_nodes", "int", "1", "[1,65536]", "", kLater, "Machines that train together.",
     kSeveral},
    {"trainer.accelerator", "str", "auto", "", "auto|cpu|gpu|cuda|mps|tpu|hpu", kWorks,
     "What computes: `auto` takes a GPU where there is one, `cpu` and `gpu` insist.",
     "aerie runs on CPUs and NVIDIA GPUs", "mps|tpu|hpu"},
    {"trainer.strategy", "str|map|null", "auto", "",
     "auto|single_device|ddp|ddp_find_unused_parameters_true|ddp_find_unused_parameters_false|"
     "ddp_spawn|ddp_spawn_find_unused_parameters_true|ddp_spawn_find_unused_parameters_false|"
     "ddp_fork|ddp_fork_find_unused_parameters_true|ddp_fork_find_unused_parameters_false|"
     "ddp_notebook|ddp_notebook_find_unused_parameters_true|"
     "ddp_notebook_find_unused_parameters_false|fsdp*|deepspeed*|xla*|single_xla|"
     "model_parallel",
     kWorks, "A name, or a mapping with `_target_` and options; matters with several devices.",
     "aerie parallelises over data only; use ddp",
     "fsdp*|deepspeed*|xla*|single_xla|model_parallel"},
    {"trainer.strategy._target_", "str", kRequired, "", "", kWorks,
     "Class of the strategy: lightning.pytorch.strategies.DDPStrategy."},
    {"trainer.strategy.find_unused_parameters", "bool", "false", "", "", kLater,
     "Look for parameters without gradient.", kSeveral},
    {"trainer.strategy.gradient_as_bucket_view", "bool", "false", "", "", kLater,
     "Gradients live in the buckets that are reduced.", kSeveral},
    {"trainer.strategy.static_graph", "bool", "false", "", "", kLater,
     "The same parameters take part in every step.", kSeveral},
    {"trainer.strategy.broadcast_buffers", "bool", "true", "", "", kLater,
     "Copy buffers from the first device at every step.", kSeveral},
    {"trainer.strategy.bucket_cap_mb", "float|null", "25", ">0", "", kLater,
     "Size of a gradient bucket.", kSeveral},
    {"trainer.strategy.process_group_backend", "str|null", "null", "", "", kLater,
     "Library of the collectives: nccl or gloo.", kSeveral},
    {"trainer.strategy.timeout", "int|float|map|null", "1800", ">0", "", kLater,
     "Seconds, or `{_target_: datetime.timedelta, minutes: 30}`.", kSeveral},
    {"trainer.strategy.timeout.*", "str|float", "", "", "", kLater,
     "days, hours, minutes, seconds: added up.", kSeveral},
    {"trainer.strategy.start_method", "str", "popen", "", "popen|spawn|fork|forkserver", kLater,
     "How the processes of the ranks are started.", kSeveral},
    {"trainer.strategy.model_averaging_period", "int|null", "null", "", "", kLater,
     "Post-local SGD: steps between two averages of the weights.", kSeveral},
    {"trainer.strategy.check_reduction", "bool", "false", "", "", kNoEffect, "Unused in torch."},
    {"trainer.precision", "int|str|null", "32-true", "",
     "64|32|16|bf16|64-true|32-true|16-true|bf16-true|16-mixed|bf16-mixed|transformer-engine|"
     "transformer-engine-float16",
     kWorks, "32, 16-mixed or bf16-mixed; 16 and bf16 mean the mixed ones.",
     "weights stay float32 here: use 32, 16-mixed or bf16-mixed",
     "64|64-true|16-true|bf16-true|transformer-engine|transformer-engine-float16"},
    {"trainer.max_epochs", "int|null", "null", ">=-1", "", kWorks,
     "-1: unlimited; null: 1000 unless max_steps is given."},
    {"trainer.min_epochs", "int|null", "null", ">=0", "", kWorks,
     "Early stopping and max_time do not stop the run before."},
    {"trainer.max_steps", "int", "-1", ">=-1", "", kWorks,
     "Optimizer steps after which the run is finished; -1: unlimited."},
    {"trainer.min_steps", "int|null", "null", ">=0", "", kWorks,
     "Early stopping and max_time do not stop the run before."},
    {"trainer.max_time", "str|map|null", "null", "", "", kWorks,
     "`DD:HH:MM:SS`, or a mapping of days, hours, minutes, seconds."},
    {"trainer.max_time.*", "str|float", "", "", "", kWorks,
     "days, hours, minutes, seconds: added up."},
    {"trainer.accumulate_grad_batches", "int", "1", ">=1", "", kWorks,
     "Batches whose gradients are added up before each optimizer step."},
    {"trainer.gradient_clip_val", "float|null", "null", "[-inf,inf]", "", kWorks,
     "Upper bound of the gradient; null or not above 0: none."},
    {"trainer.gradient_clip_algorithm", "str|null", "null", "", "norm|value", kWorks,
     "What gradient_clip_val bounds: the norm of all (default), or each value."},
    {"trainer.val_check_interval", "int|float|null", "null", ">=0", "", kWorks,
     "Whole number: validate every n batches; fraction: that share of an epoch. null: 1.0."},
    {"trainer.check_val_every_n_epoch", "int|null", "1", ">=1", "", kWorks,
     "Epochs between validations; null: val_check_interval counts across epochs."},
    {"trainer.limit_train_batches", "int|float|null", "null", ">=0", "", kWorks,
     "Batches per epoch: whole number or share."},
    {"trainer.limit_val_batches", "int|float|null", "null", ">=0", "", kWorks,
     "Validation batches: whole number or share."},
    {"trainer.limit_test_batches", "int|float|null", "null", ">=0", "", kWorks,
     "Batches of `aerie eval --test`: whole number or share."},
    {"trainer.limit_predict_batches", "int|float|null", "null", ">=0", "", kNoEffect,
     "Nothing predicts here."},
    {"trainer.overfit_batches", "int|float", "0.0", ">=0", "", kWorks,
     "Train and validate on this many (or this share of the) batches, unshuffled; stands in for "
     "limit_train_batches and limit_val_batches."},
    {"trainer.fast_dev_run", "bool|int", "false", ">=0", "", kWorks,
     "Run n batches of everything and stop; nothing is logged or saved."},
    {"trainer.num_sanity_val_steps", "int|null", "null", ">=-1", "", kWorks,
     "Validation batches before training; null: 2, -1: all."},
    {"trainer.log_every_n_steps", "int|null", "null", ">=0", "", kWorks,
     "Steps between log lines; null: 50, 0: none."},
    {"trainer.sync_batchnorm", "bool", "false", "", "", kLater,
     "BatchNorm statistics over all devices; on one device it changes nothing.", kSeveral},
    {"trainer.use_distributed_sampler", "bool", "true", "", "", kNoEffect,
     "Samples are always divided among devices."},
    {"trainer.benchmark", "bool|null", "null", "", "", kWorks,
     "Let cuDNN try its algorithms, and the fast engine those of its matrix products."},
    {"trainer.deterministic", "bool|str|null", "null", "", "warn", kWorks,
     "Repeat a run bit for bit on the same machine; slower on a GPU."},
    {"trainer.detect_anomaly", "bool", "false", "", "", kWorks,
     "Stop at the first value that is not finite and name the module or operation that made it."},
    {"trainer.enable_progress_bar", "bool|null", "null", "", "", kWorks,
     "A progress line on a terminal; false: a plain line every ten seconds."},
    {"trainer.enable_model_summary", "bool|null", "null", "", "", kWorks,
     "Print the model's parts at the start."},
    {"trainer.profiler", "str|null", "null", "", "simple|advanced|pytorch", kWorks,
     "Any of them: write trace.json (Chrome trace) and log the time of each phase."},
    {"trainer.default_root_dir", "str|null", "null", "", "", kWorks,
     "Where a run goes when there is no exp_manager."},
    {"trainer.enable_checkpointing", "bool|null", "null", "", "", kWorks,
     "Must be false beside exp_manager, which writes the checkpoints."},
    {"trainer.logger", "any", "null", "", "", kWorks,
     "Must be false beside exp_manager, which makes the loggers."},
    {"trainer.inference_mode", "bool", "true", "", "", kNoEffect,
     "Validation never keeps gradients."},
    {"trainer.barebones", "bool", "false", "", "", kRefused, "Lightning without its extras.",
     "measure with `aerie bench step` instead"},
    {"trainer.reload_dataloaders_every_n_epochs", "int", "0", ">=0", "", kRefused,
     "Build the loaders anew.", "manifests are read once per run"},
    {"trainer.callbacks", "any", "null", "", "", kRefused, "Python callbacks.", kPython},
    {"trainer.plugins", "any", "null", "", "", kRefused, "Python plug-ins.", kPython},
};

}  // namespace

std::span<const KeySpec> trainer_keys() {
  return kTrainer;
}

}  // namespace aerie::config
