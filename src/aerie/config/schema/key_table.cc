#include "aerie/config/schema/key_table.h"

#include "aerie/base/check.h"
#include "aerie/base/strings.h"
#include "aerie/config/schema/key_tree.h"
#include "aerie/config/schema/type_spec.h"
#include "aerie/config/yaml.h"

namespace aerie::config {

std::span<const KeyGroup> key_groups() {
  static const KeyGroup kGroups[] = {
      {"Top level", "Unknown keys here are reported and otherwise left alone.", top_level_keys()},
      {"aerie",
       "Our own keys. The node always exists with these defaults, so `aerie.seed=1` needs no `+`, "
       "whatever file is loaded.",
       own_keys()},
      {"model",
       "NeMo's model node. `_target_` names a built-in component in any of NeMo's "
       "spellings; nothing else can be named.",
       model_keys()},
      {"model.encoder", "", encoder_keys()},
      {"model.train_ds, model.validation_ds, model.test_ds",
       "`<ds>` stands for any of the three. Defaults are NeMo's for a key that is absent; the "
       "shipped files set many of them.",
       dataset_keys()},
      {"model.optim",
       "The keys an optimizer or a schedule takes depend on its name; one that belongs to another "
       "is an error.",
       optim_keys()},
      {"trainer", "Lightning's Trainer.", trainer_keys()},
      {"exp_manager", "NeMo's experiment manager; keys outside this list are always errors.",
       exp_manager_keys()},
  };
  return kGroups;
}

std::vector<const KeySpec*> all_keys() {
  std::vector<const KeySpec*> keys;
  for (const KeyGroup& group : key_groups())
    for (const KeySpec& key : group.keys) keys.push_back(&key);
  return keys;
}

const KeySpec* find_key(std::string_view path) {
  const KeyNode* node = find_key_node(path);
  return node != nullptr ? node->spec : nullptr;
}

Value default_of(const KeySpec& key) {
  if (key.default_value.empty() || key.default_value == kRequired) return Value();
  auto value = parse_yaml(key.default_value, "schema table");
  AERIE_CHECK(value.ok(), "schema table: default of ", std::string(key.path), ": ",
              value.status().to_string());
  Value result = std::move(value).value();
  result.set_origin_deep(Origin::by_default());
  return result;
}

const Value& aerie_defaults() {
  static const Value kDefaults = [] {
    Value root{Map()};
    for (const KeySpec& key : own_keys()) {
      const Status status = root.set(key.path, default_of(key));
      AERIE_CHECK(status.ok(), "schema table: ", status.to_string());
    }
    root.set_origin_deep(Origin::by_default());
    return root;
  }();
  return kDefaults;
}

const char* key_status_name(KeyStatus status) {
  switch (status) {
    case KeyStatus::kWorks:
      return "works";
    case KeyStatus::kNoEffect:
      return "no effect";
    case KeyStatus::kLater:
      return "later";
    case KeyStatus::kRefused:
      return "refused";
  }
  return "";
}

namespace {

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

std::string key_table_markdown() {
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
  for (const KeyGroup& group : key_groups()) {
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
