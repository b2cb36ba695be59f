// A trained NEST model from whatever the user has: a .nemo archive, a native checkpoint, the folder
// of a run, a Lightning .ckpt, a .safetensors file. Loading is strict.
#pragma once

#include <memory>
#include <string>

#include <c10/core/Device.h>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/config/value.h"
#include "aerie/models/nest/config/nest_config.h"
#include "aerie/models/nest/nemo_model.h"
#include "aerie/models/nest/nest_model.h"

namespace aerie::ckpt {

struct RestoreOptions {
  // YAML that describes the model, in place of the one that comes with the weights: the config of a
  // run (its `model` node is taken) or a model_config.yaml. Empty: a .nemo and a Lightning
  // checkpoint carry theirs, a native checkpoint has it in the folder of its run.
  std::string config;
  config::NestAerieConfig aerie;
  at::Device device = at::kCPU;
  // The averaged weights of a native checkpoint (exp_manager.ema); an error where there are none.
  bool averaged = false;
};

// Where weights and configuration were found.
struct ModelFiles {
  std::string weights;       // the file
  std::string config;        // the file, or what inside `weights` it came from
  config::Value model_node;  // resolved
};

// `path` may be
//   x.nemo, x.ckpt, x.safetensors   told apart by content, not by name
//   checkpoints/<stem>/             native checkpoint; size and checksum of the weights are
//   verified a run's folder or checkpoints/  the newest native checkpoint that verifies; others are
//   logged
// A path that does not exist is kInvalidArgument.
Result<ModelFiles> find_model(Env& env, const std::string& path, const std::string& config = "");

// The file with the weights alone, found in the same places.
Result<std::string> find_weights(Env& env, const std::string& path);

struct RestoredModel {
  std::unique_ptr<nest::NestModel> model;
  config::Value model_node;  // as it was read
};
// Builds the model and loads its weights.
Result<RestoredModel> restore_nest(Env& env, const std::string& path,
                                   const RestoreOptions& options);

}  // namespace aerie::ckpt
