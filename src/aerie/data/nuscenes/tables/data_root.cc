#include "aerie/data/nuscenes/tables/data_root.h"

#include <cstdlib>
#include <vector>

#include "aerie/base/path.h"
#include "aerie/base/strings.h"
#include "aerie/data/nuscenes/tables/table_reader.h"

namespace aerie::nuscenes {

namespace {

constexpr std::string_view kPrefix = "v1.0-";

// Any of the main tables: one that lacks others is the tables' folder all the same.
bool has_tables(Env& env, const std::string& dir) {
  for (const std::string_view table : {"sample", "sample_data", "scene", "ego_pose"}) {
    if (env.exists(table_path(dir, table))) return true;
  }
  return false;
}

// The last name of the path, "." and links resolved where that is possible.
std::string own_name(const std::string& dir) {
  const std::string name = base_name(dir);
  if (name != "." && name != ".." && !name.empty()) return name;
  char* resolved = ::realpath(dir.c_str(), nullptr);
  const std::string out = resolved != nullptr ? base_name(resolved) : std::string("tables");
  std::free(resolved);
  return out;
}

std::string folder_above(const std::string& dir) {
  const std::string name = base_name(dir);
  if (name == "." || name == ".." || name.empty()) return join_path(dir, "..");
  return parent_path(dir);
}

std::vector<std::string> subfolders(Env& env, const std::string& dir) {
  std::vector<std::string> out;
  const auto entries = env.list_dir(dir);
  if (!entries.ok()) return out;
  for (const DirEntry& entry : *entries) {
    if (!entry.is_dir && !entry.is_symlink) continue;
    if (entry.name == "samples" || entry.name == "sweeps" || entry.name == "maps") continue;
    out.push_back(entry.name);
  }
  return out;
}

// Versions below `root`: its own folders, or those of its folders when it has none itself.
std::vector<DataRoot> versions_below(Env& env, const std::string& root) {
  std::vector<DataRoot> out;
  const std::vector<std::string> names = subfolders(env, root);
  for (const std::string& name : names) {
    const std::string dir = join_path(root, name);
    if (has_tables(env, dir)) out.push_back({root, dir, name});
  }
  if (!out.empty()) return out;
  for (const std::string& name : names) {
    const std::string inner = join_path(root, name);
    for (const std::string& version : subfolders(env, inner)) {
      const std::string dir = join_path(inner, version);
      if (has_tables(env, dir)) out.push_back({inner, dir, version});
    }
  }
  return out;
}

std::string listed(const std::vector<DataRoot>& versions) {
  std::vector<std::string> names;
  for (const DataRoot& version : versions) names.push_back(version.tables_dir);
  return join(names, ", ");
}

Result<DataRoot> only_version(Env& env, const std::string& root) {
  if (has_tables(env, root)) return DataRoot{folder_above(root), root, own_name(root)};
  std::vector<DataRoot> versions = versions_below(env, root);
  if (versions.empty())
    return data_error(str_cat(root, " holds no folder of nuScenes tables"))
        .with_hint("the data root has a folder such as v1.0-mini with sample.json and 12 others");
  if (versions.size() > 1)
    return invalid_argument(
               str_cat(root, " holds several versions of nuScenes: ", listed(versions)))
        .with_hint("name one of them as the version");
  return versions.front();
}

}  // namespace

Result<DataRoot> find_data_root(Env& env, const std::string& given, const std::string& version) {
  if (given.empty()) return invalid_argument("no data root for nuScenes is given");
  std::string root = expand_user(given);
  while (root.size() > 1 && root.back() == '/') root.pop_back();
  const Result<FileStat> stat = env.stat(root);
  if (!stat.ok())
    return data_error(str_cat("the data root cannot be read: ", stat.status().to_string()));
  if (!stat->is_dir) return data_error(str_cat(root, " is not a folder"));
  if (version.empty()) return only_version(env, root);
  if (version.find('/') != std::string::npos || version == "." || version == "..")
    return invalid_argument(str_cat("'", version, "' is not the name of a version's folder"));

  std::vector<std::string> names = {version};
  if (!starts_with(version, kPrefix)) names.push_back(str_cat(kPrefix, version));
  for (const std::string& name : names) {
    const std::string dir = join_path(root, name);
    if (has_tables(env, dir)) return DataRoot{root, dir, name};
    if (own_name(root) == name && has_tables(env, root))
      return DataRoot{folder_above(root), root, name};
    // A root a version.
    std::vector<DataRoot> found;
    for (const std::string& inner : subfolders(env, root)) {
      const std::string below = join_path(join_path(root, inner), name);
      if (has_tables(env, below)) found.push_back({join_path(root, inner), below, name});
    }
    if (found.size() > 1)
      return invalid_argument(
                 str_cat("version ", name, " is there more than once: ", listed(found)))
          .with_hint("name the folder above the right one as the data root");
    if (found.size() == 1) return found.front();
  }
  std::vector<DataRoot> versions = versions_below(env, root);
  if (has_tables(env, root)) versions.insert(versions.begin(), {root, root, own_name(root)});
  return data_error(
             str_cat("version ", version, " is not in ", root,
                     versions.empty() ? ", nor any other" : "; there is: ", listed(versions)))
      .with_hint("a version is a folder with sample.json and 12 other tables");
}

}  // namespace aerie::nuscenes
