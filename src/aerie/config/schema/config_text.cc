#include "aerie/config/schema/config_text.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "aerie/base/printable.h"
#include "aerie/base/strings.h"
#include "aerie/config/yaml.h"

namespace aerie::config {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kCommentColumn = 56;

bool is_branch(const Value& value) {
  return value.is_map() && !value.as_map().empty();
}

// The comment must stay on its line whatever an override or a file name contains.
std::string comment_text(const Origin& origin) {
  return printable(short_origin(origin));
}

void append_comment(std::string& line, const Origin& origin, const IdleKey* idle) {
  line.append(line.size() < kCommentColumn ? kCommentColumn - line.size() : 1, ' ');
  line += str_cat(" # ", comment_text(origin));
  if (idle != nullptr) line += str_cat("; no effect: ", printable(idle->why));
}

using IdleKeys = std::map<std::string, IdleKey>;

Status append_map(const Map& map, const std::string& path, size_t indent, const IdleKeys& idle,
                  std::string& out) {
  const std::string margin(indent, ' ');
  for (const MapEntry& entry : map) {
    const std::string key = path.empty() ? entry.key : str_cat(path, ".", entry.key);
    const auto found = idle.find(key);
    const bool branch = is_branch(entry.value);
    const bool list = entry.value.is_list() && !entry.value.as_list().empty();
    Map one;
    MapEntry copy = entry;
    if (branch) copy.value = Value();
    one.set(std::move(copy));
    AERIE_ASSIGN_OR_RETURN(const std::string text, emit_yaml(Value(std::move(one))));
    std::vector<std::string> lines = split(text, '\n');
    while (!lines.empty() && lines.back().empty()) lines.pop_back();
    if (lines.empty()) continue;
    if (branch) {
      std::string& line = lines.back();
      line.resize(line.rfind("null"));  // "key: null" -> "key:"
      while (!line.empty() && line.back() == ' ') line.pop_back();
    }
    for (std::string& line : lines) line = margin + line;
    // A list's origin stands beside its key; a folded scalar's beside its last line.
    if (!branch)
      append_comment(list ? lines.front() : lines.back(), entry.value.origin(),
                     found != idle.end() ? &found->second : nullptr);
    for (const std::string& line : lines) out += line + "\n";
    if (branch) AERIE_RETURN_IF_ERROR(append_map(entry.value.as_map(), key, indent + 2, idle, out));
  }
  return ok_status();
}

Json to_json(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kNull:
      return nullptr;
    case Value::Kind::kBool:
      return value.as_bool();
    case Value::Kind::kInt:
      return value.as_int();
    case Value::Kind::kFloat:
      if (!std::isfinite(value.as_float())) return python_float_repr(value.as_float());
      return value.as_float();
    case Value::Kind::kBigInt:
      return value.as_float();  // JSON's own numbers end there
    case Value::Kind::kString:
    case Value::Kind::kMissing:
    case Value::Kind::kInterpolation:
      return value.as_string();
    case Value::Kind::kList: {
      Json list = Json::array();
      for (const Value& item : value.as_list()) list.push_back(to_json(item));
      return list;
    }
    case Value::Kind::kMap: {
      Json map = Json::object();
      for (const MapEntry& entry : value.as_map()) map[entry.key] = to_json(entry.value);
      return map;
    }
  }
  return nullptr;
}

void collect_origins(const Value& value, const std::string& path, Json& out) {
  if (!is_branch(value)) {
    out[path] = value.origin().to_string();
    return;
  }
  for (const MapEntry& entry : value.as_map())
    collect_origins(entry.value, path.empty() ? entry.key : str_cat(path, ".", entry.key), out);
}

void compare(const Value* before, const Value* after, const std::string& path,
             std::vector<Difference>& out) {
  const bool both_maps =
      before != nullptr && after != nullptr && before->is_map() && after->is_map();
  const bool only_map = (before == nullptr && is_branch(*after)) ||
                        (after == nullptr && before != nullptr && is_branch(*before));
  if (!both_maps && !only_map) {
    if (before == nullptr || after == nullptr || !(*before == *after))
      out.push_back({path, before, after});
    return;
  }
  const auto below = [&](const std::string& key) {
    return path.empty() ? key : str_cat(path, ".", key);
  };
  if (before != nullptr)
    for (const MapEntry& entry : before->as_map())
      compare(&entry.value, after != nullptr ? after->child(entry.key) : nullptr, below(entry.key),
              out);
  if (after != nullptr)
    for (const MapEntry& entry : after->as_map())
      if (before == nullptr || !before->as_map().contains(entry.key))
        compare(nullptr, &entry.value, below(entry.key), out);
}

}  // namespace

std::string short_origin(const Origin& origin) {
  if (origin.kind != Origin::Kind::kFile || origin.source == nullptr || origin.line <= 0)
    return origin.to_string();
  return str_cat(*origin.source, ":", origin.line);
}

Result<std::string> annotated_yaml(const Value& config, const IdleKeys& idle) {
  if (!config.is_map()) return emit_yaml(config);
  std::string out;
  AERIE_RETURN_IF_ERROR(append_map(config.as_map(), "", 0, idle, out));
  return out;
}

std::string config_json(const Value& config, const IdleKeys& idle) {
  Json root;
  root["config"] = to_json(config);
  root["origins"] = Json::object();
  collect_origins(config, "", root["origins"]);
  root["no_effect"] = Json::object();
  for (const auto& [key, found] : idle) root["no_effect"][key] = found.why;
  return root.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::vector<Difference> config_differences(const Value& before, const Value& after) {
  std::vector<Difference> out;
  compare(&before, &after, "", out);
  return out;
}

}  // namespace aerie::config
