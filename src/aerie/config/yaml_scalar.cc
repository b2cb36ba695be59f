#include "aerie/config/yaml_scalar.h"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "aerie/base/strings.h"
#include "aerie/config/grammar.h"

namespace aerie::config {

namespace {

// A tiny matcher over the text, one method per piece of the regular expressions in YAML 1.1's type
// repository. Each takes what it can and says whether there was enough.
class Scan {
 public:
  explicit Scan(std::string_view text) : text_(text) {}

  bool end() const { return at_ == text_.size(); }
  char peek() const { return end() ? '\0' : text_[at_]; }
  bool take(char c) {
    if (peek() != c || end()) return false;
    ++at_;
    return true;
  }
  bool take_any(std::string_view set) {
    if (end() || set.find(text_[at_]) == std::string_view::npos) return false;
    ++at_;
    return true;
  }
  bool take_text(std::string_view piece) {
    if (text_.substr(at_, piece.size()) != piece) return false;
    at_ += piece.size();
    return true;
  }
  void sign() { take_any("+-"); }
  size_t digits() {
    return run([](char c) { return is_digit(c); });
  }
  template <typename Accept>
  size_t run(Accept accept) {
    const size_t start = at_;
    while (!end() && accept(text_[at_])) ++at_;
    return at_ - start;
  }
  // [0-9][0-9_]*
  bool digit_then_underscores() {
    if (!is_digit(peek())) return false;
    run([](char c) { return is_digit(c) || c == '_'; });
    return true;
  }
  // [0-9]+(_[0-9]+)*
  bool grouped_digits() {
    if (digits() == 0) return false;
    while (peek() == '_') {
      ++at_;
      if (digits() == 0) {
        --at_;
        return true;
      }
    }
    return true;
  }
  // (:[0-5]?[0-9])+
  bool sixties() {
    size_t groups = 0;
    while (take(':')) {
      const char first = peek();
      if (!is_digit(first)) return false;
      ++at_;
      if (is_digit(peek())) {
        if (first > '5') return false;
        ++at_;
      }
      ++groups;
    }
    return groups > 0;
  }
  size_t position() const { return at_; }
  void rewind(size_t to) { at_ = to; }

