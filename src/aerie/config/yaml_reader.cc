#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <unistd.h>
#include <unordered_map>

#include <yaml.h>

#include "aerie/base/strings.h"
#include "aerie/config/resolver.h"
#include "aerie/config/yaml.h"
#include "aerie/config/yaml_scalar.h"

namespace aerie::config {

namespace {

constexpr std::string_view kTagPrefix = "tag:yaml.org,2002:";

struct Event {
  yaml_event_t raw{};
  Event() = default;
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { yaml_event_delete(&raw); }
};

std::string_view text_of(const yaml_char_t* text) {
  return text ? std::string_view(reinterpret_cast<const char*>(text)) : std::string_view();
}

// How much of the budgets a subtree takes; remembered per anchor so that an alias is charged before
// it is copied.
struct Cost {
  size_t nodes = 0;
  size_t text_bytes = 0;
  int depth = 0;
};

struct Built {
  Value value;
  Cost cost;
  ScalarType plain_type = ScalarType::kString;  // kMerge and kDefaultKey matter to the map above
};

struct Anchor {
  Built built;
  int line = 0;
};

class Reader {
 public:
  Reader(std::string_view text, std::string_view name, const YamlLimits& limits)
      : text_(text), name_(std::make_shared<const std::string>(name)), limits_(limits) {
    AERIE_CHECK(yaml_parser_initialize(&parser_), "libyaml: no memory");
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()),
                                 text.size());
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader() { yaml_parser_delete(&parser_); }

  Result<Value> read() {
    Event event;
    AERIE_RETURN_IF_ERROR(next(event));  // stream start
    Event first;
    AERIE_RETURN_IF_ERROR(next(first));
    if (first.raw.type == YAML_STREAM_END_EVENT) {
      return Value().with_origin(Origin::file(name_, 1, 1));
    }
    Event root;
    AERIE_RETURN_IF_ERROR(next(root));
    AERIE_ASSIGN_OR_RETURN(Built built, node(root, 1));
    AERIE_RETURN_IF_ERROR(check_plain(built));
    Event document_end;
    AERIE_RETURN_IF_ERROR(next(document_end));
    Event last;
    AERIE_RETURN_IF_ERROR(next(last));
    if (last.raw.type != YAML_STREAM_END_EVENT) {
      return error(last.raw.start_mark, "a second document begins here; a config is one document");
    }
    return std::move(built.value);
  }

 private:
  Origin origin(const yaml_mark_t& mark) const {
    return Origin::file(name_, static_cast<int>(mark.line) + 1, static_cast<int>(mark.column) + 1);
  }

  Status error(const Origin& where, std::string message) const {
    return invalid_argument(std::move(message)).with_context(where.to_string());
  }
  Status error(const yaml_mark_t& mark, std::string message) const {
    return error(origin(mark), std::move(message));
  }

  Status next(Event& event) {
    if (yaml_parser_parse(&parser_, &event.raw)) return ok_status();
    const std::string problem = parser_.problem ? parser_.problem : "cannot be parsed";
    if (parser_.error == YAML_MEMORY_ERROR) {
      return out_of_memory("parsing YAML").with_context(*name_);
    }
    if (parser_.error == YAML_READER_ERROR) {
      std::string message = str_cat("not valid YAML text: ", problem);
      if (parser_.problem_value != -1) message += str_cat(" (value ", parser_.problem_value, ")");
      return invalid_argument(str_cat(message, " at byte ", parser_.problem_offset))
          .with_context(*name_);
    }
    std::string message = problem;
    if (parser_.context) {
      message +=
          str_cat(" ", parser_.context, " that starts at line ", parser_.context_mark.line + 1);
    }
    const Status status = error(parser_.problem_mark, message);
    const size_t at = parser_.problem_mark.index;
    return at < text_.size() && text_[at] == '\t'
               ? status.with_hint("this is a tab; YAML is indented with blanks")
               : status;
  }

