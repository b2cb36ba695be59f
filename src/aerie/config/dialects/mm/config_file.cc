#include "aerie/config/dialects/mm/config_file.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "aerie/base/parse.h"
#include "aerie/base/strings.h"
#include "aerie/config/dialects/mm/py_reader.h"
#include "aerie/config/yaml.h"

namespace aerie::config::mm {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostFiles = 256;
constexpr size_t kMostLevels = 32;

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// Replaces every {{ NAME }} for which `value` knows something; the text around stays as it is.
template <typename ValueOf>
std::string replace_braces(std::string_view text, ValueOf value_of) {
  std::string out;
  size_t done = 0;
  for (size_t open = text.find("{{"); open != std::string_view::npos;
       open = text.find("{{", open + 1)) {
    size_t at = open + 2;
    const auto skip = [&] {
      while (at < text.size() &&
             std::string_view(" \t\r\n\f\v").find(text[at]) != std::string_view::npos)
        ++at;
    };
    skip();
    const size_t from = at;
    while (at < text.size() && (is_word(text[at]) || text[at] == '.')) ++at;
    const std::string_view name = text.substr(from, at - from);
    skip();
    if (name.empty() || !text.substr(at).starts_with("}}")) continue;
    const auto value = value_of(name);
    if (!value) continue;
    out.append(text.substr(done, open - done));
    out += *value;
    done = at + 2;
    open = done - 1;
  }
  out.append(text.substr(done));
  return out;
}

// {{_base_.a.b}} of a YAML file, which its reader would take for a mapping.
std::string quote_base_references(std::string_view text) {
  return replace_braces(text, [](std::string_view name) {
    return name.starts_with("_base_.")
               ? std::optional<std::string>(str_cat("\"{{", std::string(name), "}}\""))
               : std::nullopt;
  });
}

void mark_base_references(Value& value) {
  if (value.is_list()) {
    for (Value& item : value.as_list()) mark_base_references(item);
  } else if (value.is_map()) {
    for (MapEntry& entry : value.as_map()) mark_base_references(entry.value);
  } else if (value.is_string() && starts_with(value.as_string(), "{{_base_.") &&
             ends_with(value.as_string(), "}}")) {
    const Origin origin = value.origin();
    value = Value::interpolation(value.as_string()).with_origin(origin);
  }
}

std::string where(const Value& value) {
  return value.origin().to_string();
}

class FileLoader {
 public:
  explicit FileLoader(Env& env) : env_(env) { budget_.names_read = &out_.names_read; }

  Result<Value> load(const std::string& path) {
    std::error_code code;
    const std::string real = fs::weakly_canonical(path, code).string();
    const std::string& id = code ? path : real;
    if (const auto found = std::find(open_.begin(), open_.end(), id); found != open_.end()) {
      std::vector<std::string> chain(found, open_.end());
      chain.push_back(id);
      return invalid_argument(str_cat("the bases go round in a circle: ", join(chain, " -> ")));
    }
    if (open_.size() >= kMostLevels)
      return invalid_argument(str_cat("more than ", kMostLevels, " bases of bases"))
          .with_context(path);
    if (out_.files.size() >= kMostFiles)
      return invalid_argument(str_cat("more than ", kMostFiles, " files")).with_context(path);
    open_.push_back(id);
    auto config = read(path);
    open_.pop_back();
    if (config.ok()) out_.files.push_back(path);
    return config;
  }

  LoadedFile take(Value config) {
    out_.config = std::move(config);
    return std::move(out_);
  }

 private:
  Result<Value> read(const std::string& path) {
    AERIE_ASSIGN_OR_RETURN(Value config, read_one(path));
    if (!config.is_map())
      return invalid_argument(str_cat("expected keys and values, got ", config.brief(40)))
          .with_context(path);
    note_deprecation(path, config);
    const Value* named = config.child("_base_");
    Value bases{Map()};
    if (named != nullptr) {
      AERIE_ASSIGN_OR_RETURN(bases, load_bases(path, *named));
      config.as_map().erase("_base_");
    }
    const bool has_bases = named != nullptr;
    AERIE_RETURN_IF_ERROR(substitute(config, has_bases ? &bases : nullptr));
    if (has_bases) {
      AERIE_RETURN_IF_ERROR(merge_child(std::move(config), bases));
      config = std::move(bases);
    }
    if (config.depth() > kMaxDepth)
      return invalid_argument(str_cat("a value more than ", kMaxDepth, " levels deep"))
          .with_context(path);
    return config;
  }

  Result<Value> read_one(const std::string& path) {
    const std::string extension = fs::path(path).extension().string();
    const bool python = extension == ".py";
    if (!python && extension != ".yaml" && extension != ".yml" && extension != ".json")
      return invalid_argument(str_cat(path, ": only .py, .yaml, .yml and .json files are read"));
    auto read = env_.read_file(path, budget_.bytes);
    // A file beyond the bound is no damaged data but a configuration that is too large.
    if (!read.ok() && read.status().code() == StatusCode::kDataError)
      return budget_.take_source(budget_.bytes + 1).with_context(path);
    if (!read.ok()) return read.status();
    const std::string text = with_file_names(*read, path);
    if (python) return parse_py(text, path, budget_);
    AERIE_RETURN_IF_ERROR(budget_.take_source(text.size()).with_context(path));
    AERIE_ASSIGN_OR_RETURN(Value value, parse_yaml(quote_base_references(text), path));
    AERIE_RETURN_IF_ERROR(budget_.take_copy(value));
    mark_base_references(value);
    if (value.is_null()) return Value(Map());
    return value;
  }

