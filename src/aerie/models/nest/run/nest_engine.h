// Engines for NEST, made from a configuration. No torch header here: commands include this.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/checkpoint/train_state.h"
#include "aerie/config/schema/nest_config.h"
#include "aerie/train/engine.h"

namespace aerie::train {

struct NestEngineOptions {
  const config::RunConfig* config = nullptr;
  bool gpu = false;
  int64_t gpu_index = 0;
  bool saves = false;  // snapshots will be taken: their memory is reserved now
  // "32", "bf16-mixed" or "16-mixed"; empty: the config's. A resumed run may have fallen back.
  std::string precision;
};

// A top-level part of the model, as Lightning's summary counts it.
struct ModelPart {
  std::string name;                   // "encoder", "decoder", ...
  int64_t trainable = 0, frozen = 0;  // parameters; buffers are not counted
};

struct NestEngine {
  std::unique_ptr<Engine> engine;
  std::vector<std::pair<std::string, double>> start_times;  // what making it consisted of, seconds
  std::vector<double> base_rates;  // learning rate of every parameter group, before the schedule
  std::vector<ModelPart> parts;    // in the order of the state dict
};

// The engine that aerie.engine asks for, with freshly initialised weights.
Result<NestEngine> make_nest_engine(const NestEngineOptions& options);

// init_from_nemo_model and init_from_ptl_ckpt: copies the tensors that match. Logs what was taken.
Status load_initial_weights(Env& env, NestEngine& engine, const config::InitFromConfig& init);

// All weights of the model from whatever holds them: a .nemo, a Lightning .ckpt, a .safetensors
// file, a native checkpoint, a folder of them or of a run (the newest that is whole). Strict: every
// tensor must be there and fit. `averaged`: the averaged weights of a native checkpoint, where it
// has them.
struct LoadedWeights {
  std::string path;
  bool averaged = false;
};
Result<LoadedWeights> load_all_weights(Env& env, NestEngine& engine, const std::string& path,
                                       bool averaged);

// Weights, optimizer state and counters of a Lightning checkpoint. The position in the data is not
// in such a file: step and epoch are.
Result<TrainState> import_lightning_checkpoint(Env& env, NestEngine& engine,
                                               const std::string& path);

}  // namespace aerie::train
