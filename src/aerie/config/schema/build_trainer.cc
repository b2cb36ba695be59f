#include "aerie/config/schema/build_parts.h"
#include "aerie/config/schema/engine_keys.h"
#include "aerie/config/schema/value_parsers.h"

namespace aerie::config {
namespace {

// Reads through one of value_parsers.h; absent and null leave the field.
template <typename T, typename Parse>
void read_parsed(const NodeReader& node, std::string_view key, T& out, Parse parse) {
  const Value* value = node.find(key);
  if (value == nullptr || value->is_null()) return;
  auto parsed = parse(*value);
  if (parsed.ok())
    out = std::move(parsed).value();
  else
    node.fail(key, *value, parsed.status().message());
}

void read_seconds(const NodeReader& node, std::string_view key, bool numbers,
                  std::optional<double>& out) {
  read_parsed(node, key, out, [&](const Value& value) -> Result<std::optional<double>> {
    AERIE_ASSIGN_OR_RETURN(const double seconds, parse_duration(value, numbers));
    return std::optional<double>(seconds);
  });
}

void build_strategy(const NodeReader& trainer, StrategyConfig& out) {
  const Value* value = trainer.find("strategy");
  if (value == nullptr || value->is_null()) return;
  if (value->is_string()) {
    out.name = value->as_string();
    out.find_unused_parameters = ends_with(out.name, "find_unused_parameters_true");
    return;
  }
  const NodeReader node = trainer.child("strategy");
  if (const Value* target = node.find("_target_"); target && target->is_string())
    out.name = find_target(engine_targets(), "trainer.strategy", target->as_string()) ==
                       "SingleDeviceStrategy"
                   ? "single_device"
                   : "ddp";
  node.read("find_unused_parameters", out.find_unused_parameters);
  node.read("gradient_as_bucket_view", out.gradient_as_bucket_view);
  node.read("static_graph", out.static_graph);
  node.read("broadcast_buffers", out.broadcast_buffers);
  node.read("bucket_cap_mb", out.bucket_cap_mb);
  node.read("process_group_backend", out.process_group_backend);
  read_parsed(node, "timeout", out.timeout_s,
              [](const Value& timeout) { return parse_duration(timeout, true); });
}

}  // namespace

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

void build_trainer(const NodeReader& node, TrainerConfig& out) {
  read_parsed(node, "devices", out.devices, parse_devices);
  node.read("num_nodes", out.num_nodes);
  node.read_enum("accelerator", out.accelerator,
                 {{"auto", Accelerator::kAuto},
                  {"cpu", Accelerator::kCpu},
                  {"gpu", Accelerator::kGpu},
                  {"cuda", Accelerator::kGpu}});
  build_strategy(node, out.strategy);
  read_parsed(node, "precision", out.precision, parse_precision);
  node.read("max_epochs", out.max_epochs);
  node.read("min_epochs", out.min_epochs);
  node.read("max_steps", out.max_steps);
  node.read("min_steps", out.min_steps);
  read_seconds(node, "max_time", false, out.max_time_s);
  node.read("accumulate_grad_batches", out.accumulate_grad_batches);
  node.read("gradient_clip_val", out.gradient_clip_val);
  node.read_enum("gradient_clip_algorithm", out.gradient_clip_algorithm,
                 {{"norm", GradientClip::kNorm}, {"value", GradientClip::kValue}});
  read_parsed(node, "val_check_interval", out.val_check_interval, parse_batch_limit);
  node.read("check_val_every_n_epoch", out.check_val_every_n_epoch);
  read_parsed(node, "limit_train_batches", out.limit_train_batches, parse_batch_limit);
  read_parsed(node, "limit_val_batches", out.limit_val_batches, parse_batch_limit);
  read_parsed(node, "limit_test_batches", out.limit_test_batches, parse_batch_limit);
  read_parsed(node, "overfit_batches", out.overfit_batches, parse_batch_limit);
  node.read("num_sanity_val_steps", out.num_sanity_val_steps);
  node.read("log_every_n_steps", out.log_every_n_steps);
  if (const Value* dev = node.find("fast_dev_run"); dev && dev->is_bool())
    out.fast_dev_run = dev->as_bool() ? 1 : 0;
  else
    node.read("fast_dev_run", out.fast_dev_run);
  node.read("sync_batchnorm", out.sync_batchnorm);
  node.read("benchmark", out.benchmark);
  if (const Value* value = node.find("deterministic"); value && value->is_bool())
    out.deterministic = value->as_bool() ? Deterministic::kYes : Deterministic::kNo;
  else
    node.read_enum("deterministic", out.deterministic, {{"warn", Deterministic::kWarn}});
  node.read("detect_anomaly", out.detect_anomaly);
  node.read("use_distributed_sampler", out.use_distributed_sampler);
  node.read("enable_progress_bar", out.enable_progress_bar);
  node.read("enable_model_summary", out.enable_model_summary);
  node.read("profiler", out.profiler);
  node.read("default_root_dir", out.default_root_dir);
}

void build_exp_manager(const NodeReader& node, ExpManagerConfig& out) {
  out.present = node.is_map();
  node.read("explicit_log_dir", out.explicit_log_dir);
  node.read("exp_dir", out.exp_dir);
  node.read("name", out.name);
  node.read("version", out.version);
  node.read_flag("use_datetime_version", out.use_datetime_version);
  node.read_flag("resume_if_exists", out.resume_if_exists);
  node.read_flag("resume_past_end", out.resume_past_end);
  node.read_flag("resume_ignore_no_checkpoint", out.resume_ignore_no_checkpoint);
  node.read("resume_from_checkpoint", out.resume_from_checkpoint);
  node.read_flag("create_tensorboard_logger", out.create_tensorboard_logger);
  node.read_flag("create_checkpoint_callback", out.create_checkpoint_callback);
  node.read_flag("create_early_stopping_callback", out.create_early_stopping_callback);
  node.read_flag("create_preemption_callback", out.create_preemption_callback);
  node.read("files_to_copy", out.files_to_copy);
  node.read_flag("log_step_timing", out.log_step_timing);
  node.read_flag("log_delta_step_timing", out.log_delta_step_timing);
  const NodeReader timing = node.child("step_timing_kwargs");
  timing.read("reduction", out.step_timing_reduction);
  timing.read_flag("sync_cuda", out.step_timing_sync_cuda);
  timing.read("buffer_size", out.step_timing_buffer_size);
  node.read_flag("log_local_rank_0_only", out.log_local_rank_0_only);
  node.read_flag("log_global_rank_0_only", out.log_global_rank_0_only);
  node.read_flag("disable_validation_on_resume", out.disable_validation_on_resume);
  read_seconds(node, "max_time_per_run", false, out.max_time_per_run_s);

  const NodeReader ckpt = node.child("checkpoint_callback_params");
  CheckpointCallbackConfig& params = out.checkpoint_callback_params;
  std::string filepath;
  ckpt.read("filepath", filepath);
  if (!filepath.empty()) {
    const size_t slash = filepath.rfind('/');
    params.dirpath = slash == std::string::npos ? "." : filepath.substr(0, slash);
    params.filename = slash == std::string::npos ? filepath : filepath.substr(slash + 1);
  }
  ckpt.read("dirpath", params.dirpath);
  ckpt.read("filename", params.filename);
  ckpt.read("monitor", params.monitor);
  ckpt.read_flag("verbose", params.verbose);
  ckpt.read_flag("save_last", params.save_last);
  ckpt.read("save_top_k", params.save_top_k);
  ckpt.read_flag("save_weights_only", params.save_weights_only);
  ckpt.read_enum("mode", params.mode_max, {{"min", false}, {"max", true}});
  ckpt.read("auto_insert_metric_name", params.auto_insert_metric_name);
  if (const Value* epochs = ckpt.find("every_n_epochs"); epochs && epochs->is_null())
    params.every_n_epochs = 0;
  ckpt.read("every_n_epochs", params.every_n_epochs);
  ckpt.read("every_n_train_steps", params.every_n_train_steps);
  read_seconds(ckpt, "train_time_interval", true, params.train_time_interval_s);
  ckpt.read("prefix", params.prefix);
  ckpt.read("postfix", params.postfix);
  ckpt.read("save_best_model", params.save_best_model);
  ckpt.read("always_save_nemo", params.always_save_nemo);
  ckpt.read_flag("save_nemo_on_train_end", params.save_nemo_on_train_end);
  ckpt.read_flag("save_on_train_epoch_end", params.save_on_train_epoch_end);
  ckpt.read_flag("async_save", params.async_save);
  ckpt.read("save_last_n_optim_states", params.save_last_n_optim_states);

  const NodeReader stop = node.child("early_stopping_callback_params");
  EarlyStoppingConfig& early = out.early_stopping_callback_params;
  stop.read("monitor", early.monitor);
  stop.read_enum("mode", early.mode_max, {{"min", false}, {"max", true}});
  stop.read("min_delta", early.min_delta);
  stop.read("patience", early.patience);
  stop.read("verbose", early.verbose);
  stop.read("strict", early.strict);
  stop.read("check_finite", early.check_finite);
  stop.read("stopping_threshold", early.stopping_threshold);
  stop.read("divergence_threshold", early.divergence_threshold);
  stop.read_flag("check_on_train_epoch_end", early.check_on_train_epoch_end);

  const NodeReader ema = node.child("ema");
  ema.read_flag("enable", out.ema.enable);
  ema.read("decay", out.ema.decay);
  ema.read_flag("cpu_offload", out.ema.cpu_offload);
  ema.read_flag("validate_original_weights", out.ema.validate_original_weights);
  ema.read("every_n_steps", out.ema.every_n_steps);
}

}  // namespace aerie::config
