#include "aerie/config/schema/key_tree.h"

#include <deque>

#include "aerie/base/strings.h"

namespace aerie::config {
namespace {

class KeyTree {
 public:
  KeyTree() {
    root_ = make();
    for (const KeySpec* key : all_keys()) {
      KeyNode* node = root_;
      for (const std::string& part : split(key->path, '.')) node = descend(node, part);
      node->spec = key;
      node->type = TypeSpec::parse(key->type);
      node->default_value = default_of(*key);
    }
    // Nodes that have the same keys share one subtree.
    KeyNode* model = root_->children.at("model");
    KeyNode* dataset = model->children.at("<ds>");
    model->children.erase("<ds>");
    for (const char* name : {"train_ds", "validation_ds", "test_ds"})
      model->children[name] = dataset;
    dataset->children.at("ds_item")->any = dataset;
    KeyNode* optim = model->children.at("optim");
    optim->children.at("args")->children.at("params")->any = nullptr;
    for (const auto& [name, child] : optim->children)
      if (name != "args" && name != "sched" && name != "name" && name != "_target_")
        optim->children.at("args")->children.at("params")->children[name] = child;
    KeyNode* sched = optim->children.at("sched");
    sched->children.at("args")->children.at("params")->any = nullptr;
    for (const auto& [name, child] : sched->children)
      if (name != "args" && name != "name")
        sched->children.at("args")->children.at("params")->children[name] = child;
  }

  const KeyNode& root() const { return *root_; }

 private:
  KeyNode* make() { return &nodes_.emplace_back(); }
  KeyNode* descend(KeyNode* node, const std::string& part) {
    KeyNode*& child = part == "*" ? node->any : node->children[part];
    if (child == nullptr) child = make();
    return child;
  }

  std::deque<KeyNode> nodes_;
  KeyNode* root_ = nullptr;
};

}  // namespace

const KeyNode* KeyNode::child(std::string_view name) const {
  const auto found = children.find(std::string(name));
  return found != children.end() ? found->second : any;
}

std::vector<std::string> KeyNode::names() const {
  std::vector<std::string> out;
  for (const auto& [name, node] : children) out.push_back(name);
  return out;
}

const KeyNode& key_tree() {
  static const KeyTree kTree;
  return kTree.root();
}

const KeyNode* find_key_node(std::string_view path) {
  const auto parts = parse_path(path);
  if (!parts.ok()) return nullptr;
  const KeyNode* node = &key_tree();
  for (const std::string& part : *parts) {
    node = node->child(part);
    if (node == nullptr) return nullptr;
  }
  return node;
}

}  // namespace aerie::config
