#include "aerie/config/grammar.h"

#include <charconv>
#include <cstdlib>
#include <limits>

#include "aerie/base/strings.h"

namespace aerie::config {

bool is_unquoted_char(char c) {
  return is_letter(c) || is_digit(c) ||
         std::string_view("_/-\\+.$%*@?|").find(c) != std::string_view::npos;
}

bool is_escapable(char c) {
  return std::string_view("\\()[]{}:=, \t").find(c) != std::string_view::npos;
}

bool is_identifier(std::string_view text) {
  if (text.empty() || !(is_letter(text[0]) || text[0] == '_')) return false;
  for (const char c : text) {
    if (!is_letter(c) && !is_digit(c) && c != '_' && c != '-') return false;
  }
  return true;
}

namespace {

// DIGIT ('_'? DIGIT)*; gives the position after it, or `at` when there is none.
size_t digit_groups(std::string_view text, size_t at) {
  if (at >= text.size() || !is_digit(text[at])) return at;
  ++at;
  while (at < text.size()) {
    if (is_digit(text[at])) {
      ++at;
    } else if (text[at] == '_' && at + 1 < text.size() && is_digit(text[at + 1])) {
      at += 2;
    } else {
      break;
    }
  }
  return at;
}

// '0' | [1-9] ('_'? DIGIT)*
size_t unsigned_int(std::string_view text, size_t at) {
  if (at < text.size() && text[at] == '0') return at + 1;
  return digit_groups(text, at);
}

bool is_float_text(std::string_view text) {
  const size_t whole = unsigned_int(text, 0);
  size_t at = whole;
  bool point = false;
  if (at < text.size() && text[at] == '.') {
    point = true;
    const size_t fraction = digit_groups(text, at + 1);
    if (whole == 0 && fraction == at + 1) return false;
    at = fraction;
  }
  if (whole == 0 && !point) return false;
  if (at == text.size()) return point;
  if (text[at] != 'e' && text[at] != 'E') return false;
  ++at;
  if (at < text.size() && (text[at] == '+' || text[at] == '-')) ++at;
  const size_t end = digit_groups(text, at);
  return end > at && end == text.size();
}

}  // namespace

Result<std::optional<Value>> parse_constant(std::string_view text) {
  using Answer = std::optional<Value>;
  if (text.size() > 400 || text.empty()) return Answer();
  // The grammar's longest constants without digits are "false" and "-inf".
  if (text.size() <= 5) {
    const std::string lower = to_lower(text);
    if (lower == "null") return Answer(Value());
    if (lower == "true") return Answer(Value(true));
    if (lower == "false") return Answer(Value(false));
  }
  std::string_view rest = text;
  const bool negative = rest[0] == '-';
  if (rest[0] == '-' || rest[0] == '+') rest.remove_prefix(1);
  if (rest.size() == 3) {
    const std::string lower = to_lower(rest);
    const double infinity = std::numeric_limits<double>::infinity();
    if (lower == "inf") return Answer(Value(negative ? -infinity : infinity));
    if (lower == "nan") return Answer(Value(std::numeric_limits<double>::quiet_NaN()));
  }
  if (rest.empty() || !(is_digit(rest[0]) || rest[0] == '.')) return Answer();
  const bool is_int = unsigned_int(rest, 0) == rest.size();
  if (!is_int && !is_float_text(rest)) return Answer();
  std::string digits;
  for (const char c : rest) {
    if (c != '_') digits += c;
  }
  if (!is_int) {
    const double value = std::strtod(digits.c_str(), nullptr);
    return Answer(Value(negative ? -value : value));
  }
  return Answer(Value::whole_number(digits, 10, negative));
}

Result<MapEntry> make_map_key(std::string_view text, bool escaped) {
  MapEntry entry;
  entry.key = std::string(text);
  if (escaped) return entry;
  AERIE_ASSIGN_OR_RETURN(const auto constant, parse_constant(text));
  if (!constant) return entry;
  entry.key_kind = constant->kind();
  switch (constant->kind()) {
    case Value::Kind::kInt:
      entry.key = std::to_string(constant->as_int());
      return entry;
    case Value::Kind::kBigInt:
      entry.key = constant->as_string();
      return entry;
    case Value::Kind::kFloat:
      entry.key = python_float_repr(constant->as_float());
      return entry;
    case Value::Kind::kBool:
      entry.key = constant->as_bool() ? "true" : "false";
      return entry;
    default:
      return invalid_argument("null cannot be a key");
  }
}

}  // namespace aerie::config
