// NodeTree: the neutral form of what a checkpoint holds beside its tensors: dicts, lists, numbers,
// strings, references to tensors, and opaque records of foreign objects that we never build.
//
// Nodes live in one arena and refer to each other by number, because pickles share objects and may
// contain cycles. Code that walks a tree must therefore bound its depth and its number of visits;
// depth() helps, but a cycle is only caught by the walker's own bound.
//
// Threads: const methods from any number of threads; building from one. Text views stay valid until
// the next add_.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/status.h"

namespace aerie::archive {

using NodeId = uint32_t;
inline constexpr NodeId kNoNode = UINT32_MAX;

enum class NodeKind : uint8_t {
  kNone,
  kBool,
  kInt,
  kBigInt,  // beyond 64 bits; text() holds its little-endian two's complement bytes
  kFloat,
  kString,  // UTF-8
  kBytes,
  kList,
  kTuple,
  kSet,
  kDict,     // items() alternates keys and values
  kTensor,   // tensor() indexes the tensors that belong to the tree
  kStorage,  // a bare storage, not wrapped in a tensor
  kGlobal,   // a name such as torch.float32; text() is "module.name"
  kObject,   // a foreign object: what would have been called with which arguments
};

const char* node_kind_name(NodeKind kind);

class NodeTree {
 public:
  static constexpr uint32_t kMaxDepth = 512;

  // Building. add_* return the new node.
  NodeId add_none() { return constant(NodeKind::kNone, 0); }
  NodeId add_bool(bool value) { return constant(NodeKind::kBool, value ? 1 : 0); }
  NodeId add_int(int64_t value) { return constant(NodeKind::kInt, value); }
  NodeId add_float(double value);
  NodeId add_string(std::string_view text) { return add_text(NodeKind::kString, text); }
  NodeId add_bytes(std::string_view bytes) { return add_text(NodeKind::kBytes, bytes); }
  NodeId add_text(NodeKind kind, std::string_view text);
  NodeId add_global(std::string_view module, std::string_view name);
  // `ordered` dicts are written as collections.OrderedDict.
  NodeId add_container(NodeKind kind, bool ordered = false);
  NodeId add_dict(bool ordered = false) { return add_container(NodeKind::kDict, ordered); }
  NodeId add_list() { return add_container(NodeKind::kList); }
  NodeId add_tensor(uint32_t index) { return constant(NodeKind::kTensor, index); }
  NodeId add_storage(uint32_t index) { return constant(NodeKind::kStorage, index); }
  NodeId add_object(NodeId callable, NodeId args);
  // False when that would nest deeper than kMaxDepth.
  bool append(NodeId container, NodeId item);
  bool set(NodeId dict, NodeId key, NodeId value);
  bool set(NodeId dict, std::string_view key, NodeId value);
  bool set_state(NodeId object, NodeId state);
  // What SETITEMS and APPENDS add to an object that derives from dict or list.
  bool add_object_item(NodeId object, NodeKind kind, NodeId item);

  // Reading.
  size_t size() const { return nodes_.size(); }
  size_t text_bytes() const { return text_.size(); }  // of all strings together
  NodeKind kind(NodeId id) const { return nodes_[id].kind; }
  bool is(NodeId id, NodeKind kind) const { return id != kNoNode && nodes_[id].kind == kind; }
  bool ordered(NodeId id) const { return nodes_[id].flag; }
  uint32_t depth(NodeId id) const { return nodes_[id].depth; }
  std::string_view text(NodeId id) const;  // string, bytes, bigint, global
  uint32_t tensor(NodeId id) const { return static_cast<uint32_t>(nodes_[id].value); }
  const std::vector<NodeId>& items(NodeId id) const;  // containers
  size_t dict_size(NodeId id) const { return items(id).size() / 2; }

  // Numbers; nullopt when the node is none. as_int takes bools and floats without a fraction.
  std::optional<int64_t> as_int(NodeId id) const;
  std::optional<double> as_number(NodeId id) const;
  std::optional<bool> as_bool(NodeId id) const;
  std::optional<std::string> as_string(NodeId id) const;

  // The value of a dict's key (of an object derived from dict, too); kNoNode: none. The last wins.
  NodeId find(NodeId dict, std::string_view key) const;
  NodeId find(NodeId dict, int64_t key) const;

  // Objects.
  NodeId object_callable(NodeId id) const { return items(id)[0]; }
  NodeId object_args(NodeId id) const { return items(id)[1]; }
  NodeId object_state(NodeId id) const { return items(id)[2]; }  // kNoNode: none
  NodeId object_items(NodeId id) const { return items(id)[3]; }  // a dict or list; kNoNode: none
  // "omegaconf.dictconfig.DictConfig", or "?" when even its class is not plain.
  std::string object_class(NodeId id) const;

 private:
  struct Node {
    int64_t value = 0;  // number, bits of a double, offset into text_, index into children_
    uint32_t length = 0;
    uint16_t depth = 0;
    NodeKind kind = NodeKind::kNone;
    bool flag = false;
  };
  NodeId add(Node node);
  NodeId constant(NodeKind kind, int64_t value);
  bool deepen(NodeId parent, NodeId child);

  std::deque<Node> nodes_;
  std::deque<std::vector<NodeId>> children_;
  std::string text_;
};

}  // namespace aerie::archive
