// Config files by name along a search path, as Hydra finds them. Internal to config.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/config/value.h"

namespace aerie::config {

// One file, its `defaults:` list taken out.
struct ConfigFile {
  std::string path;                    // file name as opened
  Value config;                        // a map
  Value defaults;                      // a list, or null when the file has none
  std::optional<std::string> package;  // from a `# @package name` header
};

class ConfigRepository {
 public:
  struct Folder {
    std::string path;
    std::string role;  // "main", "--config-dir", "hydra.searchpath"
  };

  explicit ConfigRepository(std::vector<Folder> folders) : folders_(std::move(folders)) {}

  void add_folder(Folder folder) { folders_.push_back(std::move(folder)); }
  const std::vector<Folder>& folders() const { return folders_; }

  // Null when no folder has the config; `name` is "group/option", the extension optional. The
  // result stays valid as long as the repository.
  Result<const ConfigFile*> load(const std::string& name);
  bool group_exists(const std::string& group) const;
  // Names of the configs in a group ("" is the top), sorted, without extension.
  std::vector<std::string> options(const std::string& group) const;
  // "\nConfig search path:\n    configs/nest (main)"
  std::string describe_search_path() const;

 private:
  std::vector<Folder> folders_;
  std::map<std::string, std::optional<ConfigFile>> files_;
};

}  // namespace aerie::config
