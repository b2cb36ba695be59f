#include "aerie/config/schema/validate.h"

#include <algorithm>
#include <cmath>

#include "aerie/base/strings.h"
#include "aerie/config/schema/checks.h"
#include "aerie/config/schema/schema.h"
#include "aerie/config/schema/targets.h"
#include "aerie/config/schema/type_spec.h"

namespace aerie::config {
namespace {

// Names that older Lightning or NeMo had, or that users put in the wrong place.
constexpr std::pair<std::string_view, std::string_view> kMoved[] = {
    {"trainer.gpus", "trainer.devices"},
    {"trainer.num_gpus", "trainer.devices"},
    {"trainer.replace_sampler_ddp", "trainer.use_distributed_sampler"},
    {"trainer.resume_from_checkpoint", "exp_manager.resume_from_checkpoint"},
    {"trainer.checkpoint_callback", "trainer.enable_checkpointing"},
    {"trainer.weights_summary", "trainer.enable_model_summary"},
    {"trainer.progress_bar_refresh_rate", "trainer.enable_progress_bar"},
    {"trainer.seed", "aerie.seed"},
    {"seed", "aerie.seed"},
};

bool is_hydra_meta(std::string_view key) {
  return key == "_convert_" || key == "_recursive_" || key == "_partial_";
}

std::string quoted(std::string_view text) {
  return str_cat("'", std::string(text), "'");
}

std::string where_of(const Origin& origin) {
  return origin.kind == Origin::Kind::kDefault ? std::string() : origin.to_string();
}

class Validator {
 public:
  Validator(const Schema& schema, const Value& root, const ValidateOptions& options)
      : schema_(schema), root_(root), options_(options) {}

  Findings run() {
    if (!root_.is_map()) {
      add(Finding::Severity::kError, "config", root_.origin(),
          str_cat("expected a mapping of keys, got ", root_.brief()), "");
      return std::move(findings_);
    }
    walk_map(root_, schema_.root(), "");
    CheckContext context(schema_, root_, options_, findings_);
    for (const auto check : schema_.parts().checks) check(context);
    return std::move(findings_);
  }

 private:
  void add(Finding::Severity severity, std::string key, const Origin& origin, std::string message,
           std::string hint) {
    findings_.add(
        {severity, std::move(key), std::move(message), std::move(hint), where_of(origin)});
  }

  void walk(const Value& value, const KeyNode& node, const std::string& path) {
    if (value.is_missing()) {
      const bool needed = options_.for_training && for_training(path);
      add(needed ? Finding::Severity::kError : Finding::Severity::kWarning, path, value.origin(),
          str_cat("Missing mandatory value: ", path),
          needed ? str_cat("give it on the command line: ", path, "=...") : "");
      return;
    }
    if (node.spec != nullptr) {
      if (!check(value, node, path)) return;
      if (node.spec->type == "any") return;
    } else if (!value.is_map()) {
      if (!value.is_null())
        add(Finding::Severity::kError, path, value.origin(),
            str_cat("expected a mapping, got ", value.brief()), "");
      return;
    }
    if (node.is_leaf()) return;
    if (value.is_map()) walk_map(value, node, path);
    if (value.is_list() && node.any != nullptr) {
      const List& items = value.as_list();
      for (size_t i = 0; i < items.size(); ++i) walk(items[i], *node.any, str_cat(path, ".", i));
    }
  }

  bool for_training(const std::string& path) const {
    for (const std::string_view node : schema_.parts().not_for_training)
      if (starts_with(path, node)) return false;
    return true;
  }

  void walk_map(const Value& value, const KeyNode& node, const std::string& path) {
    for (const MapEntry& entry : value.as_map()) {
      const std::string child_path = path.empty() ? entry.key : str_cat(path, ".", entry.key);
      if (const KeyNode* child = node.child(entry.key)) {
        walk(entry.value, *child, child_path);
      } else if (!(is_hydra_meta(entry.key) && node.child("_target_") != nullptr)) {
        unknown(entry, node, path, child_path);
      }
    }
    for (const auto& [name, child] : node.children) {
      if (child->spec == nullptr || child->spec->default_value != kRequired) continue;
      if (value.as_map().contains(name)) continue;
      add(Finding::Severity::kError, str_cat(path, ".", name), value.origin(),
          "required key is not there", std::string(child->spec->help));
    }
  }

