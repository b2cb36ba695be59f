// Engines for NEST, made from a configuration. No torch header here: commands include this.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/config/schema/nest_config.h"
#include "aerie/train/engine.h"
#include "aerie/train/train_state.h"

namespace aerie::train {

struct NestEngineOptions {
  const config::RunConfig* config = nullptr;
  bool gpu = false;
  int64_t gpu_index = 0;
  // "32", "bf16-mixed" or "16-mixed"; empty: the config's. A resumed run may have fallen back.
  std::string precision;
};

struct NestEngine {
  std::unique_ptr<Engine> engine;
  std::vector<double> base_rates;  // learning rate of every parameter group, before the schedule
};

// The engine that aerie.engine asks for, with freshly initialised weights.
Result<NestEngine> make_nest_engine(const NestEngineOptions& options);

// init_from_nemo_model and init_from_ptl_ckpt: copies the tensors that match. Logs what was taken.
Status load_initial_weights(Env& env, NestEngine& engine, const config::InitFromConfig& init);

// Weights, optimizer state and counters of a Lightning checkpoint. The position in the data is not
// in such a file: step and epoch are.
Result<TrainState> import_lightning_checkpoint(Env& env, NestEngine& engine,
                                               const std::string& path);

}  // namespace aerie::train
