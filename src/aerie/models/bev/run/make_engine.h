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

// Who sees what evaluations predict; null: nobody. `engine` is make_bev_engine()'s.
void set_prediction_sink(train::BuiltEngine& engine, PredictionSink* sink);

}  // namespace aerie::bev
