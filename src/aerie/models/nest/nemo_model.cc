#include "aerie/models/nest/nemo_model.h"

#include "aerie/archive/any_archive.h"
#include "aerie/archive/nemo.h"
#include "aerie/archive/nemo_config.h"
#include "aerie/base/strings.h"
#include "aerie/config/yaml.h"
#include "aerie/models/nest/config/run_config.h"

namespace aerie::ckpt {

Result<std::string> nemo_config_text(const config::Value& model_node) {
  if (!model_node.is_map()) return invalid_argument("the model node is not a map");
  config::Value node = model_node;
  // Both come last, also when the node was read from an archive that has them.
  node.as_map().erase("target");
  node.as_map().erase("nemo_version");
  node.as_map().set("target", archive::kNemoTarget);
  node.as_map().set("nemo_version", archive::kNemoVersion);
  return config::emit_yaml(node);
}

Status save_nemo(Env& env, const std::string& path, const config::Value& model_node,
                 const nn::ParameterRegistry& registry, const archive::ProgressFn& progress) {
  AERIE_ASSIGN_OR_RETURN(const std::string text, nemo_config_text(model_node));
  AERIE_ASSIGN_OR_RETURN(const std::vector<archive::OutTensor> tensors,
                         state_dict_tensors(registry));
  return archive::write_nemo(env, path, text, tensors, progress);
}

Result<config::ModelConfig> model_config_of(const config::Value& model_node) {
  for (const char* part : {"preprocessor", "encoder", "quantizer", "decoder"})
    if (const config::Value* node = model_node.child(part); node == nullptr || !node->is_map())
      return data_error(str_cat("this is not the configuration of a NEST model: it has no ", part));
  config::Map root;
  root.set("model", model_node);
  AERIE_ASSIGN_OR_RETURN(config::RunConfig run,
                         config::build_run_config(config::Value(std::move(root))));
  return run.model;
}

Result<RestoredModel> restore_nemo(Env& env, const std::string& path,
                                   const config::NestAerieConfig& aerie, at::Device device,
                                   bool strict) {
  AERIE_ASSIGN_OR_RETURN(archive::NemoArchive file, archive::read_nemo(env, path));
  RestoredModel out;
  AERIE_ASSIGN_OR_RETURN(
      out.model_node, config::parse_yaml(file.config_yaml, str_cat(path, ": model_config.yaml")));
  if (const config::Value* target = out.model_node.child("target");
      target != nullptr && target->is_string() &&
      target->as_string().find("MaskedTokenPredModel") == std::string::npos) {
    return unsupported(str_cat("the archive holds a ", target->as_string(), ", not a NEST model"))
        .with_context(path)
        .with_hint("weights alone can be taken with init_from_nemo_model and include");
  }
  auto config = model_config_of(out.model_node);
  if (!config.ok()) return std::move(config).status().with_context(path);
  LoadOptions options;
  options.strict = strict;
  auto model =
      nest::NestModel::create(*config, aerie, device, [&](const nn::ParameterRegistry& registry) {
        return check_state_dict(file.weights, registry, options);
      });
  if (!model.ok()) return std::move(model).status().with_context(path);
  out.model = std::move(model).value();
  auto report = load_state_dict(file.weights, out.model->parameters(), options);
  if (!report.ok()) return std::move(report).status().with_context(path);
  return out;
}

Result<std::vector<LoadReport>> initialize_from(Env& env, const config::InitFromConfig& init,
                                                nn::ParameterRegistry& registry) {
  std::vector<LoadReport> out;
  if (init.kind == config::InitFromConfig::Kind::kNone) return out;
  const char* key = init.kind == config::InitFromConfig::Kind::kNemoModel ? "init_from_nemo_model"
                                                                          : "init_from_ptl_ckpt";
  for (const config::InitSource& source : init.sources) {
    const std::string where =
        source.label.empty() ? std::string(key) : str_cat(key, ".", source.label);
    // Whatever the file is: NeMo archive, Lightning or torch checkpoint, safetensors.
    auto file = archive::open_any(env, source.path);
    if (!file.ok()) return std::move(file).status().with_context(where);
    LoadOptions options;
    options.strict = false;
    options.include = source.include;
    options.exclude = source.exclude;
    auto report = load_state_dict(file->tensors, registry, options);
    if (!report.ok()) return std::move(report).status().with_context(where);
    if (report->loaded.empty()) {
      return data_error(str_cat("no tensor of ", source.path, " has a name of this model"))
          .with_context(where)
          .with_hint("compare with aerie inspect; check include and exclude");
    }
    out.push_back(std::move(report).value());
  }
  return out;
}

}  // namespace aerie::ckpt
