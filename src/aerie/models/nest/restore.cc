#include "aerie/models/nest/restore.h"

#include <utility>

#include "aerie/archive/any_archive.h"
#include "aerie/archive/native_checkpoint.h"
#include "aerie/archive/omegaconf.h"
#include "aerie/base/path.h"
#include "aerie/base/strings.h"
#include "aerie/config/resolver.h"
#include "aerie/config/yaml.h"
#include "aerie/models/nest/config/run_config_loader.h"

namespace aerie::ckpt {
namespace {

constexpr uint64_t kMaxText = 64u << 20;

// A map that has what every model node has.
bool looks_like_model_node(const config::Value& value) {
  return value.is_map() && value.child("encoder") != nullptr &&
         value.child("preprocessor") != nullptr;
}

Result<config::Value> model_node_of_file(Env& env, const std::string& path) {
  AERIE_ASSIGN_OR_RETURN(const std::string text, env.read_file(path, kMaxText));
  AERIE_ASSIGN_OR_RETURN(const config::Value root, config::parse_yaml(text, path));
  // The paths of data sets often come from variables of the machine that trained.
  config::ResolveOptions lenient;
  lenient.unset_env_is_missing = true;
  if (root.is_map() && root.child("defaults") != nullptr) {
    config::ConfigArgs args;
    args.config_path = parent_path(path);
    args.config_name = base_name(path);
    AERIE_ASSIGN_OR_RETURN(const config::LoadedConfig loaded, config::load_run_config(args));
    if (const config::Value* node = loaded.resolved.child("model")) return *node;
  } else if (root.is_map() && root.child("model") != nullptr) {
    return config::resolve_at(root, "model", lenient);
  } else if (looks_like_model_node(root)) {
    return config::resolve_all(root, lenient);
  }
  return invalid_argument("no `model` node")
      .with_context(path)
      .with_hint("give the config of a run, or the model_config.yaml of a .nemo");
}

// config.yaml of the run that a checkpoint belongs to; empty when there is none. Checkpoints lie in
// <run>/checkpoints/<stem> unless the run was told otherwise.
std::string config_near(Env& env, const std::string& checkpoint) {
  const std::string dir = ends_with(checkpoint, "/") ? checkpoint + "." : checkpoint;
  for (const char* up : {"../..", "..", "."}) {
    const std::string candidate = join_path(join_path(dir, up), "config.yaml");
    if (env.exists(candidate)) return candidate;
  }
  return "";
}

Status no_config(const std::string& path) {
  return invalid_argument("the file holds weights but no description of the model")
      .with_context(path)
      .with_hint("add --config with the YAML of the run");
}

// From a file that holds weights.
Result<ModelFiles> model_of_file(Env& env, const std::string& path) {
  AERIE_ASSIGN_OR_RETURN(const archive::AnyArchive file, archive::open_any(env, path));
  ModelFiles out;
  out.weights = path;
  if (file.nemo) {
    out.config = str_cat(path, ": model_config.yaml");
    auto node = config::parse_yaml(file.nemo->config_yaml, out.config);
    // Not a mistake of the user's: the archive is damaged.
    if (!node.ok()) return data_error(node.status().to_string());
    out.model_node = std::move(node).value();
    return out;
  }
  if (file.lightning && file.lightning->hyper_parameters != archive::kNoNode) {
    out.config = str_cat(path, ": hyper_parameters");
    auto node = archive::model_config_of(*file.lightning);
    if (!node.ok())
      return node.status().with_context(path).with_hint("add --config with the YAML of the run");
    AERIE_ASSIGN_OR_RETURN(out.model_node, config::resolve_all(*node));
    return out;
  }
  // The weights of a native checkpoint, named themselves.
  if (base_name(path) == archive::kNativeWeights &&
      env.exists(join_path(parent_path(path), archive::kNativeManifest))) {
    out.config = config_near(env, parent_path(path));
    if (!out.config.empty()) {
      AERIE_ASSIGN_OR_RETURN(out.model_node, model_node_of_file(env, out.config));
      return out;
    }
  }
  return no_config(path);
}

Result<FileStat> stat_model(Env& env, const std::string& path) {
  const auto stat = env.stat(path);
  if (stat.ok() || stat.status().code() != StatusCode::kNotFound) return stat;
  return invalid_argument(str_cat("there is no '", path, "'"))
      .with_hint("models of a hub are not downloaded: give a .nemo file, a checkpoint or a run");
}

Status check_target(const config::Value& node, const std::string& path) {
  const config::Value* target = node.child("target");
  if (target == nullptr || !target->is_string() ||
      target->as_string().find("MaskedTokenPredModel") != std::string::npos)
    return ok_status();
  return unsupported(str_cat("the file holds a ", target->as_string(), ", not a NEST model"))
      .with_context(path);
}

}  // namespace

Result<std::string> find_weights(Env& env, const std::string& given) {
  const std::string path = expand_user(given);
  AERIE_ASSIGN_OR_RETURN(const FileStat stat, stat_model(env, path));
  if (!stat.is_dir) return path;
  AERIE_ASSIGN_OR_RETURN(const std::string dir, archive::find_native_checkpoint(env, path));
  return join_path(dir, archive::kNativeWeights);
}

Result<ModelFiles> find_model(Env& env, const std::string& given, const std::string& config) {
  const std::string path = expand_user(given);
  AERIE_ASSIGN_OR_RETURN(const FileStat stat, stat_model(env, path));
  if (!config.empty()) {
    ModelFiles out;
    out.config = expand_user(config);
    if (!env.exists(out.config)) return invalid_argument(str_cat("there is no '", out.config, "'"));
    AERIE_ASSIGN_OR_RETURN(out.model_node, model_node_of_file(env, out.config));
    out.weights = path;
    if (stat.is_dir) {
      AERIE_ASSIGN_OR_RETURN(const std::string dir, archive::find_native_checkpoint(env, path));
      out.weights = join_path(dir, archive::kNativeWeights);
    }
    return out;
  }
  if (!stat.is_dir) return model_of_file(env, path);

  AERIE_ASSIGN_OR_RETURN(const std::string dir, archive::find_native_checkpoint(env, path));
  ModelFiles out;
  out.weights = join_path(dir, archive::kNativeWeights);
  out.config = config_near(env, dir);
  if (out.config.empty()) return no_config(dir);
  AERIE_ASSIGN_OR_RETURN(out.model_node, model_node_of_file(env, out.config));
  return out;
}

Result<RestoredModel> restore_nest(Env& env, const std::string& path,
                                   const RestoreOptions& options) {
  AERIE_ASSIGN_OR_RETURN(ModelFiles files, find_model(env, path, options.config));
  AERIE_RETURN_IF_ERROR(check_target(files.model_node, files.config));
  auto config = model_config_of(files.model_node);
  if (!config.ok()) return config.status().with_context(files.config);
  AERIE_ASSIGN_OR_RETURN(const archive::AnyArchive file, archive::open_any(env, files.weights));
  auto model = nest::NestModel::create(
      *config, options.aerie, options.device, [&](const nn::ParameterRegistry& registry) {
        return check_state_dict(file.tensors, registry, LoadOptions());
      });
  if (!model.ok()) return model.status().with_context(files.config);
  AERIE_RETURN_IF_ERROR(
      load_state_dict(file.tensors, (*model)->parameters(), LoadOptions()).status());
  if (options.averaged) {
    const std::string averages = join_path(parent_path(files.weights), "ema.safetensors");
    if (base_name(files.weights) != archive::kNativeWeights || !env.exists(averages))
      return invalid_argument("there are no averaged weights beside these")
          .with_context(files.weights)
          .with_hint(
              "native checkpoints of runs with exp_manager.ema.enable=true have them; NeMo's lie "
              "in "
              "files of their own, x-EMA.ckpt");
    AERIE_ASSIGN_OR_RETURN(const archive::AnyArchive ema, archive::open_any(env, averages));
    // The averages cover the parameters; buffers stay those of the model.
    LoadOptions parameters;
    parameters.strict = false;
    AERIE_RETURN_IF_ERROR(load_state_dict(ema.tensors, (*model)->parameters(), parameters)
                              .status()
                              .with_context(averages));
  }
  RestoredModel out;
  out.model = std::move(model).value();
  out.model_node = std::move(files.model_node);
  return out;
}

}  // namespace aerie::ckpt
