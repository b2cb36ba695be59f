#include "aerie/base/path.h"

#include <cstdlib>
#include <pwd.h>
#include <unistd.h>

namespace aerie {

namespace {
std::string_view without_trailing_slashes(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  return path;
}
}  // namespace

std::string join_path(std::string_view directory, std::string_view name) {
  if (directory.empty() || is_absolute_path(name)) return std::string(name);
  if (name.empty()) return std::string(directory);
  std::string out(directory);
  if (out.back() != '/') out += '/';
  return out.append(name);
}

std::string parent_path(std::string_view path) {
  path = without_trailing_slashes(path);
  const size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return ".";
  return std::string(without_trailing_slashes(path.substr(0, slash == 0 ? 1 : slash)));
}

std::string base_name(std::string_view path) {
  path = without_trailing_slashes(path);
  const size_t slash = path.rfind('/');
  if (slash == std::string_view::npos || path.size() == 1) return std::string(path);
  return std::string(path.substr(slash + 1));
}

std::string file_stem(std::string_view path) {
  std::string name = base_name(path);
  name.resize(name.size() - file_extension(name).size());
  return name;
}

std::string file_extension(std::string_view path) {
  const std::string name = base_name(path);
  const size_t dot = name.rfind('.');
  if (dot == std::string::npos || dot == 0 || name == "..") return "";
  return name.substr(dot);
}

bool is_absolute_path(std::string_view path) {
  return !path.empty() && path.front() == '/';
}

std::string expand_user(std::string_view path) {
  if (path.empty() || path[0] != '~' || (path.size() > 1 && path[1] != '/'))
    return std::string(path);
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home != '\0') return std::string(home).append(path.substr(1));
  // As Python does: services and cron jobs may run without it.
  struct passwd entry {};
  struct passwd* found = nullptr;
  char buffer[4096];
  if (::getpwuid_r(::getuid(), &entry, buffer, sizeof buffer, &found) != 0 || found == nullptr ||
      entry.pw_dir == nullptr || *entry.pw_dir == '\0')
    return std::string(path);
  return std::string(entry.pw_dir).append(path.substr(1));
}

}  // namespace aerie
