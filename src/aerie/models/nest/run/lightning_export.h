// Native state as Lightning and NeMo write theirs: a .ckpt that trainer.fit(ckpt_path=...) goes on
// from and load_from_checkpoint() takes, optimizer, schedule, loop counters, loss scale, averages
// and the model's configuration included. No torch in this header.
//
// What torch's files cannot say is left out: the position inside an epoch's order of samples (NeMo
// begins its loader anew), random streams, and aerie.no_weight_decay.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "aerie/archive/torch_file.h"
#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/checkpoint/train_state.h"
#include "aerie/config/value.h"
#include "aerie/models/nest/config/nest_config.h"
#include "aerie/train/engine.h"

namespace aerie::train {

// One moment of a run, from a snapshot or from a checkpoint's files.
struct LightningState {
  TrainState train;
  std::string scalars_json;  // the engine's: step counts, loss scale, averages
  // "model", "optimizer", "ema": what the safetensors files of a checkpoint hold.
  std::map<std::string, std::vector<archive::OutTensor>> files;

  bool has_averages() const { return files.count("ema") != 0; }
};

class LightningExport {
 public:
  // `model_node`: resolved, as model_config.yaml has it. Builds no tensors.
  static Result<LightningExport> make(const config::RunConfig& run, config::Value model_node);

  // `averaged`: NeMo's `-EMA` file, whose weights are the averages and whose optimizer state holds
  // them; an error without averages. `prefix` as in TorchWriter. The state's tensors must outlive
  // the result.
  Result<archive::TorchWriter> checkpoint(const LightningState& state, bool averaged,
                                          const std::string& prefix) const;

  // Writes `path`, and beside it the `-EMA` file when there are averages. Each appears whole or not
  // at all; the one with averages first, since NeMo asks for it beside the other.
  Status write(Env& env, const std::string& path, const LightningState& state) const;

 private:
  struct Group {
    std::vector<std::string> params;  // torch's order, frozen ones included
    config::Map settings;             // as torch names them, without lr and params
    double lr = 0.0;
  };
  LightningExport() = default;
  Result<std::vector<Group>> groups_at(const TrainState& state) const;

  config::RunConfig run_;
  config::Value model_node_;
  std::vector<Group> groups_;
};

// "x.ckpt" -> "x-EMA.ckpt", NeMo's name.
std::string averaged_path(const std::string& path);

// The state in a snapshot that has been waited for; refers to its memory.
LightningState lightning_state(const TrainState& train, const StateSnapshot& snapshot);

// The folder of a native checkpoint, verified, as a .ckpt; the configuration is that of its run, or
// of the file named. `averaged`: only the `-EMA` file, under exactly this name.
struct ConvertedCheckpoint {
  size_t num_tensors = 0;
  uint64_t bytes = 0;
  bool has_averages = false;
  std::string config;  // where it was found
};
Result<ConvertedCheckpoint> convert_native_checkpoint(Env& env, const std::string& checkpoint,
                                                      const std::string& path,
                                                      const std::string& config, bool averaged,
                                                      const archive::ProgressFn& progress = {});

}  // namespace aerie::train
