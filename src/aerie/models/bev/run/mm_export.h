// Native state as mmcv writes its checkpoints: meta, state_dict under BEVFusion's names, and the
// optimizer as torch has it, with a parameter group for every parameter where their settings
// differ, as mmcv's paramwise_cfg makes them. torch.load(weights_only=True) takes the files.
//
// meta: epoch and iter (iterations done), config (YAML), CLASSES, seed, exp_name, time, hook_msgs
// with the best score, fp16 with the state of the loss scale, and our mark
// (checkpoint/mm_mirror.h).
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/checkpoint/mm_mirror.h"
#include "aerie/config/value.h"
#include "aerie/models/bev/config/run_config.h"
#include "aerie/train/job.h"

namespace aerie::bev {

class MmExport {
 public:
  // What the schedule says at a step; asked in the thread that writes checkpoints.
  struct Rates {
    std::vector<double> learning_rates;  // of every group of the optimizer
    std::optional<double> momentum;
  };
  using RatesAt = std::function<Rates(int64_t step)>;

  // Declares the parameters of the model; builds no tensors.
  static Result<MmExport> make(const BevRunConfig& run, std::string config_yaml, RatesAt rates);

  // Writes `path` whole or not at all.
  Status write(Env& env, const std::string& path, const train::MmMark& mark,
               const train::TrainState& state, const train::StateSnapshot& snapshot) const;

 private:
  struct Parameter {
    std::string name;
    size_t group = 0;      // of the optimizer
    config::Map settings;  // as torch names them
  };
  MmExport() = default;

  BevRunConfig run_;
  std::string config_yaml_;
  RatesAt rates_;
  std::vector<Parameter> parameters_;  // torch's order, frozen ones included
  std::vector<double> base_rates_;     // of the groups
  bool one_group_ = true;              // all have the same settings
};

// Weights, optimizer, loss scale and iteration of a checkpoint that mmcv wrote. `engine` is
// make_bev_engine()'s.
Result<train::TrainState> import_mm_checkpoint(Env& env, train::BuiltEngine& engine,
                                               const std::string& path);

}  // namespace aerie::bev
