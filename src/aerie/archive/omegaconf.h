// Decodes OmegaConf containers as pickled in Lightning checkpoints (hyper_parameters), so that a
// .ckpt can be turned into a .nemo without naming a config.
#pragma once

#include <string>

#include "aerie/archive/lightning_checkpoint.h"
#include "aerie/archive/node.h"
#include "aerie/config/value.h"

namespace aerie::archive {

// DictConfig, ListConfig and value nodes, or plain dicts, lists and scalars of the same meaning.
// Anything else below (callables, tensors) is an error that says where.
Result<config::Value> decode_omegaconf(const NodeTree& tree, NodeId id);

// The model's configuration in a NeMo checkpoint (hyper_parameters.cfg).
Result<config::Value> model_config_of(const LightningCheckpoint& checkpoint);

}  // namespace aerie::archive
