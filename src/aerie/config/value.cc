#include "aerie/config/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <unordered_map>

#include "aerie/base/strings.h"

namespace aerie::config {

// ---- Origin ------------------------------------------------------------------------------------

Origin Origin::file(std::shared_ptr<const std::string> name, int line, int column) {
  return {Kind::kFile, std::move(name), line, column};
}

Origin Origin::command_line(std::string override_text) {
  return {Kind::kCommandLine, std::make_shared<const std::string>(std::move(override_text)), 0, 0};
}

std::string Origin::to_string() const {
  const std::string name = source ? *source : std::string();
  switch (kind) {
    case Kind::kDefault:
      return "default";
    case Kind::kCommandLine:
      return str_cat("command line: ", name);
    case Kind::kFile:
      break;
  }
  if (line <= 0) return name;
  if (column <= 0) return str_cat(name, ":", line);
  return str_cat(name, ":", line, ":", column);
}

// ---- Map ---------------------------------------------------------------------------------------

namespace {
constexpr size_t kNowhere = static_cast<size_t>(-1);
constexpr size_t kIndexFrom = 32;
}  // namespace

struct Map::Index {
  std::unordered_map<std::string, size_t> at;
};

Map::Map() = default;
Map::Map(Map&& other) noexcept = default;
Map& Map::operator=(Map&& other) noexcept = default;
Map::~Map() = default;

Map::Map(const Map& other)
    : entries_(other.entries_),
      index_(other.index_ ? std::make_unique<Index>(*other.index_) : nullptr) {}

Map& Map::operator=(const Map& other) {
  if (this != &other) *this = Map(other);
  return *this;
}

size_t Map::size() const {
  return entries_.size();
}

size_t Map::locate(std::string_view key) const {
  if (index_) {
    const auto it = index_->at.find(std::string(key));
    return it == index_->at.end() ? kNowhere : it->second;
  }
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].key == key) return i;
  }
  return kNowhere;
}

const Value* Map::find(std::string_view key) const {
  const size_t at = locate(key);
  return at == kNowhere ? nullptr : &entries_[at].value;
}

Value* Map::find(std::string_view key) {
  const size_t at = locate(key);
  return at == kNowhere ? nullptr : &entries_[at].value;
}

const MapEntry* Map::find_entry(std::string_view key) const {
  const size_t at = locate(key);
  return at == kNowhere ? nullptr : &entries_[at];
}

Value& Map::set(std::string_view key, Value value) {
  return set(MapEntry{std::string(key), std::move(value), Value::Kind::kString, Origin()});
}

Value& Map::set(MapEntry entry) {
  const size_t at = locate(entry.key);
  if (at != kNowhere) return entries_[at].value = std::move(entry.value);
  entries_.push_back(std::move(entry));
  if (index_) {
    index_->at.emplace(entries_.back().key, entries_.size() - 1);
  } else if (entries_.size() > kIndexFrom) {
    index_ = std::make_unique<Index>();
    for (size_t i = 0; i < entries_.size(); ++i) index_->at.emplace(entries_[i].key, i);
  }
  return entries_.back().value;
}

bool Map::erase(std::string_view key) {
  const size_t at = locate(key);
  if (at == kNowhere) return false;
  entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(at));
  if (index_) {
    index_->at.clear();
    for (size_t i = 0; i < entries_.size(); ++i) index_->at.emplace(entries_[i].key, i);
  }
  return true;
}

std::vector<std::string> Map::keys() const {
  std::vector<std::string> out;
  out.reserve(entries_.size());
  for (const MapEntry& entry : entries_) out.push_back(entry.key);
  return out;
}

const MapEntry* Map::begin() const {
  return entries_.data();
}
const MapEntry* Map::end() const {
  return entries_.data() + entries_.size();
}
MapEntry* Map::begin() {
  return entries_.data();
}
MapEntry* Map::end() {
  return entries_.data() + entries_.size();
}

// ---- Value -------------------------------------------------------------------------------------

Value Value::missing() {
  Value value(std::string("???"));
  value.kind_ = Kind::kMissing;
  return value;
}

Value Value::interpolation(std::string text) {
  Value value(std::move(text));
  value.kind_ = Kind::kInterpolation;
  return value;
}

namespace {

// Decimal digits of a number written in another base, without leading zeros.
std::string to_decimal(std::string_view digits, int base) {
  std::vector<uint32_t> groups;  // base 10^9, lowest first
  for (const char c : digits) {
    uint64_t carry = static_cast<uint64_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    for (uint32_t& group : groups) {
      carry += uint64_t{group} * static_cast<uint64_t>(base);
      group = static_cast<uint32_t>(carry % 1'000'000'000);
      carry /= 1'000'000'000;
    }
    if (carry > 0) groups.push_back(static_cast<uint32_t>(carry));
  }
  std::string out = groups.empty() ? "0" : std::to_string(groups.back());
  for (size_t i = groups.size(); i-- > 1;) {
    const std::string part = std::to_string(groups[i - 1]);
    out += std::string(9 - part.size(), '0') + part;
  }
  return out;
}

}  // namespace

Value Value::whole_number(std::string_view digits, int base, bool negative) {
  uint64_t magnitude = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), magnitude, base);
  const uint64_t limit = static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) + negative;
  if (error == std::errc() && magnitude <= limit)
    return Value(static_cast<int64_t>(negative ? 0 - magnitude : magnitude));
  Value value(str_cat(negative ? "-" : "", to_decimal(digits, base)));
  value.kind_ = Kind::kBigInt;
  return value;
}

