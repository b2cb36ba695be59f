// The engine of a bird's-eye-view run, and the weights it starts with. No torch here.
#pragma once

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/models/bev/config/run_config.h"
#include "aerie/models/bev/engine/prediction_sink.h"
#include "aerie/train/job.h"

namespace aerie::bev {

Result<train::BuiltEngine> make_bev_engine(const BevRunConfig& run,
                                           const train::EngineOptions& options);

// backbone.init_cfg.checkpoint first, then load_from. `engine` is make_bev_engine()'s.
Status load_initial_weights(Env& env, const BevRunConfig& run, train::BuiltEngine& engine);

// The file with the weights of a checkpoint: a file itself, or of a native checkpoint, of the
// newest one in a folder of checkpoints or of a run. kInvalidArgument: there is none.
Result<std::string> find_weights(Env& env, const std::string& path);
// All weights of the model, from any file with them. A file that lacks some is an error: what it
// leaves out would be scored as it was drawn. `averaged`: the averages beside a native checkpoint,
// where there are some; returns whether they were used.
Result<bool> load_whole_model(Env& env, const std::string& path, bool averaged,
                              train::BuiltEngine& engine);

// Who sees what evaluations predict; null: nobody. `engine` is make_bev_engine()'s.
void set_prediction_sink(train::BuiltEngine& engine, PredictionSink* sink);

}  // namespace aerie::bev
