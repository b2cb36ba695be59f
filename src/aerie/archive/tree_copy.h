// Copies the plain part of a tree, leaving out what only foreign code could have written.
#pragma once

#include <string>
#include <vector>

#include "aerie/archive/node.h"

namespace aerie::archive {

struct PlainCopy {
  NodeId root = kNoNode;              // in the target; kNoNode: the root itself is foreign
  std::vector<std::string> left_out;  // "hyper_parameters: object of omegaconf..."; at most 20
};

// Foreign objects, sets, bare storages and other names than torch's types are left out, together
// with the key or element they are the value of. Shared nodes stay shared; a value inside itself is
// left out. Tensor nodes keep their index.
PlainCopy copy_plain(const NodeTree& from, NodeId root, NodeTree& to);

}  // namespace aerie::archive
