#include "aerie/archive/text.h"

#include <algorithm>
#include <cstdio>

#include "aerie/base/printable.h"
#include "aerie/base/strings.h"

namespace aerie::archive {

std::string Quoted::operator()(std::string_view text, size_t max) const {
  std::string out = "'";
  while (!text.empty()) {
    if (out.size() > max) return out + "...'";
    const size_t length = std::max<size_t>(1, utf8_length(text));
    out += printable(text.substr(0, length));
    text.remove_prefix(length);
  }
  return out + "'";
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
