// The schema table as a tree, for walking a config beside it. Internal to the schema library.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/config/schema/key_table.h"
#include "aerie/config/schema/type_spec.h"

namespace aerie::config {

struct KeyNode {
  const KeySpec* spec = nullptr;             // null: a node that only groups others
  TypeSpec type;                             // of spec, parsed
  Value default_value;                       // of spec, parsed; null when it has none
  std::map<std::string, KeyNode*> children;  // owned by the tree
  KeyNode* any = nullptr;                    // `*`

  const KeyNode* child(std::string_view name) const;
  bool is_leaf() const { return children.empty() && any == nullptr; }
  std::vector<std::string> names() const;
};

const KeyNode& key_tree();
// The node of a concrete key, or null.
const KeyNode* find_key_node(std::string_view path);

}  // namespace aerie::config
