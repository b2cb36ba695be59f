#include "aerie/archive/text.h"

#include <cstdio>

#include "aerie/base/printable.h"
#include "aerie/base/strings.h"

namespace aerie::archive {
namespace {

std::string escape(std::string_view text, size_t max) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (out.size() >= max) return out + "...";
    const size_t length = utf8_length(text.substr(i));
    const auto byte = static_cast<unsigned char>(text[i]);
    // C1 controls are two bytes in UTF-8: 0xc2 0x80..0x9f.
    const bool control =
        byte < 0x20 || byte == 0x7f ||
        (length == 2 && byte == 0xc2 && static_cast<unsigned char>(text[i + 1]) < 0xa0);
    if (length == 0 || control) {
      char buffer[8];
      std::snprintf(buffer, sizeof buffer, "\\x%02x", byte);
      out += buffer;
      ++i;
    } else {
      out.append(text.substr(i, length));
      i += length;
    }
  }
  return out;
}

}  // namespace

std::string Quoted::operator()(std::string_view text, size_t max) const {
  return str_cat("'", escape(text, max), "'");
}

std::string printable(std::string_view text) {
  return escape(text, SIZE_MAX);
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

const char* bad_member_name(std::string_view name) {
  if (name.empty()) return "is empty";
  if (name.size() > 1024) return "is longer than 1024 bytes";
  if (name.find('\0') != std::string_view::npos) return "contains a NUL byte";
  if (name.find('\\') != std::string_view::npos) return "contains a backslash";
  if (name[0] == '/') return "is absolute";
  for (size_t start = 0; start <= name.size();) {
    const size_t end = std::min(name.find('/', start), name.size());
    if (name.substr(start, end - start) == "..") return "leads out of the archive by '..'";
    start = end + 1;
  }
  return nullptr;
}

std::string human_bytes(uint64_t bytes) {
  if (bytes < 1024) return str_cat(bytes, bytes == 1 ? " byte" : " bytes");
  const char* units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (value /= 1024; value >= 1024 && unit + 1 < std::size(units); ++unit) value /= 1024;
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.1f %s", value, units[unit]);
  return buffer;
}

}  // namespace aerie::archive
