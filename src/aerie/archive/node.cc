#include "aerie/archive/node.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "aerie/base/check.h"
#include "aerie/base/strings.h"

namespace aerie::archive {

const char* node_kind_name(NodeKind kind) {
  switch (kind) {
    case NodeKind::kNone:
      return "None";
    case NodeKind::kBool:
      return "bool";
    case NodeKind::kInt:
    case NodeKind::kBigInt:
      return "int";
    case NodeKind::kFloat:
      return "float";
    case NodeKind::kString:
      return "str";
    case NodeKind::kBytes:
      return "bytes";
    case NodeKind::kList:
      return "list";
    case NodeKind::kTuple:
      return "tuple";
    case NodeKind::kSet:
      return "set";
    case NodeKind::kDict:
      return "dict";
    case NodeKind::kTensor:
      return "tensor";
    case NodeKind::kStorage:
      return "storage";
    case NodeKind::kGlobal:
      return "name";
    case NodeKind::kObject:
      return "object";
  }
  return "?";
}

NodeId NodeTree::add(Node node) {
  AERIE_CHECK(nodes_.size() < kNoNode, "too many nodes");
  nodes_.push_back(node);
  return static_cast<NodeId>(nodes_.size() - 1);
}

NodeId NodeTree::constant(NodeKind kind, int64_t value) {
  Node node;
  node.kind = kind;
  node.value = value;
  return add(node);
}

NodeId NodeTree::add_float(double value) {
  return constant(NodeKind::kFloat, std::bit_cast<int64_t>(value));
}

NodeId NodeTree::add_text(NodeKind kind, std::string_view text) {
  AERIE_CHECK(text.size() <= UINT32_MAX, "text too long");
  Node node;
  node.kind = kind;
  node.value = static_cast<int64_t>(text_.size());
  node.length = static_cast<uint32_t>(text.size());
  text_.append(text);
  return add(node);
}

NodeId NodeTree::add_global(std::string_view module, std::string_view name) {
  return add_text(NodeKind::kGlobal, str_cat(module, ".", name));
}

NodeId NodeTree::add_container(NodeKind kind, bool ordered) {
  Node node;
  node.kind = kind;
  node.value = static_cast<int64_t>(children_.size());
  node.flag = ordered;
  children_.emplace_back();
  return add(node);
}

NodeId NodeTree::add_object(NodeId callable, NodeId args) {
  const NodeId id = add_container(NodeKind::kObject);
  children_.back() = {callable, args, kNoNode, kNoNode};
  // An object that would nest too deep is caught when it is put somewhere.
  const uint32_t inner = std::max(nodes_[callable].depth, nodes_[args].depth);
  nodes_[id].depth = static_cast<uint16_t>(inner + 1);
  return id;
}

bool NodeTree::deepen(NodeId parent, NodeId child) {
  const uint32_t depth = nodes_[child].depth + 1u;
  if (depth > kMaxDepth) return false;
  if (depth > nodes_[parent].depth) nodes_[parent].depth = static_cast<uint16_t>(depth);
  return true;
}

bool NodeTree::append(NodeId container, NodeId item) {
  children_[static_cast<size_t>(nodes_[container].value)].push_back(item);
  return deepen(container, item);
}

bool NodeTree::set(NodeId dict, NodeId key, NodeId value) {
  return append(dict, key) && append(dict, value);
}

bool NodeTree::set(NodeId dict, std::string_view key, NodeId value) {
  return set(dict, add_string(key), value);
}

bool NodeTree::set_state(NodeId object, NodeId state) {
  children_[static_cast<size_t>(nodes_[object].value)][2] = state;
  return deepen(object, state);
}

bool NodeTree::add_object_item(NodeId object, NodeKind kind, NodeId item) {
  const auto index = static_cast<size_t>(nodes_[object].value);
  NodeId items = children_[index][3];
  if (items == kNoNode) {
    items = add_container(kind);
    children_[index][3] = items;
  }
  return append(items, item) && deepen(object, items);
}

std::string_view NodeTree::text(NodeId id) const {
  const Node& node = nodes_[id];
  AERIE_CHECK(node.kind == NodeKind::kString || node.kind == NodeKind::kBytes ||
                  node.kind == NodeKind::kBigInt || node.kind == NodeKind::kGlobal,
              "node has no text");
  return std::string_view(text_).substr(static_cast<size_t>(node.value), node.length);
}

const std::vector<NodeId>& NodeTree::items(NodeId id) const {
  const Node& node = nodes_[id];
  AERIE_CHECK(node.kind == NodeKind::kList || node.kind == NodeKind::kTuple ||
                  node.kind == NodeKind::kSet || node.kind == NodeKind::kDict ||
                  node.kind == NodeKind::kObject,
              "node has no items");
  return children_[static_cast<size_t>(node.value)];
}

std::optional<int64_t> NodeTree::as_int(NodeId id) const {
  if (id == kNoNode) return std::nullopt;
  const Node& node = nodes_[id];
  if (node.kind == NodeKind::kInt || node.kind == NodeKind::kBool) return node.value;
  if (node.kind == NodeKind::kFloat) {
    const auto value = std::bit_cast<double>(node.value);
    if (std::trunc(value) == value && std::abs(value) < 9e15) return static_cast<int64_t>(value);
  }
  return std::nullopt;
}

std::optional<double> NodeTree::as_number(NodeId id) const {
  if (id == kNoNode) return std::nullopt;
  const Node& node = nodes_[id];
  if (node.kind == NodeKind::kFloat) return std::bit_cast<double>(node.value);
  if (node.kind == NodeKind::kInt || node.kind == NodeKind::kBool)
    return static_cast<double>(node.value);
  return std::nullopt;
}

std::optional<bool> NodeTree::as_bool(NodeId id) const {
  if (!is(id, NodeKind::kBool)) return std::nullopt;
  return nodes_[id].value != 0;
}

std::optional<std::string> NodeTree::as_string(NodeId id) const {
  if (!is(id, NodeKind::kString)) return std::nullopt;
  return std::string(text(id));
}

NodeId NodeTree::find(NodeId dict, std::string_view key) const {
  if (is(dict, NodeKind::kObject)) dict = object_items(dict);
  if (!is(dict, NodeKind::kDict)) return kNoNode;
  const std::vector<NodeId>& list = items(dict);
  for (size_t i = list.size(); i >= 2; i -= 2) {
    if (is(list[i - 2], NodeKind::kString) && text(list[i - 2]) == key) return list[i - 1];
  }
  return kNoNode;
}

NodeId NodeTree::find(NodeId dict, int64_t key) const {
  if (is(dict, NodeKind::kObject)) dict = object_items(dict);
  if (!is(dict, NodeKind::kDict)) return kNoNode;
  const std::vector<NodeId>& list = items(dict);
  for (size_t i = list.size(); i >= 2; i -= 2) {
    if (is(list[i - 2], NodeKind::kInt) && nodes_[list[i - 2]].value == key) return list[i - 1];
  }
  return kNoNode;
}

std::string NodeTree::object_class(NodeId id) const {
  if (!is(id, NodeKind::kObject)) return "?";
  const NodeId callable = object_callable(id);
  return is(callable, NodeKind::kGlobal) ? std::string(text(callable)) : "?";
}

}  // namespace aerie::archive
