// The keys of `exp_manager:`. NeMo's schema is closed, and so is this one.
#include <array>
#include <string_view>

#include "aerie/config/schema/engine_keys.h"
#include "aerie/config/schema/field_keys.h"
#include "aerie/config/schema/value_parsers.h"

namespace aerie::config {
namespace {

constexpr std::string_view kOtherLogger =
    "the run goes on without it; metrics.jsonl and TensorBoard files are written";
constexpr std::string_view kStraggler = "NVIDIA's straggler detection is not built in";
constexpr std::string_view kFault = "NVIDIA's fault-tolerance launcher is not built in";
constexpr std::string_view kIpl = "pseudo-label rounds do not apply to NEST";

// Name, type and default of a key that is read and ignored.
using Ignored = std::array<std::string_view, 3>;

// NeMo's older key for folder and name in one.
void read_filepath(const NodeReader& node, std::string_view key, CheckpointCallbackConfig& out) {
  std::string filepath;
  node.read(key, filepath);
  if (filepath.empty()) return;
  const size_t slash = filepath.rfind('/');
  out.dirpath = slash == std::string::npos ? "." : filepath.substr(0, slash);
  out.filename = slash == std::string::npos ? filepath : filepath.substr(slash + 1);
}

// null turns it off.
void read_every_n_epochs(const NodeReader& node, std::string_view key,
                         CheckpointCallbackConfig& out) {
  if (const Value* epochs = node.find(key); epochs && epochs->is_null()) out.every_n_epochs = 0;
  node.read(key, out.every_n_epochs);
}

const FieldKeys<CheckpointCallbackConfig>& checkpoint_keys() {
  using T = CheckpointCallbackConfig;
  static const FieldKeys<T> table("exp_manager.checkpoint_callback_params", [](FieldKeys<T>& keys) {
    keys.row("filepath", "str|null", "null", works("Deprecated: dirpath and filename in one."),
             read_filepath);
    keys.key("dirpath", &T::dirpath, works("Folder; null: checkpoints in the run's folder."));
    keys.key("filename", &T::filename,
             works("Template with `{val_loss:.3f}`, `{step}`, `{epoch}`."));
    keys.key("monitor", &T::monitor, works("Metric by which checkpoints are ranked.").nullable());
    keys.choice("mode", &T::mode_max, {{"min", false}, {"max", true}},
                works("Whether a smaller (min) or a larger (max) monitor is better.").nullable());
    keys.flag("verbose", &T::verbose, works("Log a line for every checkpoint."));
    keys.flag("save_last", &T::save_last, works("Keep the newest checkpoint as `-last`."));
    keys.key("save_top_k", &T::save_top_k,
             works("How many of the best are kept; -1: all.").range(">=-1").nullable());
    keys.flag("save_weights_only", &T::save_weights_only,
              works("Without optimizer state; such a checkpoint cannot be resumed exactly."));
    keys.key("auto_insert_metric_name", &T::auto_insert_metric_name,
             works("Write `val_loss=` before the number in names."));
    keys.row("every_n_epochs", "int|null", "1",
             works("Epochs from one checkpoint to the next.").range(">=0"), read_every_n_epochs);
    keys.key("every_n_train_steps", &T::every_n_train_steps,
             works("Optimizer steps from one checkpoint to the next.").range(">=0"));
    keys.parsed(
        "train_time_interval", &T::train_time_interval_s, parse_seconds, "str|map|int|float|null",
        "null",
        works("Time between checkpoints: seconds, `DD:HH:MM:SS` or a mapping.").range(">0"));
    keys.row("train_time_interval.*", "str|float", "",
             works("days, hours, minutes, seconds: added up."));
    keys.key("prefix", &T::prefix, works("Name of the `.nemo` file; null: exp_manager.name."));
    keys.key("postfix", &T::postfix, works("Ending of the `.nemo` file's name."));
    keys.key("save_best_model", &T::save_best_model,
             works("The `.nemo` file holds the best weights, not the newest."));
    keys.key("always_save_nemo", &T::always_save_nemo,
             works("Rewrite the `.nemo` file at every checkpoint."));
    keys.flag("save_nemo_on_train_end", &T::save_nemo_on_train_end,
              works("Write the `.nemo` file when the run ends."));
    keys.row("model_parallel_size", "int|null", "null",
             no_effect("The model is never divided.").range(">=1"));
    keys.flag("save_on_train_epoch_end", &T::save_on_train_epoch_end,
              works("After training epochs instead of after validation."));
    keys.flag("async_save", &T::async_save,
              no_effect("Checkpoints are always written in the background."));
    keys.key("save_last_n_optim_states", &T::save_last_n_optim_states,
             refused("How many checkpoints keep optimizer state; -1: all.",
                     "every checkpoint keeps it; save_top_k bounds their number, save_weights_only "
                     "their size")
                 .range(">=-1")
                 .nullable());
  });
  return table;
}

const FieldKeys<EarlyStoppingConfig>& early_stopping_keys() {
  using T = EarlyStoppingConfig;
  static const FieldKeys<T> table(
      "exp_manager.early_stopping_callback_params", [](FieldKeys<T>& keys) {
        keys.key("monitor", &T::monitor, works("Metric that early stopping watches."));
        keys.choice("mode", &T::mode_max, {{"min", false}, {"max", true}},
                    works("Whether a smaller (min) or a larger (max) monitor is better."));
        keys.key("min_delta", &T::min_delta,
                 works("Smaller changes of the monitor are no improvement.").range(">=0"));
        keys.key("patience", &T::patience,
                 works("Checks without improvement after which the run stops.").range(">=0"));
        keys.key("verbose", &T::verbose, works("Log why the run is stopped."));
        keys.key("strict", &T::strict,
                 works("A monitor that is not logged ends the run with an error."));
        keys.key("check_finite", &T::check_finite, works("Stop when the monitor is not finite."));
        keys.key("stopping_threshold", &T::stopping_threshold,
                 works("Stop as soon as the monitor is better than this.").range("[-inf,inf]"));
        keys.key("divergence_threshold", &T::divergence_threshold,
                 works("Stop as soon as the monitor is worse than this.").range("[-inf,inf]"));
        keys.key("check_on_train_epoch_end", &T::check_on_train_epoch_end,
                 works("Check after every training epoch instead of after every validation; null: "
                       "where val_check_interval and check_val_every_n_epoch are 1."));
        keys.row("log_rank_zero_only", "bool", "false", no_effect("One process speaks."));
      });
  return table;
}

const FieldKeys<EmaConfig>& ema_keys() {
  using T = EmaConfig;
  static const FieldKeys<T> table("exp_manager.ema", [](FieldKeys<T>& keys) {
    keys.flag(
        "enable", &T::enable,
        works("Keep a moving average of the weights; it is validated and saved beside them."));
    keys.key("decay", &T::decay,
             works("Share of the average that an update keeps; closer to 1 is slower.")
                 .range("[0,1]")
                 .nullable());
    keys.flag("cpu_offload", &T::cpu_offload,
              works("Keep the average in main memory instead of on the GPU."));
    keys.flag("validate_original_weights", &T::validate_original_weights,
              works("Validate with the weights themselves instead of the average."));
    keys.key("every_n_steps", &T::every_n_steps,
             works("Optimizer steps from one update of the average to the next.").range(">=1"));
  });
  return table;
}

}  // namespace

const FieldKeys<ExpManagerConfig>& exp_manager_fields() {
  using T = ExpManagerConfig;
  static const FieldKeys<T> table("exp_manager", [](FieldKeys<T>& keys) {
    keys.key("explicit_log_dir", &T::explicit_log_dir,
             works("The run's folder itself; not together with exp_dir, name, version."));
    keys.key("exp_dir", &T::exp_dir,
             works("Folder that holds the folders of runs; null: ./nemo_experiments."));
    keys.key("name", &T::name, works("Folder of the experiment below exp_dir; null: default."));
    keys.key("version", &T::version,
             works("Folder of the run below name; null: the time, or none with resume_if_exists."));
    keys.flag("use_datetime_version", &T::use_datetime_version,
              works("Time as version; false: version_0, version_1, ..."));
    keys.flag("resume_if_exists", &T::resume_if_exists,
              works("Go on from the newest valid checkpoint in the folder."));
    keys.flag("resume_past_end", &T::resume_past_end,
              works("Go on also from a run that had finished."));
    keys.flag("resume_ignore_no_checkpoint", &T::resume_ignore_no_checkpoint,
              works("Start anew where resume_if_exists finds no checkpoint, instead of failing."));
    keys.key("resume_from_checkpoint", &T::resume_from_checkpoint,
             works("This checkpoint, unless a newer one is found."));
    keys.flag("create_tensorboard_logger", &T::create_tensorboard_logger,
              works("Write TensorBoard event files into the run's folder."));
    keys.row("summary_writer_kwargs", "map|null", "null",
             no_effect("Arguments of a Python class."));
    keys.row("summary_writer_kwargs.*", "any", "", no_effect("Arguments of a Python class."));
    keys.row("create_wandb_logger", "bool|null", "false",
             later("Weights & Biases.", kOtherLogger).warn());
    keys.row("wandb_logger_kwargs", "map|null", "null",
             no_effect("Belongs to create_wandb_logger."));
    keys.row("wandb_logger_kwargs.*", "any", "", no_effect("Belongs to create_wandb_logger."));
    keys.row("create_mlflow_logger", "bool|null", "false", later("MLflow.", kOtherLogger).warn());
    keys.row("mlflow_logger_kwargs", "map|null", "null",
             no_effect("Belongs to create_mlflow_logger."));
    keys.row("mlflow_logger_kwargs.*", "any", "", no_effect("Belongs to create_mlflow_logger."));
    keys.row("create_dllogger_logger", "bool|null", "false",
             later("DLLogger.", kOtherLogger).warn());
    keys.row("dllogger_logger_kwargs", "map|null", "null",
             no_effect("Belongs to create_dllogger_logger."));
    keys.row("dllogger_logger_kwargs.*", "any", "",
             no_effect("Belongs to create_dllogger_logger."));
    keys.row("create_clearml_logger", "bool|null", "false", later("ClearML.", kOtherLogger).warn());
    keys.row("clearml_logger_kwargs", "map|null", "null",
             no_effect("Belongs to create_clearml_logger."));
    keys.row("clearml_logger_kwargs.*", "any", "", no_effect("Belongs to create_clearml_logger."));
    keys.row("create_neptune_logger", "bool|null", "false", later("Neptune.", kOtherLogger).warn());
    keys.row("neptune_logger_kwargs", "map|null", "null",
             no_effect("Belongs to create_neptune_logger."));
    keys.row("neptune_logger_kwargs.*", "any", "", no_effect("Belongs to create_neptune_logger."));
    keys.flag("create_checkpoint_callback", &T::create_checkpoint_callback,
              works("Write checkpoints; false: nothing of the run can be resumed."));
    keys.row("checkpoint_callback_params", "map|null", "",
             works("Which checkpoints are written, when, and under which names."));
    keys.child("checkpoint_callback_params", &T::checkpoint_callback_params, checkpoint_keys());
    keys.flag("create_early_stopping_callback", &T::create_early_stopping_callback,
              works("Stop when validation no longer improves."));
    keys.row("early_stopping_callback_params", "map|null", "",
             works("When early stopping ends the run."));
    keys.child("early_stopping_callback_params", &T::early_stopping_callback_params,
               early_stopping_keys());
    keys.row("create_ipl_epoch_stopper_callback", "bool|null", "false",
             refused("Iterative pseudo-labelling.", kIpl));
    keys.row("ipl_epoch_stopper_callback_params", "map|null", "null",
             no_effect("Belongs to create_ipl_epoch_stopper_callback."));
    keys.row("ipl_epoch_stopper_callback_params.enable_stop", "bool", "true",
             no_effect("Belongs to create_ipl_epoch_stopper_callback."));
    keys.row("ipl_epoch_stopper_callback_params.stop_every_n_epochs", "int", "1",
             no_effect("Belongs to create_ipl_epoch_stopper_callback."));
    keys.flag("create_preemption_callback", &T::create_preemption_callback,
              works("On SIGTERM finish the step, save and exit; false: exit at once."));
    keys.key("files_to_copy", &T::files_to_copy,
             works("Files copied into the run's folder.").absent_is_null());
    keys.flag("log_step_timing", &T::log_step_timing, works("Log the time of each step."));
    keys.flag("log_delta_step_timing", &T::log_delta_step_timing,
              works("Print the time of every step."));
    keys.row("step_timing_kwargs", "map|null", "",
             works("How the step times for TensorBoard are put together."));
    keys.key("step_timing_kwargs.reduction", &T::step_timing_reduction,
             works("Mean or sum over the last buffer_size steps.").choices("mean|sum").nullable());
    keys.flag("step_timing_kwargs.sync_cuda", &T::step_timing_sync_cuda,
              no_effect("A step's time ends when its results are there."));
    keys.key("step_timing_kwargs.buffer_size", &T::step_timing_buffer_size,
             works("Steps whose times are put together.").nullable());
    keys.flag("log_local_rank_0_only", &T::log_local_rank_0_only,
              works("Only the first process of each machine has a log file."));
    keys.flag("log_global_rank_0_only", &T::log_global_rank_0_only,
              works("Only the first process of all has a log file."));
    keys.flag("disable_validation_on_resume", &T::disable_validation_on_resume,
              works("Do not repeat the validation of the restored step."));
    keys.row("ema", "map|null", "",
             works("Exponential moving average (EMA) of the weights, kept beside them."));
    keys.child("ema", &T::ema, ema_keys());
    keys.parsed("max_time_per_run", &T::max_time_per_run_s, parse_time, "str|map|null", "null",
                works("Save and stop after this time: `DD:HH:MM:SS` or a mapping."));
    keys.row("max_time_per_run.*", "str|float", "",
             works("days, hours, minutes, seconds: added up."));
    keys.row("seconds_to_sleep", "float", "5",
             no_effect("Nothing has to be waited for.").range(">=0"));
    keys.row("create_straggler_detection_callback", "bool|null", "false",
             refused("Slow devices.", kStraggler));
    for (const auto& [name, type, value] :
         {Ignored{"straggler_detection_params", "map|null", "null"},
          Ignored{"straggler_detection_params.report_time_interval", "float", "300"},
          Ignored{"straggler_detection_params.calc_relative_gpu_perf", "bool", "true"},
          Ignored{"straggler_detection_params.calc_individual_gpu_perf", "bool", "true"},
          Ignored{"straggler_detection_params.num_gpu_perf_scores_to_log", "int", "5"},
          Ignored{"straggler_detection_params.gpu_relative_perf_threshold", "float", "0.7"},
          Ignored{"straggler_detection_params.gpu_individual_perf_threshold", "float", "0.7"},
          Ignored{"straggler_detection_params.stop_if_detected", "bool", "false"}})
      keys.row(name, type, value, no_effect("Belongs to create_straggler_detection_callback."));
    keys.row("create_fault_tolerance_callback", "bool|null", "false",
             refused("Restarts by a launcher.", kFault));
    for (const auto& [name, type, value] :
         {Ignored{"fault_tolerance", "map|null", "null"},
          Ignored{"fault_tolerance.workload_check_interval", "float", "5.0"},
          Ignored{"fault_tolerance.initial_rank_heartbeat_timeout", "float|null", "3600.0"},
          Ignored{"fault_tolerance.rank_heartbeat_timeout", "float|null", "2700.0"},
          Ignored{"fault_tolerance.calculate_timeouts", "bool", "true"},
          Ignored{"fault_tolerance.safety_factor", "float", "5.0"},
          Ignored{"fault_tolerance.rank_termination_signal", "any", "SIGKILL"},
          Ignored{"fault_tolerance.log_level", "str", "INFO"},
          Ignored{"fault_tolerance.max_rank_restarts", "int", "0"},
          Ignored{"fault_tolerance.max_subsequent_job_failures", "int", "0"},
          Ignored{"fault_tolerance.additional_ft_launcher_args", "str", "''"},
          Ignored{"fault_tolerance.simulated_fault", "any", "null"}})
      keys.row(name, type, value, no_effect("Belongs to create_fault_tolerance_callback."));
    keys.row("log_tflops_per_sec_per_gpu", "bool|null", "true",
             no_effect("Throughput is always logged."));
  });
  return table;
}

}  // namespace aerie::config
