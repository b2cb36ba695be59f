#include "aerie/config/dialects/mm/py_numbers.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "aerie/base/parse.h"
#include "aerie/base/strings.h"
#include "aerie/config/grammar.h"

namespace aerie::config::mm {
namespace {

Status no_number(std::string_view text, const char* why) {
  return invalid_argument(str_cat("'", std::string(text.substr(0, 40)), "' is no number: ", why));
}

bool is_digit_of(char c, int base) {
  const char low = c >= 'A' && c <= 'F' ? static_cast<char>(c + 32) : c;
  const int digit = is_digit(low) ? low - '0' : low >= 'a' && low <= 'f' ? low - 'a' + 10 : 99;
  return digit < base;
}

// Underscores only between digits.
Result<std::string> without_underscores(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out.push_back(text[i]);
      continue;
    }
    const bool between = i > 0 && i + 1 < text.size() && text[i - 1] != '_' && text[i + 1] != '_' &&
                         is_digit_of(text[i - 1], 16) && is_digit_of(text[i + 1], 16);
    if (!between) return no_number(text, "an underscore stands between digits");
  }
  return out;
}

Status too_large() {
  return invalid_argument("the result is a whole number beyond 64 bits");
}

Value as_number(const Value& value) {
  return value.is_bool() ? Value(static_cast<int64_t>(value.as_bool())) : value;
}

Result<Value> whole_power(int64_t base, int64_t exponent) {
  int64_t out = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(out, base, &out)) return too_large();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return too_large();
  }
  return Value(out);
}

Result<Value> whole(std::string_view op, int64_t a, int64_t b) {
  int64_t out = 0;
  if (op == "+") {
    if (__builtin_add_overflow(a, b, &out)) return too_large();
  } else if (op == "-") {
    if (__builtin_sub_overflow(a, b, &out)) return too_large();
  } else if (op == "*") {
    if (__builtin_mul_overflow(a, b, &out)) return too_large();
  } else {  // "//" or "%"
    if (b == -1) {
      if (op == "%") return Value(0);
      if (__builtin_sub_overflow(int64_t{0}, a, &out)) return too_large();
      return Value(out);
    }
    const int64_t rest = a % b;
    const bool down = rest != 0 && (rest < 0) != (b < 0);
    out = op == "//" ? a / b - (down ? 1 : 0) : rest + (down ? b : 0);
  }
  return Value(out);
}

Result<Value> fractional(std::string_view op, double a, double b) {
  if (op == "+") return Value(a + b);
  if (op == "-") return Value(a - b);
  if (op == "*") return Value(a * b);
  if (op == "/") return Value(a / b);
  if (op == "**") {
    if (a == 0.0 && b < 0.0) return invalid_argument("zero to a negative power");
    if (a < 0.0 && std::isfinite(b) && b != std::floor(b))
      return invalid_argument("the result is a complex number");
    const double out = std::pow(a, b);
    if (std::isinf(out) && std::isfinite(a) && std::isfinite(b))
      return invalid_argument("the result is too large for a number");
    return Value(out);
  }
  // As CPython's float_divmod.
  double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0.0) {
    if ((b < 0.0) != (rest < 0.0)) {
      rest += b;
      quotient -= 1.0;
    }
  } else {
    rest = std::copysign(0.0, b);
  }
  if (op == "%") return Value(rest);
  if (quotient == 0.0) return Value(std::copysign(0.0, a / b));
  double floor = std::floor(quotient);
  if (quotient - floor > 0.5) floor += 1.0;
  return Value(floor);
}

}  // namespace

Result<Value> parse_number(std::string_view text) {
  // Python's own bound.
  if (text.size() > 4300) return no_number(text, "it has more than 4300 digits");
  AERIE_ASSIGN_OR_RETURN(const std::string digits, without_underscores(text));
  if (digits.size() > 1 && digits[0] == '0' && is_letter(digits[1]) && digits[1] != 'e' &&
      digits[1] != 'E') {
    const char kind = digits[1] | 0x20;
    const int base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
    if (base == 0) return no_number(text, "a prefix is 0x, 0o or 0b");
    if (digits.size() == 2) return no_number(text, "there are no digits behind its prefix");
    // Python has no bound here, and turning them into decimal digits takes the square of them.
    if (digits.size() > 514) return no_number(text, "it has more than 512 digits");
    for (const char c : std::string_view(digits).substr(2))
      if (!is_digit_of(c, base)) return no_number(text, "it has digits of another base");
    return Value::whole_number(std::string_view(digits).substr(2), base, false);
  }
  if (digits.find_first_not_of("0123456789") == std::string::npos) {
    if (digits.size() > 1 && digits[0] == '0' && digits.find_first_not_of('0') != std::string::npos)
      return no_number(text, "whole numbers do not begin with 0; octal ones with 0o");
    return Value::whole_number(digits, 10, false);
  }
  if (digits.back() == 'j' || digits.back() == 'J')
    return no_number(text, "complex numbers are not allowed");
  // "1." and ".5" are Python's, not parse_double's.
  const size_t power = std::min(digits.find_first_of("eE"), digits.size());
  const std::string before = digits.substr(0, power);
  const std::string plain = str_cat(starts_with(before, ".") ? "0" : "", before,
                                    ends_with(before, ".") ? "0" : "", digits.substr(power));
  const size_t exponent = std::min(plain.find_first_of("eE"), plain.size());
  if (plain.find_first_not_of("0123456789.eE+-") != std::string::npos)
    return no_number(text, "it holds other characters than digits");
  const auto value = parse_double(plain);
  if (value.ok()) return Value(*value);
  // Python's 1e400 is infinite.
  if (plain.find('.') == plain.rfind('.') && exponent < plain.size() &&
      plain.find_first_of("123456789") < exponent && plain.find('-') == std::string::npos &&
      is_digit(plain.back()))
    return Value(std::numeric_limits<double>::infinity());
  return no_number(text, "it has no form of a number");
}

Result<Value> arithmetic(std::string_view op, const Value& left, const Value& right) {
  const Value a = as_number(left), b = as_number(right);
  if (a.is_big_int() || b.is_big_int())
    return invalid_argument("there is no arithmetic on whole numbers beyond 64 bits");
  const bool divides = op == "/" || op == "//" || op == "%";
  if (divides && b.as_float() == 0.0) return invalid_argument("division by zero");
  if (a.is_int() && b.is_int() && op != "/") {
    if (op != "**") return whole(op, a.as_int(), b.as_int());
    if (b.as_int() >= 0) return whole_power(a.as_int(), b.as_int());
  }
  return fractional(op, a.as_float(), b.as_float());
}

Result<Value> negative(const Value& value) {
  const Value number = as_number(value);
  if (number.is_float()) return Value(-number.as_float());
  if (number.is_big_int()) {
    const std::string& digits = number.as_string();
    return starts_with(digits, "-")
               ? Value::whole_number(std::string_view(digits).substr(1), 10, false)
               : Value::whole_number(digits, 10, true);
  }
  return whole("-", 0, number.as_int());
}

}  // namespace aerie::config::mm