  void unknown(const MapEntry& entry, const KeyNode& node, const std::string& parent,
               const std::string& path) {
    const bool strict = parent == "exp_manager" || starts_with(parent, "exp_manager.");
    if (!strict && is_read(path)) return;
    const bool warn_only = parent.empty() || options_.allow_unknown;
    const std::string suggestion = suggest(entry.key, node, parent, path);
    const Origin& origin =
        entry.key_origin.kind == Origin::Kind::kDefault ? entry.value.origin() : entry.key_origin;
    add(warn_only ? Finding::Severity::kWarning : Finding::Severity::kError, path, origin,
        parent.empty() ? "unknown top-level key, not used"
                       : str_cat("unknown key in ", quoted(parent)),
        suggestion.empty()
            ? (warn_only ? "" : "`aerie config keys` lists the known ones; --allow-unknown goes on")
            : str_cat("did you mean ", quoted(suggestion), "?"));
  }

  std::string suggest(const std::string& key, const KeyNode& node, const std::string& parent,
                      const std::string& path) const {
    for (const auto& [old_path, new_path] : kMoved)
      if (path == old_path) return std::string(new_path);
    const std::string near = nearest_name(key, node.names());
    if (!near.empty()) return parent.empty() ? near : str_cat(parent, ".", near);
    for (const KeySpec* spec : schema_.all_keys()) {
      const std::vector<std::string> parts = split(spec->path, '.');
      if (parts.back() != key || spec->path.find('*') != std::string_view::npos) continue;
      std::string found = schema_.example_of(spec->path);
      if (found != path) return found;
    }
    return {};
  }

  bool is_read(const std::string& path) const {
    if (options_.interpolation_reads == nullptr) return false;
    const std::string below = path + ".";
    for (const std::string& read : *options_.interpolation_reads)
      if (read == path || starts_with(read, below) || starts_with(path, read + ".")) return true;
    return false;
  }

  // False when the value is of no use for looking further.
  bool check(const Value& value, const KeyNode& node, const std::string& path) {
    const KeySpec& spec = *node.spec;
    const TypeSpec& type = node.type;
    const auto error = [&](std::string message, std::string hint) {
      add(Finding::Severity::kError, path, value.origin(), std::move(message), std::move(hint));
      return false;
    };
    if (spec.status == KeyStatus::kRefused && !value.is_null() &&
        (spec.default_value.empty() || !python_equal(value, node.default_value)))
      return error(str_cat(value.brief(40), " is refused: ", std::string(spec.note)), "");
    if (!type.accepts(value))
      return error(str_cat("expected ", type.describe(), expected_choices(spec, type), ", got ",
                           value.brief(40), " (", value.kind_name(), ")"),
                   type_hint(value, type));
    if (!check_numbers(value, spec, type, path)) return false;
    if (ends_with(path, "._target_") && value.is_string()) return check_target(value, spec, path);
    if (!check_choice(value, spec, type, path)) return false;
    if (spec.status == KeyStatus::kLater && spec.warn && !value.is_null() &&
        !python_equal(value, node.default_value))
      add(Finding::Severity::kWarning, path, value.origin(),
          str_cat("not available: ", std::string(spec.note)), "");
    return true;
  }

  static std::string expected_choices(const KeySpec& spec, const TypeSpec& type) {
    if (spec.choices.empty() || !type.has(TypeSpec::Kind::kStr)) return {};
    return str_cat(" (", join(accepted_choices(spec), ", "), ")");
  }

  static std::vector<std::string> accepted_choices(const KeySpec& spec) {
    std::vector<std::string> names;
    for (const std::string& name : choice_names(spec.choices)) {
      const auto refused = choice_names(spec.refused);
      if (std::find(refused.begin(), refused.end(), name) == refused.end()) names.push_back(name);
    }
    return names;
  }

  static std::string type_hint(const Value& value, const TypeSpec& type) {
    if (!value.is_string()) return {};
    const std::string lower = to_lower(value.as_string());
    if (type.has(TypeSpec::Kind::kBool) && (lower == "yes" || lower == "on")) return "write true";
    if (type.has(TypeSpec::Kind::kBool) && (lower == "no" || lower == "off")) return "write false";
    if (type.has(TypeSpec::Kind::kBool) && (lower == "true" || lower == "false"))
      return "leave out the quotes";
    if (type.has(TypeSpec::Kind::kNull) && lower == "none") return "write null";
    return {};
  }

