// The configuration keys that a family knows: rows, rules about several keys, rules about keys that
// are idle, names of built-in classes. A family starts from engine_schema() and adds what is its
// own; everything that judges or explains a configuration takes the result.
//
// Adding a key: a field in the struct of its node and a row bound to it (field_keys.h), then
// `aerie config keys --markdown > docs/config.md`.
#pragma once

#include <deque>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/config/schema/effect.h"
#include "aerie/config/schema/key_table.h"
#include "aerie/config/schema/targets.h"
#include "aerie/config/schema/type_spec.h"
#include "aerie/config/value.h"

namespace aerie::config {

class CheckContext;  // checks.h

// A part of a path that stands for several names: "<ds>" for train_ds, validation_ds, test_ds.
struct Placeholder {
  std::string_view part;
  std::vector<std::string_view> names;
};

// Keys that may be written in a second place too, by the same rules.
struct SharedKeys {
  std::string_view at;           // the second place; one that ends in ".*" takes the whole node
  std::string_view from;         // the node whose rows hold there
  std::string_view except = {};  // "a|b": keys of `from` that do not
};

// What a schema is made of.
struct SchemaParts {
  std::vector<KeyGroup> groups;  // in the order of the documentation
  std::vector<Placeholder> placeholders;
  std::vector<SharedKeys> shared;
  std::vector<TargetClass> targets;
  std::vector<void (*)(CheckContext&)> checks;  // in the order of their findings
  std::vector<IdleRule> idle_rules;
  // Nodes in which `???` is no error for a run that only trains.
  std::vector<std::string_view> not_for_training;
  // What model.optim_param_groups may name, "a|b"; empty: anything. The hint goes with an error.
  std::string_view model_parts;
  std::string_view model_parts_hint;

  // Rows into the group of the row `anchor`, right behind or before it. The anchor exists.
  void insert_after(std::string_view anchor, std::span<const KeySpec> rows);
  void insert_before(std::string_view anchor, std::span<const KeySpec> rows);
  // A group before the one with this title, which exists; an empty title: at the end.
  void insert_group(std::string_view before_title, KeyGroup group);
};

// The engine's part: top level, `aerie:` as far as it concerns no kind of data or model,
// model.optim and model.optim_param_groups, `trainer:`, `exp_manager:`.
SchemaParts engine_schema();

// A key in the tree of rows.
struct KeyNode {
  const KeySpec* spec = nullptr;             // null: a node that only groups others
  TypeSpec type;                             // of spec, parsed
  Value default_value;                       // of spec, parsed; null when it has none
  std::map<std::string, KeyNode*> children;  // owned by the schema
  KeyNode* any = nullptr;                    // `*`

  const KeyNode* child(std::string_view name) const;
  bool is_leaf() const { return children.empty() && any == nullptr; }
  std::vector<std::string> names() const;
};

class Schema {
 public:
  // AERIE_CHECKs that the parts are consistent: they come from our own tables.
  explicit Schema(SchemaParts parts);
  Schema(const Schema&) = delete;
  Schema& operator=(const Schema&) = delete;

  const SchemaParts& parts() const { return parts_; }
  // Every row of every group.
  std::vector<const KeySpec*> all_keys() const;
  // The row of a concrete key ("model.validation_ds.batch_size"), or null.
  const KeySpec* find_key(std::string_view path) const;
  const KeyNode* find_node(std::string_view path) const;
  const KeyNode& root() const { return *root_; }
  // The `aerie:` node with every default: {aerie: {...}}. What compose() calls known_defaults.
  const Value& aerie_defaults() const { return aerie_defaults_; }

  // "model.train_ds.shuffle" as rows spell it, "model.<ds>.shuffle", and what stands for the node
  // of the placeholder, "model.train_ds."; a path without placeholder stays, with no node.
  struct Spelling {
    std::string path;
    std::string node;
  };
  Spelling spelling_of(const std::string& path) const;
  // A key that a row may mean: the first name of each placeholder.
  std::string example_of(std::string_view row_path) const;

  // The documentation of all keys, docs/config.md.
  std::string markdown() const;

 private:
  KeyNode* make() { return &nodes_.emplace_back(); }
  KeyNode* descend(KeyNode* node, const std::string& part);
  KeyNode* at(std::string_view path);
  void share(const SharedKeys& shared);
  void expand_placeholders(KeyNode* node);

  SchemaParts parts_;
  std::deque<KeyNode> nodes_;
  KeyNode* root_ = nullptr;
  Value aerie_defaults_;
};

}  // namespace aerie::config
