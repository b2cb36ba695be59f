#include "aerie/config/dialects/mm/torchpack.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "aerie/base/strings.h"
#include "aerie/config/dialects/mm/py_reader.h"
#include "aerie/config/yaml.h"

namespace aerie::config::mm {
namespace {

namespace fs = std::filesystem;

std::optional<std::string_view> expression_of(const Value& value) {
  if (!value.is_interpolation() && !value.is_string()) return std::nullopt;
  const std::string_view text = value.as_string();
  if (!text.starts_with("${") || !text.ends_with("}")) return std::nullopt;
  return text.substr(2, text.size() - 3);
}

void merge_into(Value& destination, Value source) {
  for (MapEntry& entry : source.as_map()) {
    Value* old = destination.as_map().find(entry.key);
    if (old != nullptr && old->is_map() && entry.value.is_map())
      merge_into(*old, std::move(entry.value));
    else
      destination.as_map().set(std::move(entry));
  }
}

// Python expressions are no interpolations of the YAML reader's grammar: a character that nobody
// types stands for their `$` while it reads.
constexpr std::string_view kStandIn = "\xEE\x80\x80";

std::string hide_expressions(std::string_view text) {
  std::string out;
  for (size_t at = 0;;) {
    const size_t found = text.find("${", at);
    out.append(text.substr(at, found - at));
    if (found == std::string_view::npos) return out;
    out.append(kStandIn);
    at = found + 1;
  }
}

void show_expressions(Value& value) {
  if (value.is_list()) {
    for (Value& item : value.as_list()) show_expressions(item);
  } else if (value.is_map()) {
    for (MapEntry& entry : value.as_map()) show_expressions(entry.value);
  } else if (value.is_string() && value.as_string().find(kStandIn) != std::string::npos) {
    std::string text;
    std::string_view rest = value.as_string();
    for (size_t at = rest.find(kStandIn); at != std::string_view::npos; at = rest.find(kStandIn)) {
      text.append(rest.substr(0, at));
      text.push_back('$');
      rest.remove_prefix(at + kStandIn.size());
    }
    text.append(rest);
    const Origin origin = value.origin();
    value = Value(std::move(text)).with_origin(origin);
  }
}

class Evaluator {
 public:
  Evaluator(Value& config, std::set<std::string>& names_read)
      : config_(config), original_(config), names_read_(names_read) {}

  Status run() { return walk(config_, 0); }

 private:
  Status walk(Value& value, int depth) {
    if (depth > kMaxDepth)
      return invalid_argument(str_cat("expressions more than ", kMaxDepth, " levels deep"));
    if (value.is_list()) {
      for (Value& item : value.as_list()) AERIE_RETURN_IF_ERROR(walk(item, depth + 1));
      return ok_status();
    }
    if (value.is_map()) {
      for (MapEntry& entry : value.as_map()) AERIE_RETURN_IF_ERROR(walk(entry.value, depth + 1));
      return ok_status();
    }
    const auto expression = expression_of(value);
    if (!expression) return ok_status();
    const Origin origin = value.origin();
    const std::string text(*expression);
    const std::string where = origin.kind == Origin::Kind::kDefault ? "${...}" : origin.to_string();
    // What a name means may be an expression itself: evaluate it there first.
    AERIE_RETURN_IF_ERROR(evaluate_names(text, depth));
    auto result = parse_py_expression(text, where, &original_, budget_);
    if (!result.ok()) return result.status().with_context(str_cat("${", text.substr(0, 80), "}"));
    value = std::move(result).value();
    value.set_origin_deep(origin);
    return walk(value, depth + 1);
  }

  // Evaluates the values of the names that occur in an expression.
  Status evaluate_names(const std::string& text, int depth) {
    const auto part_of_name = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    };
    for (size_t i = 0; i < text.size();) {
      if (!part_of_name(text[i])) {
        ++i;
        continue;
      }
      size_t end = i;
      while (end < text.size() && part_of_name(text[end])) ++end;
      const std::string name = text.substr(i, end - i);
      i = end;
      Value* found = original_.child(name);
      if (found == nullptr || done_.contains(name)) continue;
      names_read_.insert(name);
      if (std::find(open_.begin(), open_.end(), name) != open_.end()) {
        // A map may name another of its own keys; only a value that needs itself goes round.
        if (found->is_container()) continue;
        open_.push_back(name);
        return invalid_argument(str_cat("expressions go round in a circle: ", join(open_, " -> ")));
      }
      open_.push_back(name);
      AERIE_RETURN_IF_ERROR(walk(*found, depth + 1));
      open_.pop_back();
      done_.insert(name);
    }
    return ok_status();
  }

  Value& config_;
  Value original_;
  std::set<std::string>& names_read_;
  std::set<std::string> done_;
  std::vector<std::string> open_;
  ReadBudget budget_;
};

}  // namespace

Result<TorchpackFile> load_torchpack(Env& env, const std::string& path) {
  std::vector<std::string> files = {path};
  const std::string defaults = "default" + fs::path(path).extension().string();
  for (fs::path folder(path); folder.parent_path() != folder;) {
    folder = folder.parent_path();
    files.push_back((folder / defaults).string());
  }
  std::reverse(files.begin(), files.end());
  TorchpackFile out;
  out.config = Value(Map());
  ReadBudget budget;
  for (const std::string& file : files) {
    if (file != path && !env.exists(file)) continue;
    auto text = env.read_file(file, budget.bytes);
    if (!text.ok() && text.status().code() == StatusCode::kDataError)
      return budget.take_source(budget.bytes + 1).with_context(file);
    if (!text.ok()) return text.status();
    AERIE_RETURN_IF_ERROR(budget.take_source(text->size()).with_context(file));
    AERIE_ASSIGN_OR_RETURN(Value one, parse_yaml(hide_expressions(*text), file));
    show_expressions(one);
    if (one.is_null()) one = Value(Map());
    if (!one.is_map())
      return invalid_argument(str_cat("expected keys and values, got ", one.brief(40)))
          .with_context(file);
    merge_into(out.config, std::move(one));
    out.files.push_back(file);
  }
  return out;
}

Status apply_torchpack_changes(const std::vector<std::pair<std::string, std::string>>& changes,
                               Value& config) {
  for (const auto& [key, text] : changes) {
    ReadBudget budget;
    auto parsed = parse_py_expression(text, "command line", nullptr, budget);
    Value value = parsed.ok() ? std::move(parsed).value() : Value::from_text(text);
    value.set_origin_deep(Origin::command_line(str_cat("--", key, " ", text)));
    const Status status = config.set(split(key, '.'), std::move(value));
    if (!status.ok()) return status.with_context(str_cat("--", key));
  }
  return ok_status();
}

Status evaluate_expressions(Value& config, std::set<std::string>& names_read) {
  return Evaluator(config, names_read).run();
}

}  // namespace aerie::config::mm