 private:
  std::string_view text_;
  size_t at_ = 0;
};

bool one_of(std::string_view text, std::initializer_list<std::string_view> words) {
  for (const std::string_view word : words) {
    if (text == word) return true;
  }
  return false;
}

bool looks_bool(std::string_view text) {
  return one_of(text, {"yes", "Yes", "YES", "no", "No", "NO", "true", "True", "TRUE", "false",
                       "False", "FALSE", "on", "On", "ON", "off", "Off", "OFF"});
}

bool looks_null(std::string_view text) {
  return one_of(text, {"", "~", "null", "Null", "NULL"});
}

bool looks_special_float(std::string_view text) {
  if (one_of(text, {".nan", ".NaN", ".NAN"})) return true;
  if (!text.empty() && (text[0] == '+' || text[0] == '-')) text.remove_prefix(1);
  return one_of(text, {".inf", ".Inf", ".INF"});
}

// [-+]?[0-9]...(:[0-5]?[0-9])+\.[0-9_]*, with either spelling of grouped digits.
bool looks_sixties_float(std::string_view text, bool strict_groups) {
  Scan scan(text);
  scan.sign();
  if (!(strict_groups ? scan.grouped_digits() : scan.digit_then_underscores())) return false;
  if (!scan.sixties() || !scan.take('.')) return false;
  scan.run([](char c) { return is_digit(c) || c == '_'; });
  return scan.end();
}

// ([eE][-+]?[0-9]+)? at the end of the text; PyYAML insists on the sign.
bool exponent_or_end(Scan& scan, bool sign_needed) {
  if (scan.end()) return true;
  if (!scan.take_any("eE")) return false;
  const bool has_sign = scan.take_any("+-");
  return (has_sign || !sign_needed) && scan.digits() > 0 && scan.end();
}

bool looks_pyyaml_float(std::string_view text) {
  if (looks_special_float(text) || looks_sixties_float(text, false)) return true;
  Scan scan(text);
  if (scan.take('.')) return scan.digit_then_underscores() && exponent_or_end(scan, true);
  scan.sign();
  if (!scan.digit_then_underscores() || !scan.take('.')) return false;
  scan.run([](char c) { return is_digit(c) || c == '_'; });
  return exponent_or_end(scan, true);
}

bool looks_omegaconf_float(std::string_view text) {
  if (looks_special_float(text) || looks_sixties_float(text, true)) return true;
  Scan scan(text);
  if (scan.take('.')) return scan.grouped_digits() && exponent_or_end(scan, true);
  scan.sign();
  if (!scan.grouped_digits()) return false;
  if (scan.take('.')) {
    scan.run([](char c) { return is_digit(c) || c == '_'; });
    return exponent_or_end(scan, false);
  }
  return !scan.end() && exponent_or_end(scan, false);
}

bool looks_int(std::string_view text) {
  Scan scan(text);
  scan.sign();
  const size_t start = scan.position();
  if (scan.take('0')) {
    if (scan.end()) return true;
    if (scan.take('b')) {
      return scan.run([](char c) { return c == '0' || c == '1' || c == '_'; }) > 0 && scan.end();
    }
    if (scan.take('x')) {
      return scan.run([](char c) {
        return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F') || c == '_';
      }) > 0 &&
             scan.end();
    }
    return scan.run([](char c) { return (c >= '0' && c <= '7') || c == '_'; }) > 0 && scan.end();
  }
  scan.rewind(start);
  if (!scan.digit_then_underscores()) return false;
  return scan.end() || (scan.sixties() && scan.end());
}

bool looks_timestamp(std::string_view text) {
  Scan scan(text);
  const auto exactly = [&](size_t count) {
    for (size_t i = 0; i < count; ++i) {
      if (!scan.take_any("0123456789")) return false;
    }
    return true;
  };
  const auto one_or_two = [&] { return exactly(1) && (scan.take_any("0123456789"), true); };
  if (!exactly(4) || !scan.take('-')) return false;
  const size_t month = scan.position();
  if (exactly(2) && scan.take('-') && exactly(2) && scan.end()) return true;
  scan.rewind(month);
  if (!one_or_two() || !scan.take('-') || !one_or_two()) return false;
  if (!scan.take_any("Tt") && scan.run([](char c) { return c == ' ' || c == '\t'; }) == 0) {
    return false;
  }
  if (!one_or_two() || !scan.take(':') || !exactly(2) || !scan.take(':') || !exactly(2)) {
    return false;
  }
  if (scan.take('.')) scan.digits();
  scan.run([](char c) { return c == ' ' || c == '\t'; });
  if (scan.take('Z')) return scan.end();
  if (scan.take_any("+-")) {
    if (!one_or_two()) return false;
    if (scan.take(':') && !exactly(2)) return false;
  }
  return scan.end() && !text.empty() && text.back() != ' ' && text.back() != '\t';
}

ScalarType classify(std::string_view text, bool reading) {
  if (looks_null(text)) return ScalarType::kNull;
  switch (text[0]) {
    case '<':
      return text == "<<" ? ScalarType::kMerge : ScalarType::kString;
    case '=':
      return text == "=" ? ScalarType::kDefaultKey : ScalarType::kString;
    case '+':
    case '-':
    case '.':
    case '0':
    case '1':
    case '2':
    case '3':
    case '4':
    case '5':
    case '6':
    case '7':
    case '8':
    case '9':
      break;
    default:
      return looks_bool(text) ? ScalarType::kBool : ScalarType::kString;
  }
  if (looks_pyyaml_float(text)) return ScalarType::kFloat;
  if (looks_int(text)) return ScalarType::kInt;
  if (reading && looks_omegaconf_float(text)) return ScalarType::kFloat;
  if (!reading && looks_timestamp(text)) return ScalarType::kTimestamp;
  return ScalarType::kString;
}

std::string without_underscores(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (c != '_') out += c;
  }
  return out;
}

Status bad_number(const char* kind, std::string_view text) {
  return invalid_argument(str_cat("'", text.substr(0, 60), "' is not a valid ", kind));
}

// Decimal digits that fit in 64 bits.
std::optional<int64_t> parse_small(std::string_view digits) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || value < 0)
    return std::nullopt;
  return value;
}

}  // namespace

ScalarType type_when_read(std::string_view text) {
  return classify(text, true);
}

ScalarType type_when_written(std::string_view text) {
  return classify(text, false);
}

Result<Value> make_bool(std::string_view text) {
  const std::string lower = to_lower(text);
  if (one_of(lower, {"yes", "true", "on"})) return Value(true);
  if (one_of(lower, {"no", "false", "off"})) return Value(false);
  return bad_number("bool", text);
}

