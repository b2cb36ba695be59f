#include "aerie/config/resolver.h"

#include <algorithm>

#include "aerie/base/strings.h"
#include "aerie/config/resolver_engine.h"

namespace aerie::config {

namespace {

// Interpolations that lead to interpolations; deeper chains are taken for a mistake.
constexpr size_t kMaxChain = 100;

bool has_interpolation(const Value& value) {
  if (value.is_interpolation()) return true;
  if (value.is_list()) {
    for (const Value& item : value.as_list()) {
      if (has_interpolation(item)) return true;
    }
  } else if (value.is_map()) {
    for (const MapEntry& entry : value.as_map()) {
      if (has_interpolation(entry.value)) return true;
    }
  }
  return false;
}

}  // namespace

std::string full_key(const Place& place) {
  std::vector<std::string> parts;
  for (const Place* at = &place; at->parent; at = at->parent.get()) parts.push_back(at->key);
  std::reverse(parts.begin(), parts.end());
  return join_path(parts);
}

ResolverEngine::ResolverEngine(const Value& root, const ResolveOptions& options)
    : options_(options), root_(std::make_shared<const Place>(Place{&root, nullptr, ""})) {}

Status ResolverEngine::charge(size_t nodes, size_t text_bytes) {
  nodes_ += nodes;
  text_bytes_ += text_bytes;
  if (nodes_ > options_.max_nodes) {
    return invalid_argument(
        str_cat("interpolations make the config larger than ", options_.max_nodes, " values"));
  }
  if (text_bytes_ > options_.max_text_bytes) {
    return invalid_argument(str_cat("interpolations make the config larger than ",
                                    options_.max_text_bytes, " bytes of text"));
  }
  return ok_status();
}

void ResolverEngine::note_read(const PlacePtr& place) {
  if (options_.reads && options_.reads->size() < options_.max_nodes) {
    options_.reads->insert(full_key(*place));
  }
}

PlacePtr ResolverEngine::make(const PlacePtr& place, Value value) {
  value.set_origin(place->node->origin());
  auto owned = std::make_shared<const Value>(std::move(value));
  made_.push_back(owned);
  return std::make_shared<const Place>(Place{owned.get(), place->parent, place->key});
}

Result<PlacePtr> ResolverEngine::evaluate(const PlacePtr& place) {
  if (!place->node->is_interpolation()) return place;
  if (const auto it = done_.find(place->node); it != done_.end()) {
    if (it->second.reads_env) note_env_read();
    return it->second.result;
  }
  for (size_t i = 0; i < active_.size(); ++i) {
    if (active_[i]->node != place->node) continue;
    std::string chain;
    for (size_t j = i; j < active_.size(); ++j) chain += full_key(*active_[j]) + " -> ";
    return invalid_argument(str_cat("Recursive interpolation detected: ", chain, full_key(*place)));
  }
  if (active_.size() >= kMaxChain) {
    return invalid_argument(str_cat("interpolations lead to one another more than ", kMaxChain,
                                    " times, from ", full_key(*active_.front()), " to ",
                                    full_key(*place)));
  }
  active_.push_back(place);
  const size_t reads_before = env_reads_;
  auto result = [&]() -> Result<PlacePtr> {
    AERIE_RETURN_IF_ERROR(charge(1, 0));
    AERIE_ASSIGN_OR_RETURN(const Text text, parse_text(place->node->as_string()));
    return evaluate_text(place, text);
  }();
  active_.pop_back();
  if (!result.ok()) {
    const Status status = result.status();
    if (!status.context().empty()) return status;
    const std::string where = place->node->origin().kind == Origin::Kind::kDefault
                                  ? ""
                                  : place->node->origin().to_string() + ": ";
    return status.with_context(str_cat(where, full_key(*place), "=", place->node->brief(60)));
  }
  done_.emplace(place->node, Done{result.value(), env_reads_ != reads_before});
  return result;
}

Result<PlacePtr> ResolverEngine::evaluate_text(const PlacePtr& place, const Text& text) {
  if (text.size() == 1 && text[0].interpolation) {
    return interpolation(place, *text[0].interpolation);
  }
  AERIE_ASSIGN_OR_RETURN(std::string joined, text_of(place, text));
  return make(place, Value(std::move(joined)));
}

Result<std::string> ResolverEngine::text_of(const PlacePtr& place, const Text& text) {
  std::string out;
  for (const TextPart& part : text) {
    if (!part.interpolation) {
      AERIE_RETURN_IF_ERROR(charge(0, part.text.size()));
      out += part.text;
      continue;
    }
    AERIE_ASSIGN_OR_RETURN(const PlacePtr target, interpolation(place, *part.interpolation));
    // Containers print with their interpolations as written, as in OmegaConf.
    const std::string piece = python_str(*target->node);
    AERIE_RETURN_IF_ERROR(charge(1, piece.size()));
    out += piece;
  }
  return out;
}

Result<std::string> ResolverEngine::key_text(const PlacePtr& place, const TextPart& key,
                                             const char* what) {
  if (!key.interpolation) return key.text;
  AERIE_ASSIGN_OR_RETURN(const PlacePtr target, interpolation(place, *key.interpolation));
  if (!target->node->is_string()) {
    return invalid_argument(str_cat("an interpolation used as ", what,
                                    " must give a string, not the ", target->node->kind_name(), " ",
                                    target->node->brief(40)));
  }
  return target->node->as_string();
}

Result<PlacePtr> ResolverEngine::interpolation(const PlacePtr& place,
                                               const Interpolation& interpolation) {
  if (!interpolation.is_resolver) return node_reference(place, interpolation);
  std::vector<std::string> name;
  for (const TextPart& key : interpolation.keys) {
    AERIE_ASSIGN_OR_RETURN(std::string part, key_text(place, key, "a resolver's name"));
    name.push_back(std::move(part));
  }
  std::vector<Value> arguments;
  for (const Element& argument : interpolation.arguments) {
    AERIE_ASSIGN_OR_RETURN(Value value, element(place, argument));
    arguments.push_back(std::move(value));
  }
  return call_resolver(*this, place, join_path(name), arguments);
}

Result<PlacePtr> ResolverEngine::node_reference(const PlacePtr& place,
                                                const Interpolation& interpolation) {
  // Put together as text and taken apart again: a nested interpolation may give several keys.
  std::string written(static_cast<size_t>(interpolation.dots), '.');
  for (size_t i = 0; i < interpolation.keys.size(); ++i) {
    AERIE_ASSIGN_OR_RETURN(const std::string key, key_text(place, interpolation.keys[i], "a key"));
    AERIE_RETURN_IF_ERROR(charge(0, key.size()));
    if (interpolation.bracketed[i]) {
      written += str_cat("[", key, "]");
    } else {
      written += str_cat(i == 0 ? "" : ".", key);
    }
  }
  AERIE_ASSIGN_OR_RETURN(PlacePtr target, select(place, written, true));
  if (target->node->is_missing()) {
    return invalid_argument(str_cat("Missing mandatory value: ", full_key(*target)));
  }
  AERIE_ASSIGN_OR_RETURN(target, evaluate(target));
  for (const Place* above = place->parent.get(); above; above = above->parent.get()) {
    if (above->node == target->node) {
      return invalid_argument(str_cat("Interpolation to parent node detected: ", written));
    }
  }
  return target;
}

Status ResolverEngine::not_found(const PlacePtr& from, const std::vector<std::string>& keys,
                                 std::string_view written) const {
  Status status = invalid_argument(str_cat("Interpolation key '", written, "' not found"));
  // Which key failed, and what is near it.
  const Value* at = from->node;
  for (const std::string& key : keys) {
    if (!at || !at->is_map()) break;
    const Value* next = at->as_map().find(key);
    if (!next) {
      const std::string near = nearest_name(key, at->as_map().keys());
      if (!near.empty()) {
        return std::move(status).with_hint(str_cat("did you mean '", near, "'?"));
      }
      break;
    }
    at = next;
  }
  return status;
}

Result<PlacePtr> ResolverEngine::select(const PlacePtr& place, std::string_view key, bool strict) {
  PlacePtr from = root_;
  std::string_view rest = key;
  if (starts_with(rest, ".")) {
    from = place->parent;
    rest.remove_prefix(1);
    while (from && starts_with(rest, ".")) {
      from = from->parent;
      rest.remove_prefix(1);
    }
    if (!from) {
      return invalid_argument(
          str_cat("Error resolving key '", key, "': it leads above the root of the config"));
    }
  }
  if (rest.empty()) return from;
  AERIE_ASSIGN_OR_RETURN(const std::vector<std::string> keys, parse_path(rest));
  AERIE_ASSIGN_OR_RETURN(PlacePtr target, walk(from, keys, strict));
  if (target) {
    note_read(target);
    return target;
  }
  if (strict) return not_found(from, keys, rest);
  return target;
}

Result<PlacePtr> ResolverEngine::walk(PlacePtr from, const std::vector<std::string>& keys,
                                      bool strict) {
  PlacePtr at = std::move(from);
  for (size_t i = 0; i < keys.size(); ++i) {
    AERIE_RETURN_IF_ERROR(charge(1, 0));
    if (i > 0) {
      if (at->node->is_interpolation()) {
        note_read(at);
        AERIE_ASSIGN_OR_RETURN(at, evaluate(at));
      }
      if (!at->node->is_container()) {
        if (!strict) return PlacePtr();
        if (at->node->is_missing()) {
          return invalid_argument(str_cat("Missing mandatory value: ", full_key(*at)));
        }
        return invalid_argument(str_cat("Error trying to access ", join_path(keys), ": '",
                                        full_key(*at), "' is ", at->node->kind_phrase(),
                                        " and cannot contain '", keys[i], "'"));
      }
    }
    const Value* child = at->node->child(keys[i]);
    if (!child) return PlacePtr();
    at = std::make_shared<const Place>(Place{child, at, keys[i]});
  }
  return at;
}

Result<Value> ResolverEngine::element(const PlacePtr& place, const Element& element) {
  switch (element.kind) {
    case Element::Kind::kConstant:
      return element.constant;
    case Element::Kind::kQuoted: {
      AERIE_ASSIGN_OR_RETURN(std::string joined, text_of(place, element.text));
      return Value(std::move(joined));
    }
    case Element::Kind::kText: {
      AERIE_ASSIGN_OR_RETURN(const PlacePtr target, evaluate_text(place, element.text));
      return expand(target);
    }
    case Element::Kind::kList: {
      List list;
      for (const Element& item : element.items) {
        AERIE_ASSIGN_OR_RETURN(Value value, this->element(place, item));
        list.push_back(std::move(value));
      }
      return Value(std::move(list));
    }
    case Element::Kind::kMap: {
      Map map;
      for (size_t i = 0; i < element.items.size(); ++i) {
        MapEntry entry = element.map_keys[i];
        AERIE_ASSIGN_OR_RETURN(entry.value, this->element(place, element.items[i]));
        map.set(std::move(entry));
      }
      return Value(std::move(map));
    }
  }
  return internal_error("an element of no kind");
}

Result<Value> ResolverEngine::expand(const PlacePtr& place) {
  const Value& node = *place->node;
  switch (node.kind()) {
    case Value::Kind::kInterpolation: {
      const size_t reads_before = env_reads_;
      AERIE_ASSIGN_OR_RETURN(const PlacePtr target, evaluate(place));
      auto value = expand(target);
      if (!value.ok()) return value;
      if (options_.keep_env && env_reads_ != reads_before) return node;
      return std::move(value).value().with_origin(node.origin());
    }
    case Value::Kind::kList:
    case Value::Kind::kMap:
      return expand_container(place);
    case Value::Kind::kString:
      AERIE_RETURN_IF_ERROR(charge(1, node.as_string().size()));
      return node;
    default:
      AERIE_RETURN_IF_ERROR(charge(1, 0));
      return node;
  }
}

Result<Value> ResolverEngine::expand_container(const PlacePtr& place) {
  const Value& node = *place->node;
  AERIE_RETURN_IF_ERROR(charge(1, 0));
  for (const Value* above : expanding_) {
    if (above != place->node) continue;
    return invalid_argument(str_cat("Recursive interpolation detected: '", full_key(*place),
                                    "' contains itself through interpolations"))
        .with_context(node.origin().to_string());
  }
  if (expanding_.size() >= static_cast<size_t>(kMaxDepth)) {
    return invalid_argument(str_cat("interpolations nest the config deeper than ", kMaxDepth,
                                    " at ", full_key(*place)));
  }
  expanding_.push_back(place->node);
  auto result = [&]() -> Result<Value> {
    if (node.is_list()) {
      List list;
      list.reserve(node.as_list().size());
      size_t index = 0;
      for (const Value& item : node.as_list()) {
        AERIE_ASSIGN_OR_RETURN(
            Value value,
            expand(std::make_shared<const Place>(Place{&item, place, std::to_string(index++)})));
        list.push_back(std::move(value));
      }
      return Value(std::move(list));
    }
    Map map;
    for (const MapEntry& entry : node.as_map()) {
      AERIE_ASSIGN_OR_RETURN(
          Value value,
          expand(std::make_shared<const Place>(Place{&entry.value, place, entry.key})));
      map.set(MapEntry{entry.key, std::move(value), entry.key_kind, entry.key_origin});
    }
    return Value(std::move(map));
  }();
  expanding_.pop_back();
  if (!result.ok()) return result;
  return std::move(result).value().with_origin(node.origin());
}

Result<Value> resolve_at(const Value& root, std::string_view path, const ResolveOptions& options) {
  AERIE_ASSIGN_OR_RETURN(const std::vector<std::string> keys, parse_path(path));
  ResolverEngine engine(root, options);
  AERIE_ASSIGN_OR_RETURN(PlacePtr place, engine.walk(engine.root(), keys, true));
  if (!place) return not_found(str_cat("Key '", path, "' is not in the config"));
  AERIE_ASSIGN_OR_RETURN(place, engine.evaluate(place));
  if (place->node->is_missing()) {
    return invalid_argument(str_cat("Missing mandatory value: ", full_key(*place)))
        .with_context(place->node->origin().to_string());
  }
  return engine.expand(place);
}

Result<Value> resolve_all(const Value& root, const ResolveOptions& options) {
  if (!options.reads && !has_interpolation(root)) return root;
  ResolverEngine engine(root, options);
  return engine.expand(engine.root());
}

Status check_interpolation(std::string_view text) {
  return parse_text(text).status();
}

}  // namespace aerie::config
