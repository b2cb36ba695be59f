#include "aerie/config/schema/schema.h"

#include <algorithm>

#include "aerie/base/check.h"
#include "aerie/base/strings.h"

namespace aerie::config {
namespace {

// Group and index of a row.
std::pair<KeyGroup*, size_t> locate(SchemaParts& parts, std::string_view path) {
  for (KeyGroup& group : parts.groups)
    for (size_t i = 0; i < group.keys.size(); ++i)
      if (group.keys[i].path == path) return {&group, i};
  AERIE_CHECK(false, "schema: there is no row ", std::string(path));
  return {nullptr, 0};
}

void insert_at(KeyGroup& group, size_t index, std::span<const KeySpec> rows) {
  group.keys.insert(group.keys.begin() + static_cast<std::ptrdiff_t>(index), rows.begin(),
                    rows.end());
}

// Table cells must not contain a bare '|'.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

std::string values_cell(const KeySpec& key) {
  std::string out = key.range.empty() ? "" : str_cat("`", std::string(key.range), "`");
  std::vector<std::string> accepted;
  for (const std::string& choice : choice_names(key.choices)) {
    bool refused = false;
    for (const std::string& other : choice_names(key.refused)) refused = refused || other == choice;
    if (!refused) accepted.push_back(str_cat("`", choice, "`"));
  }
  if (!accepted.empty()) out += str_cat(out.empty() ? "" : ", ", join(accepted, ", "));
  return out;
}

}  // namespace

void SchemaParts::insert_after(std::string_view anchor, std::span<const KeySpec> rows) {
  const auto [group, index] = locate(*this, anchor);
  insert_at(*group, index + 1, rows);
}

void SchemaParts::insert_before(std::string_view anchor, std::span<const KeySpec> rows) {
  const auto [group, index] = locate(*this, anchor);
  insert_at(*group, index, rows);
}

void SchemaParts::insert_group(std::string_view before_title, KeyGroup group) {
  auto at = groups.begin();
  while (at != groups.end() && (before_title.empty() || at->title != before_title)) ++at;
  AERIE_CHECK(before_title.empty() || at != groups.end(), "schema: there is no group ",
              std::string(before_title));
  groups.insert(at, std::move(group));
}

const KeyNode* KeyNode::child(std::string_view name) const {
  const auto found = children.find(std::string(name));
  return found != children.end() ? found->second : any;
}

std::vector<std::string> KeyNode::names() const {
  std::vector<std::string> out;
  for (const auto& [name, node] : children) out.push_back(name);
  return out;
}

Schema::Schema(SchemaParts parts) : parts_(std::move(parts)) {
  root_ = make();
  aerie_defaults_ = Value(Map());
  for (const KeySpec* key : all_keys()) {
    KeyNode* node = root_;
    for (const std::string& part : split(key->path, '.')) node = descend(node, part);
    AERIE_CHECK(node->spec == nullptr, "schema: two rows are called ", std::string(key->path));
    node->spec = key;
    node->type = TypeSpec::parse(key->type);
    node->default_value = default_of(*key);
    if (!starts_with(key->path, "aerie.")) continue;
    const Status status = aerie_defaults_.set(key->path, node->default_value);
    AERIE_CHECK(status.ok(), "schema: ", status.to_string());
  }
  aerie_defaults_.set_origin_deep(Origin::by_default());
  for (const SharedKeys& shared : parts_.shared) share(shared);
  // Last, since shared nodes contain each other from here on.
  for (size_t i = 0, count = nodes_.size(); i < count; ++i) expand_placeholders(&nodes_[i]);
}

KeyNode* Schema::descend(KeyNode* node, const std::string& part) {
  KeyNode*& child = part == "*" ? node->any : node->children[part];
  if (child == nullptr) child = make();
  return child;
}

KeyNode* Schema::at(std::string_view path) {
  KeyNode* node = root_;
  for (const std::string& part : split(path, '.')) {
    KeyNode* next = nullptr;
    if (part == "*")
      next = node->any;
    else if (const auto found = node->children.find(part); found != node->children.end())
      next = found->second;
    AERIE_CHECK(next != nullptr, "schema: there is no node ", std::string(path));
    node = next;
  }
  return node;
}

void Schema::share(const SharedKeys& shared) {
  KeyNode* from = at(shared.from);
  if (ends_with(shared.at, ".*")) {
    at(shared.at.substr(0, shared.at.size() - 2))->any = from;
    return;
  }
  KeyNode* into = at(shared.at);
  into->any = nullptr;
  for (const auto& [name, child] : from->children)
    if (shared.except.empty() || !is_choice(name, shared.except)) into->children[name] = child;
}

void Schema::expand_placeholders(KeyNode* node) {
  for (const Placeholder& placeholder : parts_.placeholders) {
    const auto found = node->children.find(std::string(placeholder.part));
    if (found == node->children.end()) continue;
    KeyNode* const shared = found->second;
    node->children.erase(found);
    for (const std::string_view name : placeholder.names)
      node->children[std::string(name)] = shared;
  }
}

std::vector<const KeySpec*> Schema::all_keys() const {
  std::vector<const KeySpec*> keys;
  for (const KeyGroup& group : parts_.groups)
    for (const KeySpec& key : group.keys) keys.push_back(&key);
  return keys;
}

const KeyNode* Schema::find_node(std::string_view path) const {
  const auto parts = parse_path(path);
  if (!parts.ok()) return nullptr;
  const KeyNode* node = root_;
  for (const std::string& part : *parts) {
    node = node->child(part);
    if (node == nullptr) return nullptr;
  }
  return node;
}

const KeySpec* Schema::find_key(std::string_view path) const {
  const KeyNode* node = find_node(path);
  return node != nullptr ? node->spec : nullptr;
}

Schema::Spelling Schema::spelling_of(const std::string& path) const {
  std::vector<std::string> parts = split(path, '.');
  std::string node;
  for (std::string& part : parts) {
    node += str_cat(part, ".");
    for (const Placeholder& placeholder : parts_.placeholders) {
      const auto& names = placeholder.names;
      if (std::find(names.begin(), names.end(), part) == names.end()) continue;
      part = std::string(placeholder.part);
      return {join(parts, "."), node};
    }
  }
  return {path, ""};
}

std::string Schema::example_of(std::string_view row_path) const {
  std::string out(row_path);
  for (const Placeholder& placeholder : parts_.placeholders) {
    const size_t found = out.find(placeholder.part);
    if (found != std::string::npos)
      out.replace(found, placeholder.part.size(), placeholder.names.front());
  }
  return out;
}

std::string Schema::markdown() const {
  std::string out =
      "# Configuration keys\n\n"
      "<!-- Written by `aerie config keys --markdown`; a test compares. Edit the schema table, not "
      "this page. -->\n\n"
      "Every key that a config may contain. `aerie config show` prints the effective values and "
      "where each came from,\n`aerie config validate` checks a config without running it.\n\n"
      "Status: **works**; **no effect**: accepted and without influence, by design; **later**: "
      "accepted, takes effect with\na feature still to come (in brackets), harmless until then; "
      "**refused**: only the default is accepted.\n\n"
      "Unknown keys under a known node are errors that name the nearest key, unless an "
      "interpolation reads them (not in\n`exp_manager`); other unknown top-level keys are "
      "warnings; `--allow-unknown` makes the errors warnings.\n";
  for (const KeyGroup& group : parts_.groups) {
    out += str_cat("\n## ", std::string(group.title), "\n\n");
    if (!group.intro.empty()) out += str_cat(std::string(group.intro), "\n\n");
    out += "| key | type | default | values | status | meaning |\n|---|---|---|---|---|---|\n";
    for (const KeySpec& key : group.keys) {
      std::string status = key_status_name(key.status);
      if (key.status == KeyStatus::kLater) status += str_cat(" (", std::string(key.note), ")");
      std::string help(key.help);
      if (key.status == KeyStatus::kRefused)
        help += str_cat(" Refused: ", std::string(key.note), ".");
      if (!key.refused.empty()) {
        std::vector<std::string> names;
        for (const std::string& name : choice_names(key.refused))
          names.push_back(str_cat("`", name, "`"));
        help += str_cat(" Refused: ", join(names, ", "), ": ", std::string(key.note), ".");
      } else if (key.status == KeyStatus::kWorks && !key.note.empty()) {
        help += str_cat(" Note: ", std::string(key.note), ".");
      }
      const std::string default_text = key.default_value.empty() ? ""
                                       : key.default_value == kRequired
                                           ? "*required*"
                                           : str_cat("`", std::string(key.default_value), "`");
      out += str_cat("| `", cell(key.path), "` | ", cell(key.type), " | ", cell(default_text),
                     " | ", cell(values_cell(key)), " | ", cell(status), " | ", cell(help), " |\n");
    }
  }
  return out;
}

}  // namespace aerie::config