Result<Value> make_int(std::string_view text) {
  const std::string clean = without_underscores(text);
  std::string_view rest = clean;
  const bool negative = !rest.empty() && rest[0] == '-';
  if (!rest.empty() && (rest[0] == '-' || rest[0] == '+')) rest.remove_prefix(1);
  if (rest.empty()) return bad_number("int", text);
  const auto finish = [&](std::string_view digits, int base) -> Result<Value> {
    const std::string_view allowed =
        base == 16 ? "0123456789abcdefABCDEF" : std::string_view("0123456789").substr(0, base);
    if (digits.empty() || digits.find_first_not_of(allowed) != std::string_view::npos)
      return bad_number("int", text);
    // Python's own bound on digits; what follows takes time that grows with their square.
    if (digits.size() > 4300)
      return invalid_argument(str_cat("an integer of ", digits.size(), " digits is refused"));
    return Value::whole_number(digits, base, negative);
  };
  if (rest == "0") return Value(int64_t{0});
  if (starts_with(rest, "0b")) return finish(rest.substr(2), 2);
  if (starts_with(rest, "0x")) return finish(rest.substr(2), 16);
  if (rest[0] == '0') return finish(rest, 8);
  if (rest.find(':') == std::string_view::npos) return finish(rest, 10);
  int64_t total = 0;
  for (const std::string& part : split(rest, ':')) {
    if (part.empty() || part.find_first_not_of("0123456789") != std::string::npos)
      return bad_number("int", text);
    const auto digit = parse_small(part);
    if (!digit || __builtin_mul_overflow(total, int64_t{60}, &total) ||
        __builtin_add_overflow(total, *digit, &total)) {
      return invalid_argument(
          str_cat("the integer ", text.substr(0, 60), " does not fit in 64 bits"));
    }
  }
  return Value(negative ? -total : total);
}

Result<Value> make_float(std::string_view text) {
  const std::string clean = to_lower(without_underscores(text));
  std::string_view rest = clean;
  const double sign = !rest.empty() && rest[0] == '-' ? -1.0 : 1.0;
  if (!rest.empty() && (rest[0] == '-' || rest[0] == '+')) rest.remove_prefix(1);
  if (rest == ".inf") return Value(sign * std::numeric_limits<double>::infinity());
  if (rest == ".nan") return Value(std::numeric_limits<double>::quiet_NaN());
  if (rest.find(':') == std::string_view::npos) {
    if (const auto value = python_float(rest)) return Value(sign * *value);
    return bad_number("float", text);
  }
  // Summed from the last part, as PyYAML does, so that the rounding is the same.
  const std::vector<std::string> parts = split(rest, ':');
  double total = 0.0;
  double base = 1.0;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    const auto digit = python_float(*part);
    if (!digit) return bad_number("float", text);
    total += *digit * base;
    base *= 60.0;
  }
  return Value(sign * total);
}

std::optional<double> python_float(std::string_view text) {
  text = trim(text);
  std::string clean;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      clean += text[i];
      continue;
    }
    if (i == 0 || i + 1 == text.size() || !is_digit(text[i - 1]) || !is_digit(text[i + 1])) {
      return std::nullopt;
    }
  }
  std::string_view rest = clean;
  const double sign = !rest.empty() && rest[0] == '-' ? -1.0 : 1.0;
  if (!rest.empty() && (rest[0] == '-' || rest[0] == '+')) rest.remove_prefix(1);
  const std::string lower = to_lower(rest);
  if (lower == "inf" || lower == "infinity") {
    return sign * std::numeric_limits<double>::infinity();
  }
  if (lower == "nan") return std::numeric_limits<double>::quiet_NaN();
  // from_chars also takes "inf" and "nan(...)"; only plain decimals are left to it.
  if (rest.empty() || rest.find_first_not_of("0123456789.eE+-") != std::string_view::npos) {
    return std::nullopt;
  }
  if (rest[0] == '-' || rest[0] == '+') return std::nullopt;
  double value = 0.0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (end != rest.data() + rest.size()) return std::nullopt;
  if (error == std::errc::result_out_of_range) {
    // Python answers inf or 0.0; which of the two the sign of the exponent tells, except for very
    // long digit strings, where strtod decides.
    value = std::strtod(std::string(rest).c_str(), nullptr);
  } else if (error != std::errc()) {
    return std::nullopt;
  }
  return sign * value;
}

bool python_takes_as_number(std::string_view text) {
  // int() takes nothing that float() does not (base 10).
  return python_float(text).has_value();
}

}  // namespace aerie::config
