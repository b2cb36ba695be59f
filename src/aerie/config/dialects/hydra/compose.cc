#include "aerie/config/dialects/hydra/compose.h"

#include <filesystem>

#include "aerie/base/strings.h"
#include "aerie/config/dialects/hydra/config_repository.h"
#include "aerie/config/dialects/hydra/defaults_list.h"
#include "aerie/config/merge.h"

namespace aerie::config {

namespace {

bool is_hydra_key(const std::string& key) {
  return key == "hydra" || starts_with(key, "hydra.") || starts_with(key, "hydra/");
}

Status check_folder(const std::string& path, const char* option) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return ok_status();
  return invalid_argument(
      str_cat("Primary config directory not found. Check that the config "
              "directory '",
              path, "' (", option, ") exists and is readable"));
}

// Folders named by `hydra.searchpath` of the primary config, relative to the working directory.
void add_search_path(const ConfigFile& primary, ConfigRepository& repository) {
  const Value* list = primary.config.find("hydra.searchpath");
  if (!list || !list->is_list()) return;
  for (const Value& entry : list->as_list()) {
    if (!entry.is_string()) continue;
    std::string path = entry.as_string();
    if (starts_with(path, "file://")) path = path.substr(7);
    if (path.find("://") == std::string::npos) repository.add_folder({path, "hydra.searchpath"});
  }
}

// A file's content, moved below its package.
Result<Value> place(const ComposedPart& part) {
  if (part.package.empty()) return part.file->config;
  Value out = Value(Map()).with_origin(part.file->config.origin());
  const Status status = out.set(part.package, part.file->config);
  if (!status.ok()) {
    return status.with_context(str_cat(part.file->path, ": package '", part.package, "'"));
  }
  return out;
}

}  // namespace

Result<Composed> compose(const ComposeRequest& request) {
  if (request.config_name.empty()) {
    return invalid_argument("no config is named").with_hint("give --config-name NAME");
  }
  const std::string main = request.config_path.empty() ? "." : request.config_path;
  AERIE_RETURN_IF_ERROR(check_folder(main, "--config-path"));
  std::vector<ConfigRepository::Folder> folders = {{main, "main, --config-path"}};
  if (!request.config_dir.empty()) {
    AERIE_RETURN_IF_ERROR(check_folder(request.config_dir, "--config-dir"));
    folders.push_back({request.config_dir, "--config-dir"});
  }
  ConfigRepository repository(std::move(folders));

  Composed out;
  for (const std::string& text : request.overrides) {
    AERIE_ASSIGN_OR_RETURN(Override override, parse_override(text));
    if (is_hydra_key(override.key)) {
      out.ignored.push_back(text);
    } else {
      out.overrides.push_back(std::move(override));
    }
  }

  AERIE_ASSIGN_OR_RETURN(const ConfigFile* primary, repository.load(request.config_name));
  if (primary) {
    out.primary_file = primary->path;
    add_search_path(*primary, repository);
  }
  AERIE_ASSIGN_OR_RETURN(const DefaultsList list,
                         make_defaults_list(repository, request.config_name, out.overrides));
  out.choices = list.choices;
  out.config = Value(Map());
  for (const ComposedPart& part : list.parts) {
    AERIE_ASSIGN_OR_RETURN(const Value placed, place(part));
    const Status merged = merge(out.config, placed);
    if (!merged.ok()) return merged.with_context(part.file->path);
    out.files.push_back(part.file->path);
  }
  out.config.as_map().erase("hydra");
  if (primary) out.config.set_origin(primary->config.origin());
  if (request.known_defaults) fill_defaults(out.config, *request.known_defaults);

  for (const Override& override : list.value_overrides) {
    const Status status = apply_override(out.config, override, request.struct_mode);
    if (!status.ok()) {
      return status.with_context(str_cat(out.primary_file, ": command line '", override.text, "'"));
    }
  }
  return out;
}

}  // namespace aerie::config