Value Value::from_text(std::string text) {
  if (text == "???") return missing();
  if (text.find("${") != std::string::npos) return interpolation(std::move(text));
  return Value(std::move(text));
}

bool Value::as_bool() const {
  AERIE_CHECK(is_bool(), "bool asked of a ", kind_name());
  return std::get<bool>(data_);
}

int64_t Value::as_int() const {
  AERIE_CHECK(is_int(), "int asked of a ", kind_name());
  return std::get<int64_t>(data_);
}

double Value::as_float() const {
  AERIE_CHECK(is_number(), "float asked of a ", kind_name());
  if (is_big_int()) return std::strtod(std::get<std::string>(data_).c_str(), nullptr);
  return is_int() ? static_cast<double>(std::get<int64_t>(data_)) : std::get<double>(data_);
}

const std::string& Value::as_string() const {
  AERIE_CHECK(is_string() || is_missing() || is_interpolation() || is_big_int(), "text asked of a ",
              kind_name());
  return std::get<std::string>(data_);
}

const List& Value::as_list() const {
  AERIE_CHECK(is_list(), "list asked of a ", kind_name());
  return std::get<List>(data_);
}

List& Value::as_list() {
  AERIE_CHECK(is_list(), "list asked of a ", kind_name());
  return std::get<List>(data_);
}

const Map& Value::as_map() const {
  AERIE_CHECK(is_map(), "map asked of a ", kind_name());
  return std::get<Map>(data_);
}

Map& Value::as_map() {
  AERIE_CHECK(is_map(), "map asked of a ", kind_name());
  return std::get<Map>(data_);
}

namespace {

// A list index: plain decimal. OmegaConf's paths do not count from the end either.
std::optional<size_t> parse_index(std::string_view text, size_t size) {
  size_t index = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  if (error != std::errc() || end != text.data() + text.size() || index >= size) {
    return std::nullopt;
  }
  return index;
}

}  // namespace

const Value* Value::child(std::string_view key) const {
  if (is_map()) return as_map().find(key);
  if (!is_list()) return nullptr;
  const List& list = as_list();
  const auto index = parse_index(key, list.size());
  return index ? &list[*index] : nullptr;
}

Value* Value::child(std::string_view key) {
  return const_cast<Value*>(static_cast<const Value*>(this)->child(key));
}

const Value* Value::find(const std::vector<std::string>& parts) const {
  const Value* at = this;
  for (const std::string& part : parts) {
    at = at->child(part);
    if (!at) return nullptr;
  }
  return at;
}

Value* Value::find(const std::vector<std::string>& parts) {
  return const_cast<Value*>(static_cast<const Value*>(this)->find(parts));
}

const Value* Value::find(std::string_view path) const {
  const auto parts = parse_path(path);
  return parts.ok() ? find(parts.value()) : nullptr;
}

Value* Value::find(std::string_view path) {
  return const_cast<Value*>(static_cast<const Value*>(this)->find(path));
}

Status Value::set(const std::vector<std::string>& parts, Value value) {
  if (parts.size() + static_cast<size_t>(value.depth()) > kMaxDepth) {
    return invalid_argument(str_cat("a config may be nested ", kMaxDepth, " deep, not more"));
  }
  Value* at = this;
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool last = i + 1 == parts.size();
    if (at->is_null() || at->is_missing()) {
      *at = Value(Map());
      at->set_origin(value.origin());
    }
    if (at->is_list()) {
      const auto index = parse_index(parts[i], at->as_list().size());
      if (!index) {
        return invalid_argument(
            str_cat("'", parts[i], "' is no index into '",
                    join_path({parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(i)}),
                    "', a list of ", at->as_list().size()));
      }
      at = &at->as_list()[*index];
    } else if (at->is_map()) {
      Value* next = at->as_map().find(parts[i]);
      if (!next) {
        next = &at->as_map().set(parts[i], last ? Value() : Value(Map()));
        next->set_origin(value.origin());
      }
      at = next;
    } else {
      return invalid_argument(
          str_cat("'", join_path({parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(i)}),
                  "' is ", at->kind_phrase(), " and cannot have the key '", parts[i], "'"));
    }
  }
  *at = std::move(value);
  return ok_status();
}

Status Value::set(std::string_view path, Value value) {
  AERIE_ASSIGN_OR_RETURN(const std::vector<std::string> parts, parse_path(path));
  return set(parts, std::move(value));
}

