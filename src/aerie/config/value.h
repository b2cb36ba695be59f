// The configuration tree: what every front end (YAML files, command-line overrides, later .py
// configs) produces and everything behind it (schema, typed structs, printing) consumes. It knows
// nothing of YAML or of Hydra's grammar.
//
// A Value owns its children; copying copies the whole subtree. Not synchronised: a tree that is not
// being changed may be read from any thread. Each node carries an Origin, so that a complaint about
// a value can name the file and line, or the override, that it came from.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "aerie/base/status.h"

namespace aerie::config {

// Nesting no front end exceeds, so that recursion over a tree is bounded.
inline constexpr int kMaxDepth = 100;

struct Origin {
  enum class Kind { kDefault, kFile, kCommandLine };
  Kind kind = Kind::kDefault;
  std::shared_ptr<const std::string> source;  // file name, or the override as typed
  int line = 0;                               // 1-based; 0: unknown
  int column = 0;                             // 1-based; 0: unknown

  static Origin file(std::shared_ptr<const std::string> name, int line, int column);
  static Origin command_line(std::string override_text);
  static Origin by_default() { return {}; }
  // "nest.yaml:12:5", "command line: model.x=1", "default"
  std::string to_string() const;
};

class Value;
struct MapEntry;

// Keys in insertion order. Keys are text; a YAML key that was an int, float or bool keeps that kind
// (for printing), yet is found by its text.
class Map {
 public:
  Map();
  Map(const Map& other);
  Map(Map&& other) noexcept;
  Map& operator=(const Map& other);
  Map& operator=(Map&& other) noexcept;
  ~Map();

  size_t size() const;
  bool empty() const { return size() == 0; }
  const Value* find(std::string_view key) const;
  Value* find(std::string_view key);
  const MapEntry* find_entry(std::string_view key) const;
  bool contains(std::string_view key) const { return find(key) != nullptr; }
  // Replaces the value of an existing key in its place, or appends.
  Value& set(std::string_view key, Value value);
  Value& set(MapEntry entry);
  bool erase(std::string_view key);
  std::vector<std::string> keys() const;

  const MapEntry* begin() const;
  const MapEntry* end() const;
  MapEntry* begin();
  MapEntry* end();

 private:
  struct Index;
  std::vector<MapEntry> entries_;
  // Only maps larger than a few dozen keys get one; rebuilt after an erase.
  std::unique_ptr<Index> index_;
  size_t locate(std::string_view key) const;
};

using List = std::vector<Value>;

class Value {
 public:
  enum class Kind {
    kNull,
    kBool,
    kInt,
    kBigInt,  // whole, beyond 64 bits: only its digits are kept
    kFloat,
    kString,
    kList,
    kMap,
    kMissing,        // `???`: must be given before it is read
    kInterpolation,  // text with ${...} that nobody has resolved yet
  };

  Value() = default;                                          // null
  Value(std::nullptr_t) {}                                    // NOLINT: implicit by design
  Value(bool value) : kind_(Kind::kBool), data_(value) {}     // NOLINT
  Value(int value) : Value(static_cast<int64_t>(value)) {}    // NOLINT
  Value(int64_t value) : kind_(Kind::kInt), data_(value) {}   // NOLINT
  Value(double value) : kind_(Kind::kFloat), data_(value) {}  // NOLINT
  Value(std::string value) : kind_(Kind::kString), data_(std::move(value)) {}  // NOLINT
  Value(std::string_view value) : Value(std::string(value)) {}                 // NOLINT
  Value(const char* value) : Value(std::string(value)) {}                      // NOLINT
  Value(List value) : kind_(Kind::kList), data_(std::move(value)) {}           // NOLINT
  Value(Map value) : kind_(Kind::kMap), data_(std::move(value)) {}             // NOLINT

