// OmegaConf containers as pickled in Lightning checkpoints (hyper_parameters): decoded, so that a
// .ckpt can be turned into a .nemo without naming a config, and written, so that NeMo finds the
// configuration of the model.
#pragma once

#include <string>

#include "aerie/archive/lightning_checkpoint.h"
#include "aerie/archive/node.h"
#include "aerie/config/value.h"

namespace aerie::archive {

// DictConfig, ListConfig and value nodes, or plain dicts, lists and scalars of the same meaning.
// Anything else below (callables, tensors) is an error that says where.
Result<config::Value> decode_omegaconf(const NodeTree& tree, NodeId id);

// A value as Python's own dicts, lists and scalars.
NodeId add_plain_value(NodeTree& tree, const config::Value& value);
// A map as OmegaConf's DictConfig: the one foreign class that we write, because NeMo's models take
// nothing else. Pickled as a call of the class with a plain dict.
NodeId add_dict_config(NodeTree& tree, const config::Value& map);

// The model's configuration in a NeMo checkpoint (hyper_parameters.cfg).
Result<config::Value> model_config_of(const LightningCheckpoint& checkpoint);

}  // namespace aerie::archive