bool Value::erase(const std::vector<std::string>& parts) {
  if (parts.empty()) return false;
  Value* parent = find(std::vector<std::string>(parts.begin(), parts.end() - 1));
  if (!parent) return false;
  if (parent->is_map()) return parent->as_map().erase(parts.back());
  if (!parent->is_list()) return false;
  List& list = parent->as_list();
  const auto index = parse_index(parts.back(), list.size());
  if (!index) return false;
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(*index));
  return true;
}

bool Value::erase(std::string_view path) {
  const auto parts = parse_path(path);
  return parts.ok() && erase(parts.value());
}

Value& Value::set_origin(Origin origin) {
  origin_ = std::move(origin);
  return *this;
}

Value Value::with_origin(Origin origin) && {
  origin_ = std::move(origin);
  return std::move(*this);
}

Value& Value::set_origin_deep(const Origin& origin) {
  origin_ = origin;
  if (is_list()) {
    for (Value& item : as_list()) item.set_origin_deep(origin);
  } else if (is_map()) {
    for (MapEntry& entry : as_map()) {
      entry.key_origin = origin;
      entry.value.set_origin_deep(origin);
    }
  }
  return *this;
}

bool operator==(const Value& a, const Value& b) {
  if (a.kind_ != b.kind_) return false;
  switch (a.kind_) {
    case Value::Kind::kNull:
    case Value::Kind::kMissing:
      return true;
    case Value::Kind::kBool:
      return a.as_bool() == b.as_bool();
    case Value::Kind::kInt:
      return a.as_int() == b.as_int();
    case Value::Kind::kFloat:
      return a.as_float() == b.as_float() || (std::isnan(a.as_float()) && std::isnan(b.as_float()));
    case Value::Kind::kBigInt:
    case Value::Kind::kString:
    case Value::Kind::kInterpolation:
      return a.as_string() == b.as_string();
    case Value::Kind::kList:
      return a.as_list() == b.as_list();
    case Value::Kind::kMap:
      break;
  }
  const Map& left = a.as_map();
  const Map& right = b.as_map();
  if (left.size() != right.size()) return false;
  const MapEntry* other = right.begin();
  for (const MapEntry& entry : left) {
    if (entry.key != other->key || entry.key_kind != other->key_kind) return false;
    if (!(entry.value == other->value)) return false;
    ++other;
  }
  return true;
}

int Value::depth() const {
  int below = 0;
  if (is_list()) {
    for (const Value& item : as_list()) below = std::max(below, item.depth());
  } else if (is_map()) {
    for (const MapEntry& entry : as_map()) below = std::max(below, entry.value.depth());
  }
  return below + 1;
}

const char* Value::kind_name() const {
  return config::kind_name(kind_);
}

std::string Value::kind_phrase() const {
  if (is_null()) return "null";
  return str_cat(is_int() || is_big_int() || is_interpolation() ? "an " : "a ", kind_name());
}

const char* kind_name(Value::Kind kind) {
  switch (kind) {
    case Value::Kind::kNull:
      return "null";
    case Value::Kind::kBool:
      return "bool";
    case Value::Kind::kInt:
      return "int";
    case Value::Kind::kBigInt:
      return "int beyond 64 bits";
    case Value::Kind::kFloat:
      return "float";
    case Value::Kind::kString:
      return "string";
    case Value::Kind::kList:
      return "list";
    case Value::Kind::kMap:
      return "map";
    case Value::Kind::kMissing:
      return "missing value";
    case Value::Kind::kInterpolation:
      return "interpolation";
  }
  return "unknown";
}

// ---- Paths -------------------------------------------------------------------------------------

Result<std::vector<std::string>> parse_path(std::string_view path) {
  std::vector<std::string> parts;
  const auto bad = [&](const char* why) {
    return invalid_argument(str_cat("'", path, "' is not a key path: ", why));
  };
  if (path.empty()) return bad("it is empty");
  size_t at = 0;
  while (at < path.size()) {
    if (parts.size() >= static_cast<size_t>(kMaxDepth)) return bad("it has too many parts");
    if (path[at] == '[') {
      const size_t close = path.find(']', at);
      if (close == std::string_view::npos) return bad("a bracket is not closed");
      if (close == at + 1) return bad("empty brackets");
      parts.emplace_back(path.substr(at + 1, close - at - 1));
      at = close + 1;
      if (at == path.size()) break;
      if (path[at] == '[') continue;
      if (path[at] != '.') return bad("after a bracket comes '.' or '['");
      ++at;
      if (at == path.size()) return bad("it ends with a dot");
      continue;
    }
    size_t end = path.find_first_of(".[", at);
    if (end == std::string_view::npos) end = path.size();
    if (end == at) return bad("a part is empty");
    parts.emplace_back(path.substr(at, end - at));
    at = end;
    if (at < path.size() && path[at] == '.') {
      ++at;
      if (at == path.size()) return bad("it ends with a dot");
    }
  }
  return parts;
}

std::string join_path(const std::vector<std::string>& parts) {
  return join(parts, ".");
}

}  // namespace aerie::config
