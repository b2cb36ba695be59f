// Builds the tree and the tensors of a torch file side by side.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aerie/archive/node.h"
#include "aerie/archive/tensor_writer.h"
#include "aerie/base/check.h"
#include "aerie/base/strings.h"

namespace aerie::archive {

class TreeBuilder {
 public:
  NodeTree tree;
  std::vector<OutTensor> tensors;  // what the tree's tensor nodes index

  NodeId tensor(OutTensor out) {
    tensors.push_back(std::move(out));
    return tree.add_tensor(static_cast<uint32_t>(tensors.size() - 1));
  }
  NodeId scalar(float value) {
    OutTensor out;
    out.name = str_cat("scalar ", tensors.size());
    out.dtype = Dtype::kF32;
    out.fill = [value](void* target, uint64_t) {
      std::memcpy(target, &value, sizeof value);
      return ok_status();
    };
    return tensor(std::move(out));
  }
  NodeId dict() { return tree.add_dict(); }
  void set(NodeId dict, std::string_view key, NodeId value) {
    const bool fits = tree.set(dict, key, value);
    AERIE_CHECK(fits, "nested too deep");
  }
  void set(NodeId dict, int64_t key, NodeId value) {
    const bool fits = tree.set(dict, tree.add_int(key), value);
    AERIE_CHECK(fits, "nested too deep");
  }
  void append(NodeId list, NodeId value) {
    const bool fits = tree.append(list, value);
    AERIE_CHECK(fits, "nested too deep");
  }
  NodeId floats(const std::vector<double>& values) {
    const NodeId list = tree.add_list();
    for (const double value : values) append(list, tree.add_float(value));
    return list;
  }
};

}  // namespace aerie::archive
