// How Python sees a value: equality, str() and repr(). Interpolation, Hydra's `~key=value` and our
// own messages use it.
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "aerie/base/strings.h"
#include "aerie/config/value.h"

namespace aerie::config {

// ---- Python's view -----------------------------------------------------------------------------

bool python_equal(const Value& a, const Value& b) {
  const auto numeric = [](const Value& v) { return v.is_number() || v.is_bool(); };
  if (numeric(a) && numeric(b) && a.kind() != b.kind()) {
    // Exact ones of different kinds; as doubles they could come out equal.
    if ((a.is_big_int() && !b.is_float()) || (b.is_big_int() && !a.is_float())) return false;
    const auto number = [](const Value& v) {
      return v.is_bool() ? (v.as_bool() ? 1.0 : 0.0) : v.as_float();
    };
    return number(a) == number(b);
  }
  if (a.is_list() && b.is_list()) {
    const List& left = a.as_list();
    const List& right = b.as_list();
    if (left.size() != right.size()) return false;
    for (size_t i = 0; i < left.size(); ++i) {
      if (!python_equal(left[i], right[i])) return false;
    }
    return true;
  }
  if (a.is_map() && b.is_map()) {
    if (a.as_map().size() != b.as_map().size()) return false;
    for (const MapEntry& entry : a.as_map()) {
      const Value* other = b.as_map().find(entry.key);
      if (!other || !python_equal(entry.value, *other)) return false;
    }
    return true;
  }
  return a == b;
}

std::string python_float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto [end, error] =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  std::string out;
  if (text.front() == '-') {
    out = "-";
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  std::string digits(1, text[0]);
  if (e > 1) digits += text.substr(2, e - 2);
  int exponent = 0;
  const size_t exponent_at = e + (text[e + 1] == '+' ? 2 : 1);
  std::from_chars(text.data() + exponent_at, text.data() + text.size(), exponent);
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) out += str_cat(".", digits.substr(1));
    out += exponent < 0 ? "e-" : "e+";
    const int magnitude = std::abs(exponent);
    if (magnitude < 10) out += '0';
    return out + std::to_string(magnitude);
  }
  if (exponent < 0) return str_cat(out, "0.", std::string(size_t(-exponent) - 1, '0'), digits);
  const size_t whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) {
    return str_cat(out, digits, std::string(whole - digits.size(), '0'), ".0");
  }
  return str_cat(out, digits.substr(0, whole), ".", digits.substr(whole));
}

namespace {

void append_quoted(std::string& out, std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  out += quote;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == quote || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      const char* hex = "0123456789abcdef";
      out += "\\x";
      out += hex[byte >> 4];
      out += hex[byte & 15];
    } else {
      out += c;
    }
  }
  out += quote;
}

void append_key(std::string& out, const MapEntry& entry) {
  switch (entry.key_kind) {
    case Value::Kind::kBool:
      out += entry.key == "true" ? "True" : "False";
      break;
    case Value::Kind::kNull:
      out += "None";
      break;
    case Value::Kind::kInt:
    case Value::Kind::kBigInt:
    case Value::Kind::kFloat:
      out += entry.key;
      break;
    default:
      append_quoted(out, entry.key);
  }
}

// Stops growing soon after `limit`, so that a message never walks a whole large tree.
void append_repr(std::string& out, const Value& value, size_t limit) {
  switch (value.kind()) {
    case Value::Kind::kNull:
      out += "None";
      return;
    case Value::Kind::kBool:
      out += value.as_bool() ? "True" : "False";
      return;
    case Value::Kind::kInt:
      out += std::to_string(value.as_int());
      return;
    case Value::Kind::kBigInt:
      out += value.as_string();
      return;
    case Value::Kind::kFloat:
      out += python_float_repr(value.as_float());
      return;
    case Value::Kind::kString:
    case Value::Kind::kMissing:
    case Value::Kind::kInterpolation:
      append_quoted(out, value.as_string());
      return;
    case Value::Kind::kList: {
      out += '[';
      bool first = true;
      for (const Value& item : value.as_list()) {
        if (!first) out += ", ";
        first = false;
        if (out.size() > limit) break;
        append_repr(out, item, limit);
      }
      out += ']';
      return;
    }
    case Value::Kind::kMap: {
      out += '{';
      bool first = true;
      for (const MapEntry& entry : value.as_map()) {
        if (!first) out += ", ";
        first = false;
        if (out.size() > limit) break;
        append_key(out, entry);
        out += ": ";
        append_repr(out, entry.value, limit);
      }
      out += '}';
      return;
    }
  }
}

}  // namespace

std::string python_repr(const Value& value) {
  std::string out;
  append_repr(out, value, static_cast<size_t>(-1));
  return out;
}

std::string python_str(const Value& value) {
  if (value.is_string() || value.is_missing() || value.is_interpolation()) {
    return value.as_string();
  }
  return python_repr(value);
}

std::string Value::brief(size_t limit) const {
  std::string out;
  if (is_null()) {
    out = "null";
  } else if (is_bool()) {
    out = as_bool() ? "true" : "false";
  } else {
    append_repr(out, *this, limit);
  }
  if (out.size() > limit) {
    size_t cut = limit;
    while (cut > 0 && (static_cast<unsigned char>(out[cut]) & 0xC0) == 0x80) --cut;
    out.resize(cut);
    out += "...";
  }
  return out;
}

}  // namespace aerie::config
