#include "aerie/base/printable.h"

#include <cstdint>
#include <cstdio>

namespace aerie {

namespace {

bool is_control(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return first < 0x20 || first == 0x7f;
  return character.size() == 2 && first == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0;
}

// The character at the start of `text`, or one byte where it is not UTF-8; *valid says which.
std::string_view first_character(std::string_view text, bool* valid) {
  const size_t length = utf8_length(text);
  *valid = length > 0;
  return text.substr(0, *valid ? length : 1);
}

void append_escaped(std::string& out, const char* format, unsigned code) {
  char escaped[8];
  std::snprintf(escaped, sizeof escaped, format, code);
  out += escaped;
}

std::string escape(std::string_view text, bool keep_lines) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    bool valid = false;
    const std::string_view character = first_character(text, &valid);
    const bool kept = keep_lines && (character == "\n" || character == "\t");
    if (!valid || (is_control(character) && !kept)) {
      for (const char c : character) append_escaped(out, "\\x%02x", static_cast<unsigned char>(c));
    } else {
      out.append(character);
      if (character == "\n" && text.size() > 1) out += "  ";
    }
    text.remove_prefix(character.size());
  }
  return out;
}

}  // namespace

size_t utf8_length(std::string_view text) {
  if (text.empty()) return 0;
  const auto at = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return 1;
  size_t length = 0;
  uint32_t code = 0;
  if ((lead & 0xe0) == 0xc0) {
    length = 2;
    code = lead & 0x1fu;
  } else if ((lead & 0xf0) == 0xe0) {
    length = 3;
    code = lead & 0x0fu;
  } else if ((lead & 0xf8) == 0xf0) {
    length = 4;
    code = lead & 0x07u;
  } else {
    return 0;
  }
  if (text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((at(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (at(i) & 0x3fu);
  }
  constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[length] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return 0;
  return length;
}

std::string printable(std::string_view text) {
  return escape(text, false);
}

std::string printable_lines(std::string_view text) {
  return escape(text, true);
}

std::string printable_json(std::string_view json) {
  std::string out;
  out.reserve(json.size());
  while (!json.empty()) {
    bool valid = false;
    const std::string_view character = first_character(json, &valid);
    // Those below 0x20 are escaped already, or are the line breaks between values.
    const auto last = static_cast<unsigned char>(character.back());
    if (valid && last >= 0x7f && is_control(character))
      append_escaped(out, "\\u%04x", last);
    else
      out.append(character);
    json.remove_prefix(character.size());
  }
  return out;
}

}  // namespace aerie
