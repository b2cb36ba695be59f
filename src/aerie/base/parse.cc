#include "aerie/base/parse.h"

#include <charconv>
#include <cmath>
#include <string>

namespace aerie {

namespace {

std::string quoted(std::string_view text) {
  constexpr size_t kShown = 60;
  std::string out = "'";
  for (const char c : text.substr(0, kShown)) out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
  if (text.size() > kShown) out += "...";
  return out + "'";
}

template <typename T>
Result<T> parse_number(std::string_view text, T min, T max, const char* kind) {
  const auto fail = [&](const char* why) {
    return invalid_argument(str_cat(quoted(text), why, kind));
  };
  std::string_view digits = text;
  // from_chars knows no plus sign; "+-1" must not slip through.
  if (starts_with(digits, "+") && !starts_with(digits, "+-")) digits.remove_prefix(1);
  T value{};
  const char* const last = digits.data() + digits.size();
  const auto [end, error] = std::from_chars(digits.data(), last, value);
  if (error == std::errc::invalid_argument || end != last) return fail(" is not ");
  if (error == std::errc::result_out_of_range) return fail(" is out of range for ");
  if constexpr (std::is_floating_point_v<T>) {
    if (!std::isfinite(value)) return fail(" is not a finite number, cannot be ");
  }
  if (value < min || value > max)
    return invalid_argument(str_cat(quoted(text), " is not between ", min, " and ", max));
  return value;
}

}  // namespace

Result<int64_t> parse_int64(std::string_view text, int64_t min, int64_t max) {
  return parse_number<int64_t>(text, min, max, "a whole number");
}

Result<uint64_t> parse_uint64(std::string_view text, uint64_t min, uint64_t max) {
  return parse_number<uint64_t>(text, min, max, "a whole number >= 0");
}

Result<double> parse_double(std::string_view text, double min, double max) {
  return parse_number<double>(text, min, max, "a number");
}

Result<bool> parse_bool(std::string_view text) {
  const std::string lower = to_lower(text);
  for (const char* yes : {"true", "yes", "on", "1"})
    if (lower == yes) return true;
  for (const char* no : {"false", "no", "off", "0"})
    if (lower == no) return false;
  return invalid_argument(str_cat(quoted(text), " is neither true nor false"));
}

Result<uint64_t> parse_bytes(std::string_view text) {
  const size_t split_at = text.find_first_not_of("0123456789.+eE");
  std::string_view number = trim(text.substr(0, split_at));
  std::string unit;
  if (split_at != std::string_view::npos) unit = to_lower(trim(text.substr(split_at)));
  double scale = 1.0;
  if (!unit.empty() && unit != "b") {
    const size_t power = std::string_view("kmgtp").find(unit[0]);
    const std::string_view rest = std::string_view(unit).substr(1);
    if (power == std::string_view::npos ||
        (rest != "" && rest != "i" && rest != "ib" && rest != "b"))
      return invalid_argument(str_cat(quoted(text), " is not a size"))
          .with_hint("such as 512M, 2GiB or 10GB");
    scale = std::pow(rest == "b" ? 1000.0 : 1024.0, static_cast<double>(power + 1));
  }
  auto value = parse_double(number, 0.0);
  if (!value.ok() || *value * scale >= 18446744073709551616.0)
    return invalid_argument(str_cat(quoted(text), " is not a size"))
        .with_hint("such as 512M, 2GiB or 10GB");
  return static_cast<uint64_t>(*value * scale);
}

}  // namespace aerie
