#include "aerie/models/nest/nemo_model.h"

#include "aerie/archive/any_archive.h"
#include "aerie/base/strings.h"
#include "aerie/models/nest/config/run_config.h"

namespace aerie::ckpt {

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
