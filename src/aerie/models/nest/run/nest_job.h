// NEST as a training job. No torch here: commands include this.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aerie/data/batching.h"
#include "aerie/models/nest/config/run_config_loader.h"
#include "aerie/train/job.h"

namespace aerie::train {

// `config` outlives the job.
std::unique_ptr<Job> make_nest_job(const config::LoadedConfig& config);

// The keys that made the batches of a run's earlier starts; configurations that cannot be read
// count for nothing.
std::vector<data::Batching> batching_of(const std::vector<config::Value>& configs);

// The resolved `model` node with what NeMo appends to it: model_config.yaml of a .nemo.
Result<std::string> nemo_model_config(const config::Value& resolved);
// A .nemo of the snapshot's weights; the model's own also where averages are kept, as NeMo's is at
// the end of a run. Atomic.
Status write_nemo_snapshot(Env& env, const std::string& path, const std::string& model_yaml,
                           const StateSnapshot& snapshot);

}  // namespace aerie::train
