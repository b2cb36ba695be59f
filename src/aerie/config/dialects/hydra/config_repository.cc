#include "aerie/config/dialects/hydra/config_repository.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "aerie/base/strings.h"
#include "aerie/config/yaml.h"

namespace aerie::config {

namespace fs = std::filesystem;

namespace {

constexpr size_t kMaxFiles = 1000;
constexpr size_t kHeaderBytes = 512;

bool has_yaml_extension(const std::string& name) {
  return ends_with(name, ".yaml") || ends_with(name, ".yml");
}

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

std::optional<fs::path> find_in(const std::string& folder, const std::string& name) {
  const fs::path base = fs::path(folder) / name;
  if (has_yaml_extension(name) && is_file(base)) return base;
  for (const char* extension : {".yaml", ".yml"}) {
    fs::path candidate = base;
    candidate += extension;
    if (is_file(candidate)) return candidate;
  }
  return std::nullopt;
}

// The `# @key value` lines before anything else; only `package` has a meaning.
Result<std::optional<std::string>> package_header(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::string head(kHeaderBytes, '\0');
  stream.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<size_t>(std::max<std::streamsize>(stream.gcount(), 0)));
  std::optional<std::string> package;
  int line_number = 0;
  for (const std::string& raw : split(head, '\n')) {
    ++line_number;
    std::string_view line = trim(raw);
    if (line.empty()) continue;
    if (line.front() != '#') break;
    line = trim(line.substr(std::min(line.find_first_not_of('#'), line.size())));
    if (line.empty() || line.front() != '@') break;
    std::vector<std::string> words;
    for (std::string& word : split(line, ' ')) {
      if (!word.empty()) words.push_back(std::move(word));
    }
    if (words.size() != 2) {
      return invalid_argument(str_cat("a header line is '# @package name', not '", trim(raw), "'"))
          .with_context(str_cat(path, ":", line_number));
    }
    if (words[0] == "@package") package = words[1];
  }
  return package;
}

}  // namespace

Result<const ConfigFile*> ConfigRepository::load(const std::string& name) {
  if (const auto it = files_.find(name); it != files_.end()) {
    return it->second ? &*it->second : nullptr;
  }
  if (files_.size() >= kMaxFiles) {
    return invalid_argument(str_cat("a config made of more than ", kMaxFiles, " files; refused"));
  }
  std::optional<fs::path> path;
  for (const Folder& folder : folders_) {
    path = find_in(folder.path, name);
    if (path) break;
  }
  if (!path) {
    files_.emplace(name, std::nullopt);
    return static_cast<const ConfigFile*>(nullptr);
  }
  ConfigFile file;
  file.path = path->lexically_normal().string();
  auto loaded = load_yaml(file.path);
  if (!loaded.ok()) {
    // Whatever the reason, the command line named a config that cannot be used.
    if (loaded.status().code() == StatusCode::kInvalidArgument) return loaded.status();
    return invalid_argument(loaded.status().message());
  }
  file.config = std::move(loaded).value();
  if (file.config.is_null()) {
    const Origin origin = file.config.origin();
    file.config = Value(Map()).with_origin(origin);
  }
  if (!file.config.is_map()) {
    return invalid_argument(str_cat("a config is a map of keys to values; this file holds ",
                                    file.config.kind_phrase()))
        .with_context(file.path);
  }
  if (const Value* defaults = file.config.as_map().find("defaults")) {
    if (!defaults->is_list()) {
      return invalid_argument(str_cat("defaults must be a list, not ", defaults->kind_phrase()))
          .with_context(defaults->origin().to_string());
    }
    file.defaults = *defaults;
    file.config.as_map().erase("defaults");
  }
  AERIE_ASSIGN_OR_RETURN(file.package, package_header(file.path));
  return &*files_.emplace(name, std::move(file)).first->second;
}

bool ConfigRepository::group_exists(const std::string& group) const {
  for (const Folder& folder : folders_) {
    std::error_code error;
    if (fs::is_directory(fs::path(folder.path) / group, error)) return true;
  }
  return false;
}

std::vector<std::string> ConfigRepository::options(const std::string& group) const {
  std::set<std::string> names;
  for (const Folder& folder : folders_) {
    std::error_code error;
    fs::directory_iterator files(fs::path(folder.path) / group, error);
    for (; !error && files != fs::directory_iterator(); files.increment(error)) {
      const std::string name = files->path().filename().string();
      if (has_yaml_extension(name)) names.insert(files->path().stem().string());
      if (names.size() > kMaxFiles) break;
    }
  }
  return {names.begin(), names.end()};
}

std::string ConfigRepository::describe_search_path() const {
  std::string out = "\nConfig search path:";
  for (const Folder& folder : folders_) {
    out += str_cat("\n    ", folder.path, " (", folder.role, ")");
  }
  return out;
}

}  // namespace aerie::config
