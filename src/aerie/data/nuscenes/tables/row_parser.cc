#include "aerie/data/nuscenes/tables/row_parser.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <simdjson.h>

#include "aerie/base/strings.h"
#include "aerie/data/nuscenes/tables/json_rows.h"

namespace aerie::nuscenes {

namespace {

using simdjson::dom::element;
using simdjson::dom::element_type;

static_assert(simdjson::SIMDJSON_PADDING <= kRowPadding);

// Longer strings are nobody's name or path.
constexpr size_t kMaxTextBytes = 4096;

std::string shortened(std::string_view text) {
  return text.size() <= 60 ? std::string(text) : str_cat(text.substr(0, 57), "...");
}

Status at_key(std::string_view key, std::string_view what) {
  return data_error(std::string(what)).with_context(str_cat("key '", key, "'"));
}

// Finds the members of an object without judging their values. Strings and brackets are balanced:
// the splitter saw to it.
class MemberScanner {
 public:
  explicit MemberScanner(std::string_view object) : text_(object), at_(1) {}

  // False: no more, or not an object's syntax (then broken() is true).
  bool next(std::string_view& quoted_key, std::string_view& value) {
    skip_blanks();
    if (text_[at_] == '}') return false;
    if (text_[at_] != '"') return fail();
    const size_t key = at_;
    skip_string();
    quoted_key = text_.substr(key, at_ - key);
    skip_blanks();
    if (text_[at_] != ':') return fail();
    ++at_;
    skip_blanks();
    const size_t begin = at_;
    int depth = 0;
    // The closing brace of the object ends the last value.
    while (depth > 0 || (text_[at_] != ',' && text_[at_] != '}')) {
      const char c = text_[at_];
      if (c == '"') {
        skip_string();
        continue;
      }
      if (c == '{' || c == '[') ++depth;
      if (c == '}' || c == ']') --depth;
      if (depth < 0) return fail();
      if (++at_ >= text_.size()) return fail();
    }
    value = trim(text_.substr(begin, at_ - begin));
    if (text_[at_] == ',') ++at_;
    return true;
  }
  bool broken() const { return broken_; }

 private:
  bool fail() {
    broken_ = true;
    return false;
  }
  void skip_blanks() {
    while (at_ + 1 < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
      ++at_;
  }
  void skip_string() {
    for (++at_; at_ + 1 < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] == '\\') ++at_;
    }
    at_ = std::min(at_ + 1, text_.size() - 1);
  }

  std::string_view text_;
  size_t at_;
  bool broken_ = false;
};

}  // namespace

struct RowParser::Impl {
  explicit Impl(std::span<const std::string_view> names) : keys(names), values(names.size()) {}
  Status collect(element document) {
    for (auto& value : values) value.reset();
    simdjson::dom::object object;
    if (document.get_object().get(object) != simdjson::SUCCESS) return data_error("not an object");
    for (const auto& field : object) {
      for (size_t i = 0; i < keys.size(); ++i) {
        if (field.key == keys[i]) values[i] = field.value;
      }
    }
    return ok_status();
  }
  const element* find(int key) const {
    const auto& value = values[static_cast<size_t>(key)];
    return value ? &*value : nullptr;
  }

  std::span<const std::string_view> keys;
  std::vector<std::optional<element>> values;
  simdjson::dom::parser parser;
  simdjson::dom::parser probe;  // for single values, when a row is broken
};

RowParser::RowParser(std::span<const std::string_view> keys)
    : impl_(std::make_unique<Impl>(keys)) {}
RowParser::~RowParser() = default;

Status RowParser::parse(std::string_view object) {
  element document;
  if (impl_->parser.parse(object.data(), object.size(), false).get(document) != simdjson::SUCCESS)
    return parse_slowly(object);
  return impl_->collect(document);
}

