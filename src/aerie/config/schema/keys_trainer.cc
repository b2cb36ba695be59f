// The keys of `trainer:`.
#include "aerie/base/strings.h"
#include "aerie/config/schema/engine_keys.h"
#include "aerie/config/schema/field_keys.h"
#include "aerie/config/schema/value_parsers.h"

namespace aerie::config {
namespace {

constexpr std::string_view kPython = "it takes Python objects";

// A name; a mapping is read by the rows below it.
void read_strategy(const NodeReader& node, std::string_view key, TrainerConfig& out) {
  const Value* value = node.find(key);
  if (value == nullptr || !value->is_string()) return;
  out.strategy.name = value->as_string();
  out.strategy.find_unused_parameters = ends_with(out.strategy.name, "find_unused_parameters_true");
}

void read_strategy_target(const NodeReader& node, std::string_view key, StrategyConfig& out) {
  const Value* target = node.find(key);
  if (target == nullptr || !target->is_string()) return;
  const std::string_view found =
      find_target(engine_targets(), "trainer.strategy", target->as_string());
  out.name = found == "SingleDeviceStrategy" ? "single_device" : "ddp";
}

void read_backend(const NodeReader& node, std::string_view key, StrategyConfig& out) {
  node.read(key, out.process_group_backend);
}

void read_comm_hook(const NodeReader& node, std::string_view key, StrategyConfig& out) {
  const std::pair<std::string_view, CommHook> names[] = {{"fp16_compress_hook", CommHook::kFp16},
                                                         {"bf16_compress_hook", CommHook::kBf16}};
  node.read_enum(key, out.comm_hook, std::span<const std::pair<std::string_view, CommHook>>(names));
}

// true is one batch.
void read_fast_dev_run(const NodeReader& node, std::string_view key, TrainerConfig& out) {
  if (const Value* value = node.find(key); value && value->is_bool())
    out.fast_dev_run = value->as_bool() ? 1 : 0;
  else
    node.read(key, out.fast_dev_run);
}

void read_deterministic(const NodeReader& node, std::string_view key, TrainerConfig& out) {
  if (const Value* value = node.find(key); value && value->is_bool())
    out.deterministic = value->as_bool() ? Deterministic::kYes : Deterministic::kNo;
  else
    node.read_enum(key, out.deterministic, {{"warn", Deterministic::kWarn}});
}

const FieldKeys<StrategyConfig>& strategy_keys() {
  using T = StrategyConfig;
  static const FieldKeys<T> table("trainer.strategy", [](FieldKeys<T>& keys) {
    keys.row("_target_", "str", "",
             works("Class of the strategy: lightning.pytorch.strategies.DDPStrategy.").required(),
             read_strategy_target);
    keys.key("find_unused_parameters", &T::find_unused_parameters,
             works("Parameters that got no gradient in a step count as zero; without it that "
                   "is an error."));
    keys.key("gradient_as_bucket_view", &T::gradient_as_bucket_view,
             works("Gradients live in the buckets that are reduced: saves a copy of all."));
    keys.key("static_graph", &T::static_graph,
             works("The same parameters take part in every step, which is looked at once."));
    keys.key("broadcast_buffers", &T::broadcast_buffers,
             works("Copy buffers (BatchNorm's statistics) from the first device at every step, "
                   "unless sync_batchnorm keeps them equal."));
    keys.key("bucket_cap_mb", &T::bucket_cap_mb,
             works("Gradients are reduced in buckets of this size; the first has 1 MB.")
                 .range(">0")
                 .nullable()
                 .whole());
    keys.row("ddp_comm_hook", "str|null", "null",
             works("Gradients travel rounded to 16 bits.")
                 .choices("fp16_compress_hook|bf16_compress_hook"),
             read_comm_hook);
    keys.row("process_group_backend", "str|null", "null",
             works("Library of the collectives; null: nccl on GPUs, gloo on CPUs. With gloo GPUs "
                   "exchange through the host.")
                 .choices("nccl|gloo|mpi|ucc")
                 .refuses("mpi|ucc", "LibTorch brings nccl and gloo"),
             read_backend);
    keys.parsed(
        "timeout", &T::timeout_s, parse_seconds, "int|float|map|null", "1800",
        works("Longest time a collective may take: seconds, or `{_target_: datetime.timedelta, "
              "minutes: 30}`.")
            .range(">0"));
    keys.row("timeout.*", "str|float", "", works("days, hours, minutes, seconds: added up."));
    keys.row("start_method", "str", "popen",
             no_effect("Each rank is the program started anew, as popen does.")
                 .choices("popen|spawn|fork|forkserver"));
    keys.row("model_averaging_period", "int|null", "null",
             refused("Post-local SGD: steps between two averages of the weights.",
                     "gradients are reduced at every step, so weights need no averaging"));
    keys.row("ddp_comm_state", "any", "null", refused("State of a hook.", kPython));
    keys.row("ddp_comm_wrapper", "any", "null", refused("A hook around the hook.", kPython));
    keys.row("check_reduction", "bool", "false", no_effect("Unused in torch."));
  });
  return table;
}

}  // namespace

const FieldKeys<TrainerConfig>& trainer_fields() {
  using T = TrainerConfig;
  static const FieldKeys<T> table("trainer", [](FieldKeys<T>& keys) {
    keys.parsed(
        "devices", &T::devices, parse_devices, "int|str|list[int]", "auto",
        works("How many, which (`[0,2]`), `auto` or -1 for all GPUs; without a GPU `auto` and -1 "
              "mean 1. Each is trained by a process of its own; on the CPU so many processes share "
              "the cores.")
            .range("[-1,65536]"));
    keys.key("num_nodes", &T::num_nodes,
             works("Machines that train together, each with `devices`.").range("[1,65536]"));
    keys.choice(
        "accelerator", &T::accelerator,
        {{"auto", Accelerator::kAuto},
         {"cpu", Accelerator::kCpu},
         {"gpu", Accelerator::kGpu},
         {"cuda", Accelerator::kGpu}},
        works("What computes: `auto` takes a GPU where there is one, `cpu` and `gpu` insist.")
            .refuses("mps|tpu|hpu", "aerie runs on CPUs and NVIDIA GPUs"));
    keys.row(
        "strategy", "str|map|null", "auto",
        works("A name, or a mapping with `_target_` and options; matters with several devices.")
            .choices("auto|single_device|ddp|ddp_find_unused_parameters_true|ddp_find_unused_"
                     "parameters_false|"
                     "ddp_spawn|ddp_spawn_find_unused_parameters_true|ddp_spawn_find_unused_"
                     "parameters_false|"
                     "ddp_fork|ddp_fork_find_unused_parameters_true|ddp_fork_find_unused_"
                     "parameters_false|"
                     "ddp_notebook|ddp_notebook_find_unused_parameters_true|"
                     "ddp_notebook_find_unused_parameters_false|fsdp*|deepspeed*|xla*|single_xla|"
                     "model_parallel")
            .refuses("fsdp*|deepspeed*|xla*|single_xla|model_parallel",
                     "aerie parallelises over data only; use ddp"),
        read_strategy);
    keys.child("strategy", &T::strategy, strategy_keys());
    keys.parsed(
        "precision", &T::precision, parse_precision, "int|str|null", "32-true",
        works("32, 16-mixed or bf16-mixed; 16 and bf16 mean the mixed ones.")
            .choices("64|32|16|bf16|64-true|32-true|16-true|bf16-true|16-mixed|bf16-mixed|"
                     "transformer-engine|"
                     "transformer-engine-float16")
            .refuses("64|64-true|16-true|bf16-true|transformer-engine|transformer-engine-float16",
                     "weights stay float32 here: use 32, 16-mixed or bf16-mixed"));
    keys.key("max_epochs", &T::max_epochs,
             works("-1: unlimited; null: 1000 unless max_steps is given.").range(">=-1"));
    keys.key("min_epochs", &T::min_epochs,
             works("Early stopping and max_time do not stop the run before.").range(">=0"));
    keys.key(
        "max_steps", &T::max_steps,
        works("Optimizer steps after which the run is finished; -1: unlimited.").range(">=-1"));
    keys.key("min_steps", &T::min_steps,
             works("Early stopping and max_time do not stop the run before; without min_epochs not "
                   "before one epoch either.")
                 .range(">=0"));
    keys.parsed("max_time", &T::max_time_s, parse_time, "str|map|null", "null",
                works("`DD:HH:MM:SS`, or a mapping of days, hours, minutes, seconds."));
    keys.row("max_time.*", "str|float", "", works("days, hours, minutes, seconds: added up."));
    keys.key(
        "accumulate_grad_batches", &T::accumulate_grad_batches,
        works("Batches whose gradients are added up before each optimizer step.").range(">=1"));
    keys.key("gradient_clip_val", &T::gradient_clip_val,
             works("Upper bound of the gradient; null or not above 0: none.")
                 .range("[-inf,inf]")
                 .absent_is_null());
    keys.choice("gradient_clip_algorithm", &T::gradient_clip_algorithm,
                {{"norm", GradientClip::kNorm}, {"value", GradientClip::kValue}},
                works("What gradient_clip_val bounds: the norm of all (default), or each value.")
                    .absent_is_null());
    keys.parsed(
        "val_check_interval", &T::val_check_interval, parse_batch_limit, "int|float|null", "null",
        works(
            "Whole number: validate every n batches; fraction: that share of an epoch. null: 1.0.")
            .range(">=0"));
    keys.key("check_val_every_n_epoch", &T::check_val_every_n_epoch,
             works("Epochs between validations; null: val_check_interval counts across epochs.")
                 .range(">=1"));
    keys.parsed("limit_train_batches", &T::limit_train_batches, parse_batch_limit, "int|float|null",
                "null", works("Batches per epoch: whole number or share.").range(">=0"));
    keys.parsed("limit_val_batches", &T::limit_val_batches, parse_batch_limit, "int|float|null",
                "null", works("Validation batches: whole number or share.").range(">=0"));
    keys.parsed("limit_test_batches", &T::limit_test_batches, parse_batch_limit, "int|float|null",
                "null",
                works("Batches of `aerie eval --test`: whole number or share.").range(">=0"));
    keys.row("limit_predict_batches", "int|float|null", "null",
             no_effect("Nothing predicts here.").range(">=0"));
    keys.parsed("overfit_batches", &T::overfit_batches, parse_batch_limit, "int|float", "0.0",
                works("Train and validate on this many (or this share of the) batches, unshuffled; "
                      "stands in for "
                      "limit_train_batches and limit_val_batches.")
                    .range(">=0"));
    keys.row(
        "fast_dev_run", "bool|int", "false",
        works("Run n batches of everything and stop; nothing is logged or saved.").range(">=0"),
        read_fast_dev_run);
    keys.key("num_sanity_val_steps", &T::num_sanity_val_steps,
             works("Validation batches before training; null: 2, -1: all.")
                 .range(">=-1")
                 .absent_is_null());
    keys.key("log_every_n_steps", &T::log_every_n_steps,
             works("Steps between log lines; null: 50, 0: none.").range(">=0").absent_is_null());
    keys.key("sync_batchnorm", &T::sync_batchnorm,
             works("BatchNorm statistics over all devices; on one device it changes nothing."));
    keys.key("use_distributed_sampler", &T::use_distributed_sampler,
             no_effect("Samples are always divided among devices."));
    keys.key(
        "benchmark", &T::benchmark,
        works("Let cuDNN try its algorithms, and the fast engine those of its matrix products; "
              "not where trainer.deterministic is on.")
            .absent_is_null());
    keys.row(
        "deterministic", "bool|str|null", "null",
        works("Repeat a run bit for bit on the same machine; slower on a GPU.").choices("warn"),
        read_deterministic);
    keys.key("detect_anomaly", &T::detect_anomaly,
             works("Stop at the first value that is not finite and name the module or operation "
                   "that made it."));
    keys.key("enable_progress_bar", &T::enable_progress_bar,
             works("A progress line on a terminal; false: a plain line every ten seconds.")
                 .absent_is_null());
    keys.key("enable_model_summary", &T::enable_model_summary,
             works("Print the model's parts at the start.").absent_is_null());
    keys.key("profiler", &T::profiler,
             works("Any of them: write trace.json (Chrome trace) and log the time of each phase.")
                 .choices("simple|advanced|pytorch"));
    keys.key("default_root_dir", &T::default_root_dir,
             works("Where a run goes when there is no exp_manager."));
    keys.row("enable_checkpointing", "bool|null", "null",
             works("Must be false beside exp_manager, which writes the checkpoints."));
    keys.row("logger", "any", "null",
             works("Must be false beside exp_manager, which makes the loggers."));
    keys.row("inference_mode", "bool", "true", no_effect("Validation never keeps gradients."));
    keys.row("barebones", "bool", "false",
             refused("Lightning without its extras.", "measure with `aerie bench step` instead"));
    keys.row("reload_dataloaders_every_n_epochs", "int", "0",
             refused("Build the loaders anew.", "manifests are read once per run").range(">=0"));
    keys.row("callbacks", "any", "null", refused("Python callbacks.", kPython));
    keys.row("plugins", "any", "null", refused("Python plug-ins.", kPython));
  });
  return table;
}

const char* precision_name(Precision precision) {
  switch (precision) {
    case Precision::k32:
      return "32";
    case Precision::k16Mixed:
      return "16-mixed";
    case Precision::kBf16Mixed:
      return "bf16-mixed";
  }
  return "";
}

}  // namespace aerie::config