  bool check_numbers(const Value& value, const KeySpec& spec, const TypeSpec& type,
                     const std::string& path) {
    if (value.is_list()) {
      for (const Value& item : value.as_list())
        if (!check_numbers(item, spec, type, path)) return false;
      return true;
    }
    if (!value.is_number()) return true;
    if (spec.range.empty()) {
      // 1e400 is read as infinity, here as in Python.
      if (std::isfinite(value.as_float()) || spec.status != KeyStatus::kWorks ||
          !type.has(TypeSpec::Kind::kFloat))
        return true;
      add(Finding::Severity::kError, path, value.origin(),
          str_cat(value.brief(), " is not a finite number"),
          type.has(TypeSpec::Kind::kNull) ? "write null for none" : "");
      return false;
    }
    if (RangeSpec::parse(spec.range).contains(value.as_float())) return true;
    add(Finding::Severity::kError, path, value.origin(),
        str_cat(value.brief(), " is out of range: expected a number ",
                spec.range[0] == '>' ? "" : "in ", std::string(spec.range)),
        "");
    return false;
  }

  bool check_choice(const Value& value, const KeySpec& spec, const TypeSpec& type,
                    const std::string& path) {
    if (spec.choices.empty() || !type.has(TypeSpec::Kind::kStr)) return true;
    std::string text;
    if (value.is_string()) {
      text = value.as_string();
    } else if (value.is_number() && (spec.range.empty() || (!type.has(TypeSpec::Kind::kInt) &&
                                                            !type.has(TypeSpec::Kind::kFloat)))) {
      text = python_str(value);
    } else {
      return true;
    }
    if (!spec.refused.empty() && is_choice(text, spec.refused)) {
      add(Finding::Severity::kError, path, value.origin(),
          str_cat(quoted(text), " is refused: ", std::string(spec.note)), "");
      return false;
    }
    if (is_choice(text, spec.choices)) return true;
    const std::vector<std::string> names = accepted_choices(spec);
    const std::string near = nearest_name(text, names);
    add(Finding::Severity::kError, path, value.origin(),
        str_cat("unknown value ", quoted(text), ": expected one of ", join(names, ", ")),
        near.empty() ? "" : str_cat("did you mean ", quoted(near), "?"));
    return false;
  }

  bool check_target(const Value& value, const KeySpec& spec, const std::string& path) {
    // Among free names only those of a time have one; parse_duration() knows the others.
    if (ends_with(spec.path, ".*") && value.as_string() == "datetime.timedelta") return true;
    const std::string_view node = spec.path.substr(0, spec.path.size() - 9);  // "._target_"
    const std::vector<TargetClass>& targets = schema_.parts().targets;
    if (!find_target(targets, node, value.as_string()).empty()) return true;
    const std::vector<std::string> known = known_targets(targets, node);
    add(Finding::Severity::kError, path, value.origin(),
        str_cat("unknown target ", quoted(value.as_string()), ": known are ", join(known, ", ")),
        "a target names a built-in component; nothing else can be loaded");
    return false;
  }

  const Schema& schema_;
  const Value& root_;
  const ValidateOptions& options_;
  Findings findings_;
};

}  // namespace

std::string Finding::to_string() const {
  std::string out;
  if (!where.empty()) out += str_cat(where, ": ");
  // Messages in NeMo's wording name the key themselves.
  if (!key.empty() && message.find(key) == std::string::npos) out += str_cat(key, ": ");
  out += message;
  if (!hint.empty()) out += str_cat(" (", hint, ")");
  return out;
}

std::vector<Finding> Findings::of(Finding::Severity severity) const {
  std::vector<Finding> out;
  for (const Finding& finding : all_)
    if (finding.severity == severity) out.push_back(finding);
  return out;
}

Status Findings::to_status() const {
  const std::vector<Finding> found = errors();
  if (found.empty()) return ok_status();
  if (found.size() == 1) return invalid_argument(found[0].to_string());
  std::string text = str_cat("the configuration has ", found.size(), " errors");
  for (const Finding& finding : found) text += str_cat("\n  ", finding.to_string());
  return invalid_argument(std::move(text));
}

Findings validate(const Schema& schema, const Value& resolved, const ValidateOptions& options) {
  return Validator(schema, resolved, options).run();
}

}  // namespace aerie::config
