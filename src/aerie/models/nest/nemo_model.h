// Whole models to and from .nemo archives, and initial weights for a run (init_from_*).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aerie/archive/tensor_writer.h"
#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/checkpoint/state_dict.h"
#include "aerie/config/value.h"
#include "aerie/models/nest/config/nest_config.h"
#include "aerie/models/nest/nest_model.h"

namespace aerie::ckpt {

// What model_config.yaml says for a model node: the node as it is (key order, `???` included) with
// `target` and `nemo_version` appended last. The node must be resolved.
Result<std::string> nemo_config_text(const config::Value& model_node);

// Writes the registry and the resolved `model` node of the run as NeMo's save_to does: it restores
// there with restore_from(). Atomic.
Status save_nemo(Env& env, const std::string& path, const config::Value& model_node,
                 const nn::ParameterRegistry& registry, const archive::ProgressFn& progress = {});

struct RestoredModel {
  std::unique_ptr<nest::NestModel> model;
  config::Value model_node;  // model_config.yaml as read
};
// Builds the model an archive describes and loads its weights (strict unless `strict` is false).
// Data sets are not looked at.
Result<RestoredModel> restore_nemo(Env& env, const std::string& path,
                                   const config::NestAerieConfig& aerie, at::Device device,
                                   bool strict = true);

// The ModelConfig of a resolved `model` node that stands alone.
Result<config::ModelConfig> model_config_of(const config::Value& model_node);

// init_from_nemo_model / init_from_ptl_ckpt: loads what fits by name. String form: all names;
// mapping form: per source include/exclude. One report per source.
Result<std::vector<LoadReport>> initialize_from(Env& env, const config::InitFromConfig& init,
                                                nn::ParameterRegistry& registry);

}  // namespace aerie::ckpt
