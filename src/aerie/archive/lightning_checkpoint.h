// A Lightning .ckpt: weights, optimizer, schedules and counters, read without Lightning. Foreign
// objects in it (callbacks, OmegaConf hyper-parameters) stay opaque nodes; the configuration among
// them can be decoded (omegaconf.h). mmcv's checkpoints are read as well: weights, `optimizer`, the
// loss scale in `meta`; their counters stay in the tree.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "aerie/archive/torch_file.h"

namespace aerie::archive {

// What an optimizer remembers of one parameter: "exp_avg", "exp_avg_sq", "momentum_buffer", ...
struct ParamState {
  int64_t param = 0;                // index in the optimizer's order of parameters
  std::optional<double> step;       // whether it was written as a tensor or a number
  std::vector<TensorInfo> tensors;  // named as in the file, without path; step is not among them
};

struct ParamGroup {
  std::vector<int64_t> params;
  // lr, initial_lr, weight_decay, eps, ... as far as they are numbers or bools.
  std::vector<std::pair<std::string, double>> numbers;
  std::vector<double> betas;
  NodeId node = kNoNode;  // the group's dict, for the rest

  std::optional<double> number(std::string_view name) const;
};

struct OptimizerState {
  std::vector<ParamState> params;  // in the file's order; frozen parameters have none
  std::vector<ParamGroup> groups;
};

struct SchedulerState {
  std::optional<int64_t> last_epoch;  // for schedules by step this counts optimizer steps
  std::optional<int64_t> step_count;
  std::vector<double> base_lrs;
  std::vector<double> last_lrs;
  NodeId node = kNoNode;
};

// State of a gradient scaler (16-mixed).
struct ScalerState {
  double scale = 0.0;
  double growth_factor = 2.0;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  int64_t growth_tracker = 0;
};

struct LightningCheckpoint {
  TorchFile file;         // all there is; node ids below belong to file.tree
  TensorArchive weights;  // the state_dict
  int64_t epoch = 0;
  int64_t global_step = 0;
  std::string lightning_version;
  std::vector<OptimizerState> optimizers;
  std::vector<SchedulerState> schedulers;
  std::optional<ScalerState> scaler;
  // Of NeMo's `-EMA` files, whose weights are averages: optimizer steps that these have seen.
  std::optional<int64_t> averaged_steps;
  NodeId loops = kNoNode;
  NodeId callbacks = kNoNode;
  NodeId hyper_parameters = kNoNode;

  // A tensor of an optimizer's state; read it with file.tensors.read().
  const TensorInfo* moment(const OptimizerState& optimizer, int64_t param,
                           std::string_view name) const;
};

Result<LightningCheckpoint> read_lightning_checkpoint(SourcePtr source);
Result<LightningCheckpoint> read_lightning_checkpoint(Env& env, const std::string& path);
// The same from a file already read; an error when it has no state_dict.
Result<LightningCheckpoint> as_lightning_checkpoint(TorchFile file);

}  // namespace aerie::archive