  Status charge(const yaml_mark_t& mark, const Cost& cost) {
    total_.nodes += cost.nodes;
    total_.text_bytes += cost.text_bytes;
    if (total_.nodes > limits_.max_nodes) {
      return error(mark, str_cat("more than ", limits_.max_nodes,
                                 " values (each use of an alias counts); refused"));
    }
    if (total_.text_bytes > limits_.max_text_bytes) {
      return error(mark, str_cat("more than ", limits_.max_text_bytes,
                                 " bytes of text (each use of an alias counts); refused"));
    }
    return ok_status();
  }

  // A node of the kind PyYAML cannot construct where it stands: `a: <<` or `a: =`.
  Status check_plain(const Built& built) const {
    if (built.plain_type == ScalarType::kMerge || built.plain_type == ScalarType::kDefaultKey) {
      return error(built.value.origin(), str_cat("a bare ", built.value.as_string(),
                                                 " has no meaning as a value; quote it"));
    }
    return ok_status();
  }

  Status keep_anchor(const yaml_char_t* anchor, const yaml_mark_t& mark, const Built& built) {
    if (!anchor) return ok_status();
    // The copy that is kept for later aliases is paid for, too.
    AERIE_RETURN_IF_ERROR(charge(mark, built.cost));
    const auto [it, inserted] = anchors_.emplace(std::string(text_of(anchor)),
                                                 Anchor{built, static_cast<int>(mark.line) + 1});
    if (!inserted) {
      return error(mark, str_cat("anchor '", it->first, "' is defined twice (first at line ",
                                 it->second.line, ")"));
    }
    return ok_status();
  }

  Result<Built> node(const Event& event, int depth) {
    if (depth > limits_.max_depth) {
      return error(event.raw.start_mark,
                   str_cat("nested deeper than ", limits_.max_depth, "; refused"));
    }
    switch (event.raw.type) {
      case YAML_SCALAR_EVENT:
        return scalar(event);
      case YAML_SEQUENCE_START_EVENT:
        return sequence(event, depth);
      case YAML_MAPPING_START_EVENT:
        return mapping(event, depth);
      case YAML_ALIAS_EVENT:
        return alias(event, depth);
      default:
        return error(event.raw.start_mark, "a value was expected here");
    }
  }

  Result<Built> alias(const Event& event, int depth) {
    const std::string name(text_of(event.raw.data.alias.anchor));
    const auto it = anchors_.find(name);
    if (it == anchors_.end()) {
      return error(
          event.raw.start_mark,
          str_cat("alias '*", name, "' refers to an anchor that is not defined before it"));
    }
    if (depth + it->second.built.cost.depth - 1 > limits_.max_depth) {
      return error(event.raw.start_mark, str_cat("alias '*", name, "' nests deeper than ",
                                                 limits_.max_depth, "; refused"));
    }
    AERIE_RETURN_IF_ERROR(charge(event.raw.start_mark, it->second.built.cost));
    return it->second.built;
  }

  Result<Built> scalar(const Event& event) {
    const auto& data = event.raw.data.scalar;
    const std::string_view text(reinterpret_cast<const char*>(data.value), data.length);
    const Origin where = origin(event.raw.start_mark);
    Built built;
    built.cost = {1, text.size(), 1};
    AERIE_RETURN_IF_ERROR(charge(event.raw.start_mark, built.cost));
    ScalarType type = ScalarType::kString;
    if (data.plain_implicit) {
      type = type_when_read(text);
    } else if (!data.quoted_implicit) {
      AERIE_ASSIGN_OR_RETURN(type, explicit_type(event.raw.start_mark, text_of(data.tag)));
    }
    auto made = make_scalar(type, text);
    if (!made.ok()) return made.status().with_context(where.to_string());
    built.value = std::move(made).value();
    built.value.set_origin(where);
    built.plain_type = type;
    if (built.value.is_interpolation()) {
      AERIE_RETURN_IF_ERROR(
          check_interpolation(built.value.as_string()).with_context(where.to_string()));
    }
    AERIE_RETURN_IF_ERROR(keep_anchor(data.anchor, event.raw.start_mark, built));
    return built;
  }

  static Result<Value> make_scalar(ScalarType type, std::string_view text) {
    switch (type) {
      case ScalarType::kNull:
        return Value();
      case ScalarType::kBool:
        return make_bool(text);
      case ScalarType::kInt:
        return make_int(text);
      case ScalarType::kFloat:
        return make_float(text);
      default:
        return Value::from_text(std::string(text));
    }
  }

