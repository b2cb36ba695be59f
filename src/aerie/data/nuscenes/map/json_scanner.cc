#include "aerie/data/nuscenes/map/json_scanner.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "aerie/base/strings.h"

namespace aerie::nuscenes {

namespace {

constexpr int kMaxDepth = 200;

bool is_number_character(char c) {
  return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

void append_utf8(std::string& out, uint32_t code) {
  if (code < 0x80) {
    out.push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    out.push_back(static_cast<char>(0xC0 | (code >> 6)));
    out.push_back(static_cast<char>(0x80 | (code & 0x3F)));
  } else if (code < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | (code >> 12)));
    out.push_back(static_cast<char>(0x80 | ((code >> 6) & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (code & 0x3F)));
  } else {
    out.push_back(static_cast<char>(0xF0 | (code >> 18)));
    out.push_back(static_cast<char>(0x80 | ((code >> 12) & 0x3F)));
    out.push_back(static_cast<char>(0x80 | ((code >> 6) & 0x3F)));
    out.push_back(static_cast<char>(0x80 | (code & 0x3F)));
  }
}

bool read_hex4(std::string_view text, size_t at, uint32_t& code) {
  if (at + 4 > text.size()) return false;
  const auto [end, error] = std::from_chars(text.data() + at, text.data() + at + 4, code, 16);
  return error == std::errc() && end == text.data() + at + 4;
}

}  // namespace

bool JsonScanner::fail(std::string_view what) {
  if (!failed()) {
    error_ = what;
    error_place_ = place_;
  }
  return false;
}

Status JsonScanner::error() const {
  const auto before = text_.substr(0, std::min(error_place_, text_.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  return data_error(str_cat("not valid JSON: ", error_, " at byte ", error_place_, ", line ", line))
      .with_hint("the file may be cut short or damaged: fetch it again");
}

void JsonScanner::skip_blanks() {
  while (place_ < text_.size() && (text_[place_] == ' ' || text_[place_] == '\n' ||
                                   text_[place_] == '\t' || text_[place_] == '\r'))
    ++place_;
}

JsonScanner::Kind JsonScanner::peek() {
  skip_blanks();
  if (failed() || place_ >= text_.size()) return Kind::kNothing;
  switch (const char c = text_[place_]; c) {
    case '{':
      return Kind::kObject;
    case '[':
      return Kind::kArray;
    case '"':
      return Kind::kString;
    case 't':
    case 'f':
    case 'n':
      return Kind::kLiteral;
    default:
      return (c >= '0' && c <= '9') || c == '-' || c == 'N' || c == 'I' ? Kind::kNumber
                                                                        : Kind::kNothing;
  }
}

bool JsonScanner::take(char expected, std::string_view what) {
  skip_blanks();
  if (failed()) return false;
  if (place_ >= text_.size()) return fail(str_cat("the text ends where ", what, " should be"));
  if (text_[place_] != expected) return fail(str_cat("expected ", what));
  ++place_;
  return true;
}

bool JsonScanner::begin_object() {
  return take('{', "an object");
}

bool JsonScanner::begin_array() {
  return take('[', "a list");
}

bool JsonScanner::next_member(bool& first, std::string_view& key) {
  skip_blanks();
  if (failed()) return false;
  if (place_ < text_.size() && text_[place_] == '}') {
    ++place_;
    return false;
  }
  if (!first && !take(',', "',' or '}'")) return false;
  first = false;
  skip_blanks();
  if (place_ >= text_.size()) return fail("the text ends inside an object");
  if (text_[place_] != '"') return fail("expected a key in quotes");
  return read_string(key) && take(':', "':'");
}

bool JsonScanner::next_element(bool& first) {
  skip_blanks();
  if (failed()) return false;
  if (place_ < text_.size() && text_[place_] == ']') {
    ++place_;
    return false;
  }
  if (!first && !take(',', "',' or ']'")) return false;
  first = false;
  skip_blanks();
  if (place_ >= text_.size()) return fail("the text ends inside a list");
  return true;
}

bool JsonScanner::read_string(std::string_view& out) {
  bool escaped = false;
  return scan_string(out, escaped) && (!escaped || decode(out, out));
}

// What stands between the quotes, as it is.
bool JsonScanner::scan_string(std::string_view& raw, bool& escaped) {
  if (!take('"', "a string")) return false;
  const size_t begin = place_;
  while (true) {
    const size_t quote = text_.find('"', place_);
    const size_t end = std::min(quote, text_.size());
    const std::string_view piece = text_.substr(place_, end - place_);
    if (std::any_of(piece.begin(), piece.end(),
                    [](char c) { return static_cast<unsigned char>(c) < 0x20; }))
      return fail("a control character inside a string");
    place_ = end;
    if (quote == std::string_view::npos) return fail("the text ends inside a string");
    ++place_;
    raw = text_.substr(begin, quote - begin);
    escaped = escaped || piece.find('\\') != std::string_view::npos;
    // A quote after an odd number of backslashes belongs to the string.
    const size_t last = raw.find_last_not_of('\\');
    const size_t slashes = raw.size() - (last == std::string_view::npos ? 0 : last + 1);
    if (slashes % 2 == 0) return true;
  }
}

bool JsonScanner::decode(std::string_view raw, std::string_view& out) {
  std::string text;
  for (size_t i = 0; i < raw.size(); ++i) {
    if (raw[i] != '\\') {
      text.push_back(raw[i]);
      continue;
    }
    constexpr std::string_view kShort = "\"\\/bfnrt", kMeaning = "\"\\/\b\f\n\r\t";
    const char c = ++i < raw.size() ? raw[i] : '\0';
    if (const size_t which = kShort.find(c); c != '\0' && which != std::string_view::npos) {
      text.push_back(kMeaning[which]);
      continue;
    }
    uint32_t code = 0;
    if (c != 'u' || !read_hex4(raw, i + 1, code)) return fail("an unknown escape inside a string");
    i += 4;
    uint32_t low = 0;
    if (code >= 0xD800 && code < 0xDC00 && raw.substr(i + 1, 2) == "\\u" &&
        read_hex4(raw, i + 3, low) && low >= 0xDC00 && low < 0xE000) {
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
      i += 6;
    }
    append_utf8(text, code);
  }
  out = decoded_.emplace_back(std::move(text));
  return true;
}

bool JsonScanner::read_number(double& out) {
  skip_blanks();
  if (failed()) return false;
  for (const auto& [word, value] : {std::pair<std::string_view, double>{"NaN", std::nan("")},
                                    {"Infinity", std::numeric_limits<double>::infinity()},
                                    {"-Infinity", -std::numeric_limits<double>::infinity()}}) {
    if (text_.substr(place_, word.size()) != word) continue;
    place_ += word.size();
    out = value;
    return true;
  }
  size_t end = place_;
  while (end < text_.size() && is_number_character(text_[end])) ++end;
  const char* const first = text_.data() + place_;
  const char* const last = text_.data() + end;
  const size_t digit = place_ + (end > place_ && *first == '-' ? 1 : 0);
  if (digit >= end || text_[digit] < '0' || text_[digit] > '9') return fail("expected a number");
  const auto [stop, error] = std::from_chars(first, last, out);
  if (error == std::errc::result_out_of_range) {
    // Too small is as good as nothing, too large is infinite.
    const bool tiny = std::string_view(first, stop).find("e-") != std::string_view::npos ||
                      std::string_view(first, stop).find("E-") != std::string_view::npos;
    out = tiny ? 0.0 : std::numeric_limits<double>::infinity();
  } else if (error != std::errc() || stop != last) {
    return fail("a number that cannot be read");
  }
  place_ = end;
  return true;
}

bool JsonScanner::skip() {
  return skip_value(0);
}

bool JsonScanner::skip_value(int depth) {
  if (depth > kMaxDepth)
    return fail(str_cat("values are nested deeper than ", kMaxDepth, " levels"));
  std::string_view text;
  bool first = true;
  switch (peek()) {
    case Kind::kObject:
      for (begin_object(); next_member(first, text);)
        if (!skip_value(depth + 1)) return false;
      return !failed();
    case Kind::kArray:
      for (begin_array(); next_element(first);)
        if (!skip_value(depth + 1)) return false;
      return !failed();
    case Kind::kString: {
      bool escaped = false;
      return scan_string(text, escaped);
    }
    case Kind::kNumber: {
      double number;
      return read_number(number);
    }
    case Kind::kLiteral:
      for (const std::string_view word : {"true", "false", "null"}) {
        if (text_.substr(place_, word.size()) != word) continue;
        place_ += word.size();
        return true;
      }
      [[fallthrough]];
    case Kind::kNothing:
      break;
  }
  return fail(place_ >= text_.size() ? "the text ends where a value should be"
                                     : "expected a value");
}

bool JsonScanner::at_end() {
  skip_blanks();
  return failed() || place_ >= text_.size();
}

}  // namespace aerie::nuscenes
