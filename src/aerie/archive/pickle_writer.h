// Writes a NodeTree as a protocol-2 pickle of the kind torch.load(weights_only=True) accepts.
#pragma once

#include <string>
#include <vector>

#include "aerie/archive/node.h"
#include "aerie/archive/tensor_writer.h"

namespace aerie::archive {

// Tensor nodes index `tensors`; tensor i becomes storage "i". Foreign objects, sets and bare
// storages are an error, so are cycles.
Result<std::string> write_pickle(const NodeTree& tree, NodeId root,
                                 const std::vector<OutTensor>& tensors);

}  // namespace aerie::archive
