#include "aerie/config/dialects/hydra/defaults_list.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "aerie/base/strings.h"
#include "aerie/config/resolver.h"

namespace aerie::config {

namespace {

constexpr int kMaxIncludeDepth = 32;
// Files taken in, each as often as it is named: lists that name lists twice grow fast.
constexpr size_t kMaxParts = 2000;

std::string replace_all(std::string text, std::string_view from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

std::string join_nonempty(const std::string& a, char separator, const std::string& b) {
  if (a.empty()) return b;
  if (b.empty()) return a;
  return str_cat(a, separator, b);
}

// One element of a defaults list: `- group: option`, `- file`, `- _self_`.
struct Item {
  bool is_group = false;
  std::string name;  // group, or path of a file; a leading '/' makes it absolute
  std::optional<std::string> package;
  std::optional<std::string> option;  // of a group; none: null
  std::vector<std::string> options;   // `group: [a, b]`
  bool has_options = false;
  bool optional = false;
  bool override = false;
  bool appended = false;  // from the command line
  Origin origin;

  // Known once the parent is.
  std::string parent_folder;
  std::string parent_package;
  std::optional<std::string> header_package;

  bool is_self() const { return !is_group && name == "_self_"; }

  bool is_absolute() const { return starts_with(name, "/"); }
  std::string relative_name() const { return is_absolute() ? name.substr(1) : name; }

  // The folder of a file item, the group of a group item, relative to the parent.
  std::string relative_group() const {
    const std::string path = relative_name();
    if (is_group) return path;
    const size_t slash = path.rfind('/');
    return slash == std::string::npos ? "" : path.substr(0, slash);
  }
  std::string group_path() const {
    return is_absolute() ? relative_group() : join_nonempty(parent_folder, '/', relative_group());
  }
  std::string config_path() const {
    if (is_group) return str_cat(group_path(), "/", option.value_or("null"));
    return is_absolute() ? relative_name() : join_nonempty(parent_folder, '/', name);
  }
  std::string config_name() const {
    if (is_group) return option.value_or("");
    return name.substr(name.rfind('/') + 1);
  }
  bool is_interpolation() const {
    return !has_options && (is_group ? option.value_or("") : name).find("${") != std::string::npos;
  }

  void set_parent(const std::string& folder, const std::string& package_of_parent) {
    parent_folder = folder;
    parent_package = package_of_parent;
    if (package && package->find("_group_") != std::string::npos) {
      package = str_cat("_global_.",
                        replace_all(*package, "_group_", replace_all(group_path(), "/", ".")));
    }
  }

  std::string final_package(bool with_header = true) const {
    std::string own;
    if (package) {
      own = *package;
    } else if (with_header && header_package) {
      own = *header_package;
    } else {
      own = replace_all(relative_group(), "/", ".");
    }
    own = replace_all(own, "_name_", config_name());
    const std::string full = join_nonempty(parent_package, '.', own);
    const size_t global = full.rfind("_global_");
    if (global == std::string::npos) return full;
    const size_t after = global + std::string_view("_global_").size() + 1;
    return after < full.size() ? full.substr(after) : "";
  }

  // How overrides name the choice: "db", "db@backup".
  std::string override_key() const {
    const std::string group = group_path();
    const std::string package_of_group = final_package(false);
    if (replace_all(group, "/", ".") == package_of_group) return group;
    return str_cat(group, "@", package_of_group.empty() ? "_global_" : package_of_group);
  }

  std::string describe() const {
    return is_group ? str_cat(override_key(), ": ", option.value_or("null")) : name;
  }
};

struct Node {
  Item item;
  const ConfigFile* file = nullptr;
  bool skipped = false;  // null, deleted or optional and absent
  std::vector<std::unique_ptr<Node>> children;
  bool has_children = false;
};

class Builder {
 public:
  explicit Builder(ConfigRepository& repository) : repository_(repository) {}

  Status take_overrides(const std::vector<Override>& overrides, DefaultsList& out);
  Result<std::unique_ptr<Node>> root(const std::string& config_name);
  Status check_all_used() const;
  std::vector<std::pair<std::string, std::string>> choices() const;

 private:
  struct Choice {
    Value option;  // string, null or list of strings
    bool used = false;
    bool external = false;
    std::string where;  // file that says so
  };
  struct Deletion {
    std::optional<std::string> option;
    bool used = false;
  };

  Status expand(Node& node, bool is_root, bool interpolated, int depth);
  Status expand_child(Item item, bool interpolated, int depth,
                      std::vector<std::unique_ptr<Node>>& reversed);
  Result<std::vector<Item>> parse_items(const ConfigFile& file) const;
  Result<Item> parse_item(const Value& value) const;
  Status take_nested_overrides(std::vector<Item>& items, const Item& parent, bool interpolated);
  Status note_choice(const Item& item);
  bool is_deleted(const Item& item);
  Status not_found(const Item& item, bool is_root) const;
  Status apply_choice(Item& item);
  Status resolve_interpolation(Item& item) const;

  ConfigRepository& repository_;
  size_t num_expanded_ = 0;
  std::map<std::string, Choice> choices_;
  std::map<std::string, Deletion> deletions_;
  std::vector<Item> appended_;
  std::vector<std::pair<std::string, std::optional<std::string>>> known_;
  std::map<std::string, std::set<std::string>> known_per_group_;
};

Status at_item(const Item& item, std::string message) {
  Status status = invalid_argument(std::move(message));
  if (item.origin.kind == Origin::Kind::kDefault) return status;
  return std::move(status).with_context(item.origin.to_string());
}

Status Builder::take_overrides(const std::vector<Override>& overrides, DefaultsList& out) {
  for (const Override& override : overrides) {
    const bool is_map = override.value && override.value->is_map();
    if (is_map || !repository_.group_exists(override.key)) {
      out.value_overrides.push_back(override);
      continue;
    }
    const std::string key =
        override.package ? str_cat(override.key, "@", *override.package) : override.key;
    if (override.kind == Override::Kind::kForceAdd) {
      return invalid_argument(
          str_cat("force-add of config groups is not supported: '", override.text, "'"));
    }
    if (override.kind == Override::Kind::kDelete) {
      Deletion deletion;
      if (override.value && !override.value->is_null()) {
        if (!override.value->is_string()) {
          return invalid_argument(
              str_cat("'", override.text, "': the option of a config group is a string"));
        }
        deletion.option = override.value->as_string();
      }
      deletions_[key] = deletion;
      continue;
    }
    const Value& value = *override.value;
    if (!value.is_string() && !value.is_list() && !value.is_missing()) {
      Status status = invalid_argument(str_cat(
          "'", override.text, "': '", override.key,
          "' is a config group, its option must be a string or a list, not ", value.kind_phrase()));
      return value.is_null() ? std::move(status).with_hint(str_cat("to leave it out: ~", key))
                             : status;
    }
    if (override.kind == Override::Kind::kAdd) {
      Item item;
      item.is_group = true;
      item.name = override.key;
      item.package = override.package;
      item.appended = true;
      item.origin = value.origin();
      if (value.is_list()) {
        item.has_options = true;
        for (const Value& option : value.as_list()) {
          if (!option.is_string()) {
            return invalid_argument(str_cat("'", override.text, "': options are strings"));
          }
          item.options.push_back(option.as_string());
        }
      } else {
        item.option = value.as_string();
      }
      appended_.push_back(std::move(item));
      continue;
    }
    choices_[key] = Choice{value, false, true, override.text};
  }
  return ok_status();
}

Result<Item> Builder::parse_item(const Value& value) const {
  Item item;
  item.origin = value.origin();
  std::string key;
  if (value.is_string() || value.is_interpolation()) {
    key = value.as_string();
  } else if (value.is_map()) {
    if (value.as_map().size() != 1) {
      return invalid_argument("an item of a defaults list is 'group: option' or the name of a file")
          .with_context(value.origin().to_string());
    }
    const MapEntry& entry = *value.as_map().begin();
    item.is_group = true;
    item.origin = entry.key_origin;
    const std::vector<std::string> words = split(entry.key, ' ');
    for (size_t i = 0; i + 1 < words.size(); ++i) {
      if (words[i] == "optional") {
        item.optional = true;
      } else if (words[i] == "override") {
        item.override = true;
      } else {
        return at_item(item, str_cat("unknown word '", words[i],
                                     "' in a defaults list; known are optional and override"));
      }
    }
    key = words.back();
    const Value& option = entry.value;
    if (option.is_list()) {
      item.has_options = true;
      for (const Value& one : option.as_list()) {
        if (!one.is_string()) return at_item(item, "the options of a config group are strings");
        item.options.push_back(one.as_string());
      }
    } else if (option.is_string() || option.is_interpolation() || option.is_missing()) {
      item.option = option.as_string();
    } else if (!option.is_null()) {
      return at_item(
          item, str_cat("the option of config group '", key,
                        "' is a string, a list of strings or null, not ", option.kind_phrase()));
    }
  } else {
    return invalid_argument(
               str_cat("an item of a defaults list is 'group: option' or the name of a "
                       "file, not ",
                       value.kind_phrase()))
        .with_context(value.origin().to_string());
  }
  const size_t at = key.find('@');
  item.name = key.substr(0, at);
  if (at != std::string::npos) {
    std::string package = key.substr(at + 1);
    package = package.substr(0, package.find(':'));
    item.package = package == "_here_" ? "" : package;
    if (item.is_self()) return at_item(item, "_self_@package is not supported");
  }
  if (item.name.empty() || item.name == "/") return at_item(item, "a name was expected");
  return item;
}

Result<std::vector<Item>> Builder::parse_items(const ConfigFile& file) const {
  std::vector<Item> items;
  if (file.defaults.is_null()) return items;
  for (const Value& value : file.defaults.as_list()) {
    AERIE_ASSIGN_OR_RETURN(Item item, parse_item(value));
    // Hydra's own groups configure logging and launching, which are not Hydra's here.
    if (item.is_group && (starts_with(item.name, "hydra/") || starts_with(item.name, "/hydra/"))) {
      continue;
    }
    items.push_back(std::move(item));
  }
  return items;
}

Status Builder::take_nested_overrides(std::vector<Item>& items, const Item& parent,
                                      bool interpolated) {
  const Item* seen = nullptr;
  for (Item& item : items) {
    if (item.is_self()) continue;
    item.set_parent(parent.group_path(), parent.final_package());
    if (seen && !item.override && !item.appended) {
      return at_item(item,
                     str_cat("override '", seen->describe(), "' stands before '", item.describe(),
                             "'; overrides must be at the end of the defaults list"));
    }
    if (!item.override) continue;
    seen = &item;
    if (interpolated) {
      return at_item(item, "overrides are not allowed below an interpolated config group");
    }
    Value option;
    if (item.has_options) {
      List list;
      for (const std::string& one : item.options) list.emplace_back(one);
      option = Value(std::move(list));
    } else if (item.option) {
      option = Value(*item.option);
    }
    // The first word counts: the command line, then the outermost file.
    choices_.emplace(item.override_key(),
                     Choice{std::move(option), false, false, item.origin.to_string()});
  }
  return ok_status();
}

bool Builder::is_deleted(const Item& item) {
  if (!item.is_group || item.has_options) return false;
  const auto it = deletions_.find(item.override_key());
  if (it == deletions_.end()) return false;
  if (it->second.option && *it->second.option != item.option.value_or("")) return false;
  it->second.used = true;
  return true;
}

Status Builder::note_choice(const Item& item) {
  if (!item.is_group) return ok_status();
  const std::string key = item.override_key();
  for (const auto& [known, option] : known_) {
    if (known != key) continue;
    if (option == item.option) return ok_status();
    return at_item(item,
                   str_cat("Multiple values for ", key, ". To override a value use 'override ", key,
                           ": ", option.value_or("null"), "'"));
  }
  known_.emplace_back(key, item.option);
  known_per_group_[item.group_path()].insert(key);
  return ok_status();
}

Status Builder::not_found(const Item& item, bool is_root) const {
  std::string message;
  std::vector<std::string> names;
  if (is_root) {
    message = str_cat("Cannot find primary config '", item.name,
                      "'. Check that it's in your config search path.");
    names = repository_.options(item.group_path());
  } else if (item.is_group) {
    message = str_cat("Could not find '", item.config_path(), "'");
    names = repository_.options(item.group_path());
    if (!names.empty()) {
      message += str_cat("\nAvailable options in '", item.group_path(), "':");
      for (const std::string& name : names) message += str_cat("\n    ", name);
    }
  } else {
    message = str_cat("Could not load '", item.config_path(), "'.");
    names = repository_.options(item.group_path());
  }
  message += repository_.describe_search_path();
  Status status = at_item(item, message);
  std::string wanted = item.config_name();
  for (const char* extension : {".yaml", ".yml"}) {
    if (ends_with(wanted, extension)) wanted.resize(wanted.size() - std::string(extension).size());
  }
  const std::string near = nearest_name(wanted, names);
  if (!near.empty()) return std::move(status).with_hint(str_cat("did you mean '", near, "'?"));
  if (is_root && !names.empty()) {
    if (names.size() > 12) names.resize(12);
    return std::move(status).with_hint(str_cat("there are ", join(names, ", ")));
  }
  return status;
}

Status Builder::apply_choice(Item& item) {
  if (!item.is_group) return ok_status();
  const auto it = choices_.find(item.override_key());
  if (it == choices_.end()) return ok_status();
  it->second.used = true;
  const Value& option = it->second.option;
  item.has_options = option.is_list();
  item.options.clear();
  item.option.reset();
  if (option.is_list()) {
    for (const Value& one : option.as_list()) {
      if (!one.is_string()) {
        return invalid_argument(str_cat("'", it->second.where, "': options are strings"));
      }
      item.options.push_back(one.as_string());
    }
  } else if (!option.is_null()) {
    item.option = option.as_string();
  }
  return ok_status();
}

// `${db}_${server}` in a defaults list stands for the options chosen elsewhere in it.
Status Builder::resolve_interpolation(Item& item) const {
  Map map;
  for (const auto& [key, option] : known_) map.set(key, option ? Value(*option) : Value());
  const std::string text = item.is_group ? *item.option : item.config_path();
  map.set("_item_", Value::interpolation(text));
  auto resolved = resolve_at(Value(std::move(map)), "_item_");
  if (!resolved.ok() || !resolved->is_string()) {
    std::vector<std::string> keys;
    for (const auto& [key, option] : known_) keys.push_back(key);
    return at_item(item, str_cat("Error resolving interpolation '", text,
                                 "', possible interpolation keys: ", join(keys, ", ")));
  }
  if (item.is_group) {
    item.option = resolved->as_string();
  } else {
    item.name = str_cat("/", resolved->as_string());
  }
  return ok_status();
}

Status Builder::expand_child(Item item, bool interpolated, int depth,
                             std::vector<std::unique_ptr<Node>>& reversed) {
  auto child = std::make_unique<Node>();
  child->item = std::move(item);
  AERIE_RETURN_IF_ERROR(expand(*child, false, interpolated, depth + 1));
  reversed.push_back(std::move(child));
  return ok_status();
}

Status Builder::expand(Node& node, bool is_root, bool interpolated, int depth) {
  Item& item = node.item;
  if (depth > kMaxIncludeDepth) {
    return at_item(item, str_cat("defaults lists nested deeper than ", kMaxIncludeDepth,
                                 " (does a config include itself?): '", item.config_path(), "'"));
  }
  if (++num_expanded_ > kMaxParts) {
    return at_item(item, str_cat("defaults lists that take in more than ", kMaxParts, " files"));
  }
  // The header of the chosen file says where its content goes, so the file is needed first.
  const bool null_option = item.is_group && !item.option;
  const bool missing_option = item.config_name() == "???";
  if (!null_option && !missing_option) {
    AERIE_ASSIGN_OR_RETURN(node.file, repository_.load(item.config_path()));
    if (node.file && node.file->package && *node.file->package != "_group_") {
      const std::string& header = *node.file->package;
      item.header_package =
          header == "_global_" || starts_with(header, "_global_.")
              ? header
              : str_cat("_global_.",
                        replace_all(header, "_group_", replace_all(item.group_path(), "/", ".")));
    }
  }
  if (is_deleted(item)) {
    node.skipped = true;
    return ok_status();
  }
  AERIE_RETURN_IF_ERROR(note_choice(item));
  if (null_option) {
    node.skipped = true;
    return ok_status();
  }
  if (missing_option) {
    std::string message = str_cat("You must specify '", item.override_key(), "', e.g, ",
                                  item.override_key(), "=<OPTION>\nAvailable options:");
    for (const std::string& name : repository_.options(item.group_path())) {
      message += str_cat("\n    ", name);
    }
    return at_item(item, message);
  }
  if (!node.file) {
    if (!item.optional) return not_found(item, is_root);
    node.skipped = true;
    return ok_status();
  }

  AERIE_ASSIGN_OR_RETURN(std::vector<Item> items, parse_items(*node.file));
  const bool appends = is_root && !appended_.empty();
  if (items.empty() && !appends) return ok_status();
  size_t selves = 0;
  bool any_plain = false;
  for (const Item& one : items) {
    if (one.is_self() && ++selves > 1) return at_item(one, "Duplicate _self_ in a defaults list");
    if (!one.override) any_plain = true;
  }
  if (selves == 0 && (any_plain || items.empty())) {
    Item self;
    self.name = "_self_";
    items.push_back(std::move(self));
  }
  if (is_root) items.insert(items.end(), appended_.begin(), appended_.end());
  AERIE_RETURN_IF_ERROR(take_nested_overrides(items, item, interpolated));

  // From the last to the first, so that what an inner list overrides is known in the outer one.
  std::vector<std::unique_ptr<Node>> reversed;
  std::vector<Node*> deferred;
  for (auto one = items.rbegin(); one != items.rend(); ++one) {
    if (one->is_self()) {
      auto self = std::make_unique<Node>();
      self->item = *one;
      reversed.push_back(std::move(self));
      continue;
    }
    if (one->override) continue;
    AERIE_RETURN_IF_ERROR(apply_choice(*one));
    if (one->has_options) {
      for (auto option = one->options.rbegin(); option != one->options.rend(); ++option) {
        if (option->find("${") != std::string::npos) {
          return at_item(*one, "interpolation is not supported in a list of options");
        }
        Item file;
        file.name = str_cat(one->name, "/", *option);
        file.package = one->package;
        file.optional = one->optional;
        file.origin = one->origin;
        file.set_parent(one->parent_folder, one->parent_package);
        AERIE_RETURN_IF_ERROR(expand_child(std::move(file), interpolated, depth, reversed));
      }
    } else if (one->is_interpolation()) {
      auto later = std::make_unique<Node>();
      later->item = *one;
      deferred.push_back(later.get());
      reversed.push_back(std::move(later));
    } else {
      AERIE_RETURN_IF_ERROR(expand_child(*one, interpolated, depth, reversed));
    }
  }
  for (Node* later : deferred) {
    AERIE_RETURN_IF_ERROR(resolve_interpolation(later->item));
    AERIE_RETURN_IF_ERROR(expand(*later, false, true, depth + 1));
  }
  std::reverse(reversed.begin(), reversed.end());
  node.children = std::move(reversed);
  node.has_children = !node.children.empty();
  return ok_status();
}

Result<std::unique_ptr<Node>> Builder::root(const std::string& config_name) {
  auto node = std::make_unique<Node>();
  node->item.name = config_name;
  AERIE_RETURN_IF_ERROR(expand(*node, true, false, 0));
  return node;
}

Status Builder::check_all_used() const {
  for (const auto& [key, choice] : choices_) {
    if (choice.used) continue;
    std::string message = str_cat("Could not override '", key, "'.");
    const auto known = known_per_group_.find(key.substr(0, key.find('@')));
    if (known == known_per_group_.end()) {
      message += " No match in the defaults list.";
    } else {
      message += str_cat("\nDid you mean to override ",
                         join({known->second.begin(), known->second.end()}, ", "), "?");
    }
    if (choice.external) {
      message += str_cat("\nTo append to your default list use +", choice.where);
    }
    Status status = invalid_argument(message);
    return choice.external ? status : std::move(status).with_context(choice.where);
  }
  for (const auto& [key, deletion] : deletions_) {
    if (deletion.used) continue;
    const std::string what = deletion.option ? str_cat(key, "=", *deletion.option) : key;
    return invalid_argument(
        str_cat("Could not delete '", what, "'. No match in the defaults list"));
  }
  return ok_status();
}

std::vector<std::pair<std::string, std::string>> Builder::choices() const {
  std::vector<std::pair<std::string, std::string>> out;
  for (const auto& [key, option] : known_) out.emplace_back(key, option.value_or("null"));
  return out;
}

Status flatten(const Node& node, std::vector<ComposedPart>& parts, std::set<std::string>& seen) {
  if (node.skipped) return ok_status();
  if (node.item.is_group && !node.has_children && !seen.insert(node.item.override_key()).second) {
    return at_item(node.item, str_cat(node.item.override_key(),
                                      " appears more than once in the final defaults list"));
  }
  if (!node.has_children) {
    parts.push_back({node.file, node.item.final_package()});
    return ok_status();
  }
  for (const auto& child : node.children) {
    if (child->item.is_self()) {
      parts.push_back({node.file, node.item.final_package()});
    } else {
      AERIE_RETURN_IF_ERROR(flatten(*child, parts, seen));
    }
  }
  return ok_status();
}

}  // namespace

Result<DefaultsList> make_defaults_list(ConfigRepository& repository,
                                        const std::string& config_name,
                                        const std::vector<Override>& overrides) {
  DefaultsList out;
  Builder builder(repository);
  AERIE_RETURN_IF_ERROR(builder.take_overrides(overrides, out));
  AERIE_ASSIGN_OR_RETURN(const std::unique_ptr<Node> root, builder.root(config_name));
  AERIE_RETURN_IF_ERROR(builder.check_all_used());
  std::set<std::string> seen;
  AERIE_RETURN_IF_ERROR(flatten(*root, out.parts, seen));
  out.choices = builder.choices();
  return out;
}

}  // namespace aerie::config