  Result<ScalarType> explicit_type(const yaml_mark_t& mark, std::string_view tag) const {
    if (starts_with(tag, kTagPrefix)) {
      const std::string_view name = tag.substr(kTagPrefix.size());
      if (name == "str") return ScalarType::kString;
      if (name == "int") return ScalarType::kInt;
      if (name == "float") return ScalarType::kFloat;
      if (name == "bool") return ScalarType::kBool;
      if (name == "null") return ScalarType::kNull;
    }
    return bad_tag(mark, tag, "!!str, !!int, !!float, !!bool and !!null");
  }

  Status bad_tag(const yaml_mark_t& mark, std::string_view tag, const char* known) const {
    std::string shown(tag.substr(0, 80));
    if (starts_with(tag, kTagPrefix)) shown = str_cat("!!", shown.substr(kTagPrefix.size()));
    return error(mark, str_cat("the tag ", shown, " is not accepted here; known are ", known));
  }

  Status check_container_tag(const Event& event, const yaml_char_t* tag, bool implicit,
                             std::string_view expected) const {
    if (implicit || !tag || text_of(tag) == "!") return ok_status();
    if (text_of(tag) == str_cat(kTagPrefix, expected)) return ok_status();
    return bad_tag(event.raw.start_mark, text_of(tag),
                   expected == "seq" ? "!!seq for a list" : "!!map for a map");
  }

  static void add_cost(Cost& cost, const Cost& part) {
    cost.nodes += part.nodes;
    cost.text_bytes += part.text_bytes;
    cost.depth = std::max(cost.depth, part.depth + 1);
  }

  Result<Built> sequence(const Event& event, int depth) {
    const auto& data = event.raw.data.sequence_start;
    AERIE_RETURN_IF_ERROR(check_container_tag(event, data.tag, data.implicit, "seq"));
    Built built;
    built.cost = {1, 0, 1};
    AERIE_RETURN_IF_ERROR(charge(event.raw.start_mark, built.cost));
    List list;
    while (true) {
      Event item;
      AERIE_RETURN_IF_ERROR(next(item));
      if (item.raw.type == YAML_SEQUENCE_END_EVENT) break;
      AERIE_ASSIGN_OR_RETURN(Built child, node(item, depth + 1));
      AERIE_RETURN_IF_ERROR(check_plain(child));
      add_cost(built.cost, child.cost);
      list.push_back(std::move(child.value));
    }
    built.value = Value(std::move(list)).with_origin(origin(event.raw.start_mark));
    AERIE_RETURN_IF_ERROR(keep_anchor(data.anchor, event.raw.start_mark, built));
    return built;
  }

  // The maps named by a merge key, the strongest last.
  Status collect_merge(Built&& source, std::vector<Value>& sources) const {
    if (source.value.is_map()) {
      sources.push_back(std::move(source.value));
      return ok_status();
    }
    if (source.value.is_list()) {
      List& list = source.value.as_list();
      for (auto item = list.rbegin(); item != list.rend(); ++item) {
        if (!item->is_map()) {
          return error(item->origin(),
                       str_cat("a merge key (<<) takes maps, not ", item->kind_phrase()));
        }
        sources.push_back(std::move(*item));
      }
      return ok_status();
    }
    return error(source.value.origin(),
                 str_cat("a merge key (<<) takes a map or a list of maps, not ",
                         source.value.kind_phrase()));
  }

  Result<MapEntry> make_key(const Built& key) const {
    MapEntry entry;
    entry.key_origin = key.value.origin();
    entry.key_kind = key.value.kind();
    switch (key.value.kind()) {
      case Value::Kind::kString:
      case Value::Kind::kMissing:
      case Value::Kind::kInterpolation:
        entry.key = key.value.as_string();
        entry.key_kind = Value::Kind::kString;
        return entry;
      case Value::Kind::kInt:
        entry.key = std::to_string(key.value.as_int());
        return entry;
      case Value::Kind::kBigInt:
        entry.key = key.value.as_string();
        return entry;
      case Value::Kind::kFloat:
        entry.key = python_float_repr(key.value.as_float());
        return entry;
      case Value::Kind::kBool:
        entry.key = key.value.as_bool() ? "true" : "false";
        return entry;
      default:
        return error(key.value.origin(), str_cat("a key must be a string, number or bool, not ",
                                                 key.value.kind_phrase()));
    }
  }