  static std::string with_file_names(const std::string& text, const std::string& path) {
    if (text.find("{{") == std::string::npos) return text;
    std::error_code code;
    const fs::path absolute = fs::absolute(path, code).lexically_normal();
    return replace_braces(text, [&](std::string_view name) -> std::optional<std::string> {
      if (name == "fileDirname") return absolute.parent_path().string();
      if (name == "fileBasename") return absolute.filename().string();
      if (name == "fileBasenameNoExtension") return absolute.stem().string();
      if (name == "fileExtname") return absolute.extension().string();
      return std::nullopt;
    });
  }

  void note_deprecation(const std::string& path, Value& config) {
    const Value* note = config.child("_deprecation_");
    if (note == nullptr) return;
    std::string text = str_cat(path, " is deprecated");
    for (const auto& [key, words] : {std::pair{"expected", "; use "}, {"reference", "; see "}})
      if (const Value* value = note->child(key); value != nullptr && value->is_string())
        text += str_cat(words, value->as_string());
    out_.warnings.push_back(std::move(text));
    config.as_map().erase("_deprecation_");
  }

  Result<Value> load_bases(const std::string& path, const Value& named) {
    List names = named.is_list() ? named.as_list() : List{named};
    Value all{Map()};
    for (const Value& name : names) {
      if (!name.is_string())
        return invalid_argument(str_cat(where(named),
                                        ": _base_ is a file name or a list of them, "
                                        "not ",
                                        name.brief(40)));
      const fs::path base(name.as_string());
      const std::string file =
          base.is_absolute() ? base.string()
                             : (fs::path(path).parent_path() / base).lexically_normal().string();
      auto loaded = load(file);
      if (!loaded.ok()) {
        const Status status = loaded.status();
        if (status.code() != StatusCode::kNotFound) return status;
        return invalid_argument(str_cat(where(named), ": the base ", file, " does not exist"));
      }
      for (MapEntry& entry : loaded.value().as_map()) {
        if (const Value* other = all.child(entry.key); other != nullptr)
          return invalid_argument(str_cat(where(named), ": two bases have the key '", entry.key,
                                          "' (", where(*other), " and ", where(entry.value), ")"))
              .with_hint("keys of bases must differ; let one base be the base of the other");
        all.as_map().set(std::move(entry));
      }
    }
    return all;
  }

  Status substitute(Value& value, const Value* bases) {
    if (value.is_list()) {
      for (Value& item : value.as_list()) AERIE_RETURN_IF_ERROR(substitute(item, bases));
      return ok_status();
    }
    if (value.is_map()) {
      for (MapEntry& entry : value.as_map()) AERIE_RETURN_IF_ERROR(substitute(entry.value, bases));
      return ok_status();
    }
    const std::string path(base_reference_path(value));
    if (path.empty()) return ok_status();
    if (bases == nullptr)
      return invalid_argument(str_cat(where(value), ": {{_base_.", path,
                                      "}}: the file has no "
                                      "_base_"));
    const Value* found = bases;
    out_.names_read.insert(path.substr(0, path.find('.')));
    for (const std::string& part : split(path, '.')) {
      found = found != nullptr && found->is_map() ? found->as_map().find(part) : nullptr;
      if (found == nullptr)
        return invalid_argument(
            str_cat(where(value), ": {{_base_.", path, "}}: no base has this key"));
    }
    AERIE_RETURN_IF_ERROR(budget_.take_copy(*found));
    Value copy = *found;
    value = std::move(copy);
    return ok_status();
  }

  Env& env_;
  ReadBudget budget_;
  std::vector<std::string> open_;
  LoadedFile out_;
};

// dict.pop("_delete_", False): whether it was there and true.
bool take_delete(Value& map) {
  const Value* flag = map.child("_delete_");
  if (flag == nullptr) return false;
  const bool on = (flag->is_bool() && flag->as_bool()) || (flag->is_int() && flag->as_int() != 0);
  map.as_map().erase("_delete_");
  return on;
}

Value* element_of(Value& base, const std::string& key) {
  if (!base.is_list()) return base.child(key);
  const auto index = parse_uint64(key);
  if (!index.ok() || *index >= base.as_list().size()) return nullptr;
  return &base.as_list()[static_cast<size_t>(*index)];
}

}  // namespace

Status merge_child(Value child, Value& base, bool list_keys) {
  for (MapEntry& entry : child.as_map()) {
    Value* old = element_of(base, entry.key);
    if (base.is_list() && old == nullptr)
      return invalid_argument(str_cat(where(entry.value), ": '", entry.key,
                                      "' is no index of a list of ", base.as_list().size()));
    if (!entry.value.is_map()) {
      if (old != nullptr)
        *old = std::move(entry.value);
      else
        base.as_map().set(std::move(entry));
      continue;
    }
    if (old == nullptr) {
      base.as_map().set(std::move(entry));
      continue;
    }
    if (take_delete(entry.value)) {
      *old = std::move(entry.value);
      continue;
    }
    if (!old->is_map() && !(list_keys && old->is_list()))
      return invalid_argument(str_cat(where(entry.value), ": '", entry.key, "' is a dict here and ",
                                      old->kind_phrase(), " in the base (", where(*old), ")"))
          .with_hint("_delete_=True in the dict replaces what the base says");
    AERIE_RETURN_IF_ERROR(merge_child(std::move(entry.value), *old, list_keys));
  }
  return ok_status();
}

Result<LoadedFile> load_config_file(Env& env, const std::string& path) {
  FileLoader loader(env);
  AERIE_ASSIGN_OR_RETURN(Value config, loader.load(path));
  for (const char* reserved : {"filename", "text", "pretty_text"})
    if (const Value* value = config.child(reserved); value != nullptr)
      return invalid_argument(
          str_cat(where(*value), ": the name '", reserved, "' is reserved in configurations"));
  return loader.take(std::move(config));
}

}  // namespace aerie::config::mm
