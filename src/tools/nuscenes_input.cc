#include "nuscenes_input.h"

#include <cstdio>

#include "aerie/base/path.h"
#include "aerie/base/printable.h"
#include "aerie/base/strings.h"
#include "aerie/config/dialects/hydra/override.h"
#include "aerie/config/resolver.h"
#include "aerie/config/yaml.h"
#include "cli.h"

namespace aerie::tools {

namespace {

using config::Map;
using config::Value;

Status set_option(Value& tree, const char* key, const std::string& value, const char* option) {
  if (value.empty()) return ok_status();
  return tree.set(str_cat("model.train_ds.", key),
                  Value(value).with_origin(config::Origin::command_line(option)));
}

// A file is a whole configuration or one data set's node.
Result<Value> read_tree(const std::string& file) {
  if (file.empty()) return Value(Map());
  auto loaded = config::load_yaml(expand_user(file));
  // A file that is not there is a wrong command line.
  if (!loaded.ok() && loaded.status().code() == StatusCode::kNotFound)
    return invalid_argument(loaded.status().message()).with_context("--config");
  AERIE_ASSIGN_OR_RETURN(Value read, std::move(loaded));
  if (!read.is_map())
    return invalid_argument(str_cat("expected a mapping of keys, got ", read.brief()))
        .with_context(file);
  if (read.child("model") != nullptr || read.child("aerie") != nullptr) return read;
  Value tree{Map()};
  AERIE_RETURN_IF_ERROR(tree.set("model.train_ds", std::move(read)));
  return tree;
}

}  // namespace

void NuscenesInput::add_options(CLI::App& app) {
  app.add_option("--root,--data-root,--data_root", root,
                 "folder with samples, maps and v1.0-...; or the folder of one version");
  app.add_option("--version", version,
                 "v1.0-mini, v1.0-trainval, v1.0-test (default: the only one)");
  app.add_option("--split", split, "train, val, test, mini_train, ..., all, or a name of splits");
  app.add_option("--config", config_file,
                 "YAML: a configuration with model.train_ds and its kin, or one such node");
  app.add_option("--profile", profile, "defaults: bf (256x704), seed (128x352) or lss");
  app.add_option("--cache-dir,--cache_dir", cache_dir, "where the tables' index is kept");
  app.add_option("--pack", pack, "folder that `aerie data pack --kind nuscenes` filled");
  app.add_option("overrides", overrides,
                 "keys of the data set, as gt.compat=exact or image.size=[256,704]");
}

Result<NuscenesParts> read_nuscenes_input(const NuscenesInput& input,
                                          const std::string& default_split) {
  AERIE_ASSIGN_OR_RETURN(Value tree, read_tree(input.config_file));
  if (!input.profile.empty())
    AERIE_RETURN_IF_ERROR(tree.set("model.profile", Value(input.profile)));
  AERIE_RETURN_IF_ERROR(set_option(tree, "root", input.root, "--root"));
  AERIE_RETURN_IF_ERROR(set_option(tree, "version", input.version, "--version"));
  AERIE_RETURN_IF_ERROR(set_option(tree, "cache_dir", input.cache_dir, "--cache-dir"));
  AERIE_RETURN_IF_ERROR(set_option(tree, "pack", input.pack, "--pack"));
  if (!input.root.empty()) tree.erase("model.train_ds.data_root");
  const std::string split =
      input.split.empty() && input.config_file.empty() ? default_split : input.split;
  AERIE_RETURN_IF_ERROR(set_option(tree, "split", split, "--split"));
  for (const std::string& text : input.overrides) {
    AERIE_ASSIGN_OR_RETURN(config::Override change, config::parse_override(text));
    if (!starts_with(change.key, "model.") && !starts_with(change.key, "aerie."))
      change.key = str_cat("model.train_ds.", change.key);
    AERIE_RETURN_IF_ERROR(config::apply_override(tree, change, false));
  }
  AERIE_ASSIGN_OR_RETURN(const Value resolved, config::resolve_all(tree));
  AERIE_ASSIGN_OR_RETURN(const nuscenes::StandaloneConfig read,
                         nuscenes::read_data_nodes(resolved));
  for (const std::string& warning : read.warnings)
    std::fprintf(stderr, "warning: %s\n", printable_lines(warning).c_str());
  NuscenesParts out;
  out.aerie = read.aerie;
  if (resolved.find("model.train_ds") != nullptr)
    out.parts.push_back({"train_ds", read.data.train_ds});
  // A split on the command line asks for that one alone.
  if (input.split.empty()) {
    if (read.data.validation_ds) out.parts.push_back({"validation_ds", *read.data.validation_ds});
    if (read.data.test_ds) out.parts.push_back({"test_ds", *read.data.test_ds});
  }
  for (const NuscenesParts::Part& part : out.parts)
    if (part.config.root.empty())
      return invalid_argument(str_cat("model.", part.name, ".root is not given"))
          .with_hint("--root DIR names the folder that holds samples, maps and v1.0-...");
  if (out.parts.empty())
    return invalid_argument("no data given")
        .with_hint("--root DIR, or --config FILE with model.train_ds");
  return out;
}

}  // namespace aerie::tools