  Result<Built> mapping(const Event& event, int depth) {
    const auto& data = event.raw.data.mapping_start;
    AERIE_RETURN_IF_ERROR(check_container_tag(event, data.tag, data.implicit, "map"));
    Built built;
    built.cost = {1, 0, 1};
    AERIE_RETURN_IF_ERROR(charge(event.raw.start_mark, built.cost));
    Map own;
    std::vector<Value> merged;
    while (true) {
      Event key_event;
      AERIE_RETURN_IF_ERROR(next(key_event));
      if (key_event.raw.type == YAML_MAPPING_END_EVENT) break;
      AERIE_ASSIGN_OR_RETURN(Built key, node(key_event, depth + 1));
      Event value_event;
      AERIE_RETURN_IF_ERROR(next(value_event));
      AERIE_ASSIGN_OR_RETURN(Built child, node(value_event, depth + 1));
      add_cost(built.cost, key.cost);
      add_cost(built.cost, child.cost);
      if (key.plain_type == ScalarType::kMerge) {
        AERIE_RETURN_IF_ERROR(collect_merge(std::move(child), merged));
        continue;
      }
      AERIE_RETURN_IF_ERROR(check_plain(child));
      AERIE_ASSIGN_OR_RETURN(MapEntry entry, make_key(key));
      if (const MapEntry* earlier = own.find_entry(entry.key)) return duplicate(entry, *earlier);
      entry.value = std::move(child.value);
      own.set(std::move(entry));
    }
    if (merged.empty()) {
      built.value = Value(std::move(own));
    } else {
      // As PyYAML orders them: first the merged keys, then the map's own; own values win.
      Map all;
      for (Value& source : merged) {
        for (MapEntry& entry : source.as_map()) all.set(std::move(entry));
      }
      for (MapEntry& entry : own) all.set(std::move(entry));
      built.value = Value(std::move(all));
    }
    built.value.set_origin(origin(event.raw.start_mark));
    AERIE_RETURN_IF_ERROR(keep_anchor(data.anchor, event.raw.start_mark, built));
    return built;
  }

  Status duplicate(const MapEntry& entry, const MapEntry& earlier) const {
    return error(entry.key_origin, str_cat("found duplicate key '", entry.key, "' (first at ",
                                           earlier.key_origin.to_string(), ")"));
  }

  const std::string_view text_;
  yaml_parser_t parser_{};
  std::shared_ptr<const std::string> name_;
  YamlLimits limits_;
  Cost total_;
  std::unordered_map<std::string, Anchor> anchors_;
};

Result<std::string> read_text(const std::string& path, size_t max_bytes) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return errno_error(str_cat("cannot open ", path), errno);
  std::string text;
  while (true) {
    char buffer[1 << 16];
    const ssize_t count = ::read(descriptor, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const Status status = errno_error(str_cat("cannot read ", path), errno);
      ::close(descriptor);
      return status;
    }
    if (count == 0) break;
    text.append(buffer, static_cast<size_t>(count));
    if (text.size() > max_bytes) break;
  }
  ::close(descriptor);
  return text;
}

}  // namespace

Result<Value> parse_yaml(std::string_view text, std::string_view name, const YamlLimits& limits) {
  if (text.size() > limits.max_bytes) {
    return invalid_argument(str_cat("larger than ", limits.max_bytes, " bytes; refused"))
        .with_context(std::string(name));
  }
  Reader reader(text, name, limits);
  return reader.read();
}

Result<Value> load_yaml(const std::string& path, const YamlLimits& limits) {
  AERIE_ASSIGN_OR_RETURN(const std::string text, read_text(path, limits.max_bytes));
  return parse_yaml(text, path, limits);
}

}  // namespace aerie::config