  // A whole number of any size, from digits of that base (2 to 16) alone: an int, or a big one.
  static Value whole_number(std::string_view digits, int base, bool negative);
  static Value missing();
  static Value interpolation(std::string text);
  // What a string in a file or override means: `???` is missing, text with `${` an interpolation,
  // anything else itself.
  static Value from_text(std::string text);

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::kNull; }
  bool is_bool() const { return kind_ == Kind::kBool; }
  bool is_int() const { return kind_ == Kind::kInt; }
  bool is_float() const { return kind_ == Kind::kFloat; }
  bool is_big_int() const { return kind_ == Kind::kBigInt; }
  bool is_number() const { return is_int() || is_float() || is_big_int(); }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_list() const { return kind_ == Kind::kList; }
  bool is_map() const { return kind_ == Kind::kMap; }
  bool is_container() const { return is_list() || is_map(); }
  bool is_missing() const { return kind_ == Kind::kMissing; }
  bool is_interpolation() const { return kind_ == Kind::kInterpolation; }

  // Asking for another kind than the value has is a programmer mistake (AERIE_CHECK).
  bool as_bool() const;
  int64_t as_int() const;
  double as_float() const;               // also takes an int, big or not
  const std::string& as_string() const;  // of a string, interpolation, missing value or big int
  const List& as_list() const;
  List& as_list();
  const Map& as_map() const;
  Map& as_map();

  // Direct child of a map, or of a list by index; null when there is none.
  const Value* child(std::string_view key) const;
  Value* child(std::string_view key);

  // By path ("a.b.0.c", "a.b[0].c", or its parts, for keys that contain dots). Interpolations on
  // the way are not followed (see resolver.h). A path that does not parse finds nothing.
  const Value* find(std::string_view path) const;
  Value* find(std::string_view path);
  const Value* find(const std::vector<std::string>& parts) const;
  Value* find(const std::vector<std::string>& parts);
  // Replaces or adds; parents that are absent, null or `???` become maps. Fails where a parent is a
  // scalar, or an index is not inside its list.
  Status set(std::string_view path, Value value);
  Status set(const std::vector<std::string>& parts, Value value);
  // False when nothing is there. In a list the later items move up.
  bool erase(std::string_view path);
  bool erase(const std::vector<std::string>& parts);

  const Origin& origin() const { return origin_; }
  Value& set_origin(Origin origin);
  Value with_origin(Origin origin) &&;
  // This node and all below it.
  Value& set_origin_deep(const Origin& origin);

  // Same kinds, values and key order; origins do not count; NaN equals NaN.
  friend bool operator==(const Value& a, const Value& b);

  // 1 for a scalar or empty container.
  int depth() const;
  // "null", "bool", "int", "int beyond 64 bits", "float", "string", "list", "map", "missing value",
  // "interpolation".
  const char* kind_name() const;
  // "an int", "a map", "null".
  std::string kind_phrase() const;
  // One line, for messages: strings quoted, containers like Python's repr, cut after `limit` bytes.
  std::string brief(size_t limit = 80) const;

 private:
  Kind kind_ = Kind::kNull;
  std::variant<std::monostate, bool, int64_t, double, std::string, List, Map> data_;
  Origin origin_;
};

struct MapEntry {
  std::string key;
  Value value;
  Value::Kind key_kind = Value::Kind::kString;  // kInt, kFloat, kBool, kNull: an unquoted YAML key
  Origin key_origin;
};

const char* kind_name(Value::Kind kind);

// "a.b[0].c" -> {"a", "b", "0", "c"}; fails on unbalanced brackets, empty parts and excess depth.
Result<std::vector<std::string>> parse_path(std::string_view path);
// {"a", "b", "0"} -> "a.b.0"
std::string join_path(const std::vector<std::string>& parts);

// Python's equality, which Hydra's `~key=value` uses: 1 == 1.0 == True, map order does not count.
bool python_equal(const Value& a, const Value& b);
// Python's str() and repr() of a value, as interpolation embeds it: True, None, 1e-05, [1, 'a'].
std::string python_str(const Value& value);
std::string python_repr(const Value& value);
// Python's repr of a float: shortest digits that read back, "1.0", "1e-05", "inf".
std::string python_float_repr(double value);

// OmegaConf.merge: maps merge key by key, everything else (lists too) is replaced by `source`; a
// `???` in `source` leaves what is there. Replaced values bring their origin along. A map and a
// list do not merge.
Status merge(Value& destination, const Value& source);

}  // namespace aerie::config
