// `trainer:` (Lightning's keys) and `exp_manager:` (NeMo's), with their defaults. Times are
// seconds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace aerie::config {

enum class Accelerator { kAuto, kCpu, kGpu };
enum class Precision { k32, k16Mixed, kBf16Mixed };  // the others of Lightning's list are refused
const char* precision_name(Precision precision);     // "32", "16-mixed", "bf16-mixed"
enum class GradientClip { kNorm, kValue };
enum class Deterministic { kNo, kYes, kWarn };

// "2500" counts batches, "0.25" is a share of them: Lightning tells them apart by type.
struct BatchLimit {
  bool is_fraction = true;
  double fraction = 1.0;
  int64_t count = 0;

  // Of `available` batches, as Lightning rounds: fractions are truncated.
  int64_t of(int64_t available) const {
    if (!is_fraction) return count < available ? count : available;
    return static_cast<int64_t>(static_cast<double>(available) * fraction);
  }
  bool operator==(const BatchLimit&) const = default;
};

struct DevicesConfig {
  enum class Kind { kAuto, kAll, kCount, kIds };  // "auto", -1, n, [ids]
  Kind kind = Kind::kAuto;
  int64_t count = 1;
  std::vector<int64_t> ids;
  bool operator==(const DevicesConfig&) const = default;
};

// How gradients travel: as they are, or rounded to 16 bits on the way.
enum class CommHook { kNone, kFp16, kBf16 };

// `strategy` as a name or as a mapping with _target_. The options matter from two devices on.
struct StrategyConfig {
  std::string name = "auto";
  bool find_unused_parameters = false;
  bool gradient_as_bucket_view = false;
  bool static_graph = false;
  bool broadcast_buffers = true;
  double bucket_cap_mb = 25.0;
  CommHook comm_hook = CommHook::kNone;  // ddp_comm_hook
  std::string process_group_backend;     // empty: nccl on GPUs, gloo on CPUs
  double timeout_s = 1800.0;
  bool operator==(const StrategyConfig&) const = default;
};

struct TrainerConfig {
  DevicesConfig devices;
  int64_t num_nodes = 1;
  Accelerator accelerator = Accelerator::kAuto;
  StrategyConfig strategy;
  Precision precision = Precision::k32;
  std::optional<int64_t> max_epochs;  // -1: unlimited; null: 1000 unless max_steps is given
  std::optional<int64_t> min_epochs;
  int64_t max_steps = -1;  // optimizer steps; -1: unlimited
  std::optional<int64_t> min_steps;
  std::optional<double> max_time_s;
  int64_t accumulate_grad_batches = 1;
  double gradient_clip_val = 0.0;  // <= 0: off
  GradientClip gradient_clip_algorithm = GradientClip::kNorm;
  BatchLimit val_check_interval;
  std::optional<int64_t> check_val_every_n_epoch = 1;  // null: val_check_interval counts globally
  BatchLimit limit_train_batches;
  BatchLimit limit_val_batches;
  BatchLimit limit_test_batches;
  BatchLimit overfit_batches{true, 0.0, 0};
  int64_t num_sanity_val_steps = 2;  // -1: all
  int64_t log_every_n_steps = 50;
  int64_t fast_dev_run = 0;  // batches; true means 1
  bool sync_batchnorm = false;
  bool benchmark = false;
  Deterministic deterministic = Deterministic::kNo;
  bool detect_anomaly = false;
  bool use_distributed_sampler = true;
  bool enable_progress_bar = true;
  bool enable_model_summary = true;
  std::string profiler;  // empty: off; "simple", "advanced" and "pytorch" all write a Chrome trace
  std::string default_root_dir;

  // Lightning's rule for "neither given": 1000 epochs. -1 means unlimited.
  int64_t epoch_limit() const {
    if (max_epochs) return *max_epochs;
    return max_steps < 0 && !max_time_s ? 1000 : -1;
  }
  bool operator==(const TrainerConfig&) const = default;
};

struct CheckpointCallbackConfig {
  std::string dirpath;   // empty: <log_dir>/checkpoints
  std::string filename;  // empty: NeMo's template from name, monitor and step
  std::string monitor = "val_loss";
  bool verbose = true;
  bool save_last = true;
  int64_t save_top_k = 3;  // -1: all
  bool save_weights_only = false;
  bool mode_max = false;  // mode: min | max
  bool auto_insert_metric_name = true;
  int64_t every_n_epochs = 1;
  std::optional<int64_t> every_n_train_steps;
  std::optional<double> train_time_interval_s;
  std::string prefix;
  std::string postfix = ".nemo";
  bool save_best_model = false;
  bool always_save_nemo = false;
  bool save_nemo_on_train_end = true;
  bool save_on_train_epoch_end = false;
  bool async_save = false;  // ours always writes in the background
  int64_t save_last_n_optim_states = -1;
  bool operator==(const CheckpointCallbackConfig&) const = default;
};

struct EarlyStoppingConfig {
  std::string monitor = "val_loss";
  bool mode_max = false;
  double min_delta = 0.001;
  int64_t patience = 10;
  bool verbose = true;
  bool strict = true;
  bool check_finite = true;
  std::optional<double> stopping_threshold;
  std::optional<double> divergence_threshold;
  std::optional<bool> check_on_train_epoch_end;  // empty: hangs on the validations
  bool operator==(const EarlyStoppingConfig&) const = default;
};

struct EmaConfig {
  bool enable = false;
  double decay = 0.999;
  bool cpu_offload = false;
  bool validate_original_weights = false;
  int64_t every_n_steps = 1;
  bool operator==(const EmaConfig&) const = default;
};

struct ExpManagerConfig {
  bool present = false;  // the config has an exp_manager node
  std::string explicit_log_dir;
  std::string exp_dir;  // empty: ./nemo_experiments
  std::string name;     // empty: "default"
  std::string version;
  bool use_datetime_version = true;
  bool resume_if_exists = false;
  bool resume_past_end = false;
  bool resume_ignore_no_checkpoint = false;
  std::string resume_from_checkpoint;
  bool create_tensorboard_logger = true;
  bool create_checkpoint_callback = true;
  CheckpointCallbackConfig checkpoint_callback_params;
  bool create_early_stopping_callback = false;
  EarlyStoppingConfig early_stopping_callback_params;
  bool create_preemption_callback = true;
  std::vector<std::string> files_to_copy;
  bool log_step_timing = true;
  bool log_delta_step_timing = false;
  std::string step_timing_reduction = "mean";
  bool step_timing_sync_cuda = false;
  int64_t step_timing_buffer_size = 1;
  bool log_local_rank_0_only = false;
  bool log_global_rank_0_only = false;
  bool disable_validation_on_resume = true;
  EmaConfig ema;
  std::optional<double> max_time_per_run_s;
  bool operator==(const ExpManagerConfig&) const = default;
};

}  // namespace aerie::config
