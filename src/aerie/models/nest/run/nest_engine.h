// Engines for NEST, made from a configuration. No torch header here: commands include this.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/checkpoint/train_state.h"
#include "aerie/models/nest/config/nest_config.h"
#include "aerie/train/job.h"

namespace aerie::train {

// The engine that aerie.engine asks for, with freshly initialised weights.
Result<BuiltEngine> make_nest_engine(const config::RunConfig& config, const EngineOptions& options);

// What the ranks of an engine reduce in a step; zeros where it trains alone.
struct ReductionSize {
  int64_t buckets = 0;
  int64_t bytes = 0;  // of one rank
};
ReductionSize reduction_size(BuiltEngine& engine);

// init_from_nemo_model and init_from_ptl_ckpt: copies the tensors that match. Logs what was taken.
Status load_initial_weights(Env& env, BuiltEngine& engine, const config::InitFromConfig& init);

// All weights of the model from whatever holds them: a .nemo, a Lightning .ckpt, a .safetensors
// file, a native checkpoint, a folder of them or of a run (the newest that is whole). Strict: every
// tensor must be there and fit. `averaged`: the averaged weights of a native checkpoint, where it
// has them.
struct LoadedWeights {
  std::string path;
  bool averaged = false;
};
Result<LoadedWeights> load_all_weights(Env& env, BuiltEngine& engine, const std::string& path,
                                       bool averaged);

// Weights, optimizer state and counters of a Lightning checkpoint. The position in the data is not
// in such a file: step and epoch are.
Result<TrainState> import_lightning_checkpoint(Env& env, BuiltEngine& engine,
                                               const std::string& path);

}  // namespace aerie::train