// simdjson says that something is wrong but not where. Finds the key; what Python's json writes
// beyond JSON (NaN, integers of any size) is forgiven in values that are not asked for.
Status RowParser::parse_slowly(std::string_view object) {
  MemberScanner members(object);
  std::string reduced = "{";
  std::string_view quoted_key, value;
  while (members.next(quoted_key, value)) {
    std::string_view key;
    element parsed;
    const std::string key_text(quoted_key);
    if (impl_->probe.parse(key_text).get_string().get(key) != simdjson::SUCCESS)
      return data_error(str_cat("a key is not valid JSON: ", shortened(quoted_key)));
    const std::string name(key);
    bool wanted = false;
    for (const std::string_view known : impl_->keys) wanted |= known == name;
    if (!wanted) continue;
    const simdjson::error_code error = impl_->probe.parse(std::string(value)).get(parsed);
    if (error == simdjson::UTF8_ERROR) return at_key(name, "not valid UTF-8");
    if (error != simdjson::SUCCESS)
      return at_key(name, str_cat("not a valid JSON value: ", shortened(value)));
    if (reduced.size() > 1) reduced += ',';
    reduced.append(quoted_key).append(":").append(value);
  }
  if (members.broken()) return data_error("it is not a valid JSON object");
  reduced += '}';
  element document;
  if (impl_->parser.parse(reduced).get(document) != simdjson::SUCCESS)
    return data_error("it is not a valid JSON object");
  return impl_->collect(document);
}

Status RowParser::wrong(int key, std::string_view need) const {
  const element* value = impl_->find(key);
  const std::string_view name = impl_->keys[static_cast<size_t>(key)];
  if (value == nullptr) return at_key(name, str_cat("it is missing; ", need, " is needed"));
  return at_key(name, str_cat(shortened(simdjson::minify(*value)), " is not ", need));
}

Status RowParser::token(int key, Token& out) const {
  const element* value = impl_->find(key);
  std::string_view text;
  if (value == nullptr || value->get_string().get(text) != simdjson::SUCCESS ||
      !parse_token(text, out))
    return wrong(key, "a token of 32 hexadecimal digits");
  return ok_status();
}

Status RowParser::optional_token(int key, Token& out, bool& present) const {
  const element* value = impl_->find(key);
  std::string_view text;
  present = true;
  if (value != nullptr &&
      (value->is_null() || (value->get_string().get(text) == simdjson::SUCCESS && text.empty()))) {
    present = false;
    return ok_status();
  }
  return token(key, out);
}

Status RowParser::text(int key, std::string_view& out) const {
  const element* value = impl_->find(key);
  if (value == nullptr || value->get_string().get(out) != simdjson::SUCCESS)
    return wrong(key, "a string");
  if (out.size() > kMaxTextBytes || out.find('\0') != std::string_view::npos)
    return wrong(key, str_cat("a string of at most ", kMaxTextBytes, " bytes, none of them zero"));
  return ok_status();
}

Status RowParser::optional_text(int key, std::string_view& out) const {
  const element* value = impl_->find(key);
  out = {};
  return value != nullptr && value->is_null() ? ok_status() : text(key, out);
}

Status RowParser::path(int key, std::string_view& out) const {
  AERIE_RETURN_IF_ERROR(text(key, out));
  bool good = !out.empty() && out.front() != '/' && out.back() != '/';
  for (size_t at = 0; good && at <= out.size();) {
    const size_t end = std::min(out.find('/', at), out.size());
    good = out.substr(at, end - at) != "..";
    at = end + 1;
  }
  return good ? ok_status() : wrong(key, "a path below the data root");
}

Status RowParser::boolean(int key, bool& out) const {
  const element* value = impl_->find(key);
  if (value == nullptr || value->get_bool().get(out) != simdjson::SUCCESS)
    return wrong(key, "true or false");
  return ok_status();
}

Status RowParser::integer(int key, int64_t min, int64_t max, int64_t& out) const {
  const element* value = impl_->find(key);
  bool good = false;
  if (value != nullptr && value->type() == element_type::DOUBLE) {
    // 1532402927647951.0, as some tools write it.
    double number = 0.0;
    good = value->get_double().get(number) == simdjson::SUCCESS && std::abs(number) <= 9e15 &&
           number == std::floor(number);
    if (good) out = static_cast<int64_t>(number);
  } else if (value != nullptr) {
    good = value->get_int64().get(out) == simdjson::SUCCESS;
  }
  if (!good || out < min || out > max)
    return wrong(key, str_cat("an integer from ", min, " to ", max));
  return ok_status();
}

