#include "aerie/config/dialects/hydra/checked_config.h"

#include <filesystem>

#include "aerie/base/strings.h"
#include "aerie/config/merge.h"
#include "aerie/config/resolver.h"
#include "aerie/config/schema/devices.h"
#include "aerie/config/yaml.h"
#include "aerie/device/gpu.h"

namespace aerie::config {
namespace {

// A file named outright stands for its folder and its name.
Result<ComposeRequest> make_request(const HydraFamily& family, const ConfigArgs& args) {
  ComposeRequest request;
  request.config_path = args.config_path;
  request.config_name = args.config_name;
  request.config_dir = args.config_dir;
  request.overrides = args.overrides;
  request.known_defaults = family.schema.aerie_defaults();
  if (!args.files.empty()) {
    if (args.files.size() > 1)
      return invalid_argument(
          str_cat("more than one config file: ", args.files[0], ", ", args.files[1]));
    if (!args.config_name.empty())
      return invalid_argument(str_cat("both --config-name ", args.config_name, " and the file ",
                                      args.files[0], " are given"));
    const std::filesystem::path path(args.files[0]);
    request.config_path = path.parent_path().empty() ? "." : path.parent_path().string();
    request.config_name = path.filename().string();
  }
  if (request.config_name.empty())
    return invalid_argument("no config is named")
        .with_hint(str_cat("for example --config-path=config --config-name=",
                           std::string(family.example)));
  return request;
}

ResolveOptions default_resolve_options() {
  ResolveOptions options;
  options.gpu_name = [] {
    const auto& gpus = device::driver().gpus;
    return gpus.empty() ? std::string("cpu") : gpus.front().name;
  };
  return options;
}

}  // namespace

Result<CheckedConfig> load_checked_config(const HydraFamily& family, const ConfigArgs& args,
                                          const LoadOptions& options) {
  const Schema& schema = family.schema;
  CheckedConfig loaded;
  AERIE_ASSIGN_OR_RETURN(const ComposeRequest request, make_request(family, args));
  AERIE_ASSIGN_OR_RETURN(loaded.composed, compose(request));
  fill_defaults(loaded.composed.config, schema.aerie_defaults());
  if (python_equal(loaded.composed.config,
                   schema.aerie_defaults()))  // nothing was written anywhere
    return invalid_argument("the configuration is empty")
        .with_context(loaded.composed.primary_file)
        .with_hint(str_cat(std::string(family.ready_configs),
                           " holds ready ones; `aerie config keys` lists every key"));
  ResolveOptions resolve_options = default_resolve_options();
  resolve_options.reads = &loaded.reads;
  AERIE_ASSIGN_OR_RETURN(loaded.resolved, resolve_all(loaded.composed.config, resolve_options));
  resolve_options.keep_env = true;
  AERIE_ASSIGN_OR_RETURN(loaded.portable, resolve_all(loaded.composed.config, resolve_options));
  ValidateOptions validate_options;
  validate_options.allow_unknown = args.allow_unknown;
  validate_options.for_training = options.for_training;
  validate_options.num_gpus = options.num_gpus ? *options.num_gpus : count_visible_gpus();
  validate_options.interpolation_reads = &loaded.reads;
  loaded.findings = validate(schema, loaded.resolved, validate_options);
  for (const std::string& ignored : loaded.composed.ignored)
    loaded.findings.add({Finding::Severity::kWarning, "", "Hydra's own settings have no effect", "",
                         str_cat("command line: ", ignored)});
  const Status status = loaded.findings.to_status();
  if (!status.ok()) {
    if (options.keep_errors) return loaded;
    return status;
  }
  loaded.idle_keys = keys_without_effect(schema, loaded.resolved, validate_options.num_gpus);
  return loaded;
}

Result<std::string> job_config_text(const HydraFamily& family, const ConfigArgs& args) {
  AERIE_ASSIGN_OR_RETURN(const ComposeRequest request, make_request(family, args));
  AERIE_ASSIGN_OR_RETURN(Composed composed, compose(request));
  fill_defaults(composed.config, family.schema.aerie_defaults());
  if (!args.resolve) return emit_yaml(composed.config);
  AERIE_ASSIGN_OR_RETURN(const Value resolved,
                         resolve_all(composed.config, default_resolve_options()));
  return emit_yaml(resolved);
}

}  // namespace aerie::config