Status RowParser::optional_integer(int key, int64_t min, int64_t max, int64_t& out) const {
  const element* value = impl_->find(key);
  out = 0;
  if (value == nullptr || value->is_null()) return ok_status();
  return integer(key, min, max, out);
}

Status RowParser::numbers(int key, std::span<double> out) const {
  const auto need = [&] { return str_cat("a list of ", out.size(), " numbers"); };
  const element* value = impl_->find(key);
  simdjson::dom::array items;
  if (value == nullptr || value->get_array().get(items) != simdjson::SUCCESS)
    return wrong(key, need());
  size_t count = 0;
  for (const element item : items) {
    if (count == out.size() || item.get_double().get(out[count]) != simdjson::SUCCESS)
      return wrong(key, need());
    ++count;
  }
  return count == out.size() ? ok_status() : wrong(key, need());
}

Status RowParser::translation(int key, Vec3& out) const {
  double v[3];
  AERIE_RETURN_IF_ERROR(numbers(key, v));
  for (const double value : v) {
    if (!(std::abs(value) <= kMaxCoordinate))
      return wrong(key, str_cat("a position: coordinates lie within ", kMaxCoordinate, " m"));
  }
  out = {v[0], v[1], v[2]};
  return ok_status();
}

Status RowParser::size(int key, Vec3& out) const {
  double v[3];
  AERIE_RETURN_IF_ERROR(numbers(key, v));
  for (const double value : v) {
    if (!(value >= 0.0 && value <= kMaxSize))
      return wrong(key, str_cat("width, length and height from 0 to ", kMaxSize, " m"));
  }
  out = {v[0], v[1], v[2]};
  return ok_status();
}

Status RowParser::rotation(int key, Quaternion& out) const {
  double v[4];
  AERIE_RETURN_IF_ERROR(numbers(key, v));
  double largest = 0.0;
  for (const double value : v) largest = std::fmax(largest, std::abs(value));
  if (!(largest >= 1e-6 && largest <= 1e6))
    return wrong(key, "a rotation: a quaternion w, x, y, z with a length near 1");
  out = {v[0], v[1], v[2], v[3]};
  return ok_status();
}

Status RowParser::intrinsic(int key, Mat3& out, bool& present) const {
  constexpr std::string_view kNeed = "an invertible matrix of 3 lists of 3 numbers";
  const element* value = impl_->find(key);
  simdjson::dom::array rows;
  if (value == nullptr || value->get_array().get(rows) != simdjson::SUCCESS)
    return wrong(key, kNeed);
  int row = 0;
  for (const element item : rows) {
    simdjson::dom::array columns;
    if (row == 3 || item.get_array().get(columns) != simdjson::SUCCESS) return wrong(key, kNeed);
    int column = 0;
    for (const element entry : columns) {
      double number = 0.0;
      if (column == 3 || entry.get_double().get(number) != simdjson::SUCCESS ||
          !(std::abs(number) <= kMaxCoordinate))
        return wrong(key, kNeed);
      out(row, column++) = number;
    }
    if (column != 3) return wrong(key, kNeed);
    ++row;
  }
  present = row == 3;
  if (row != 0 && (row != 3 || !inverse(out).ok())) return wrong(key, kNeed);
  return ok_status();
}

Status RowParser::tokens(int key, std::vector<Token>& out) const {
  constexpr std::string_view kNeed = "a list of tokens of 32 hexadecimal digits";
  const element* value = impl_->find(key);
  simdjson::dom::array items;
  if (value == nullptr || value->get_array().get(items) != simdjson::SUCCESS)
    return wrong(key, kNeed);
  out.clear();
  for (const element item : items) {
    std::string_view text;
    Token token;
    if (item.get_string().get(text) != simdjson::SUCCESS || !parse_token(text, token))
      return wrong(key, kNeed);
    out.push_back(token);
  }
  return ok_status();
}

}  // namespace aerie::nuscenes
