#include "aerie/archive/nemo_config.h"

#include "aerie/base/strings.h"
#include "aerie/config/resolver.h"
#include "aerie/config/yaml.h"

namespace aerie::archive {

Result<std::string> nemo_config_yaml(const config::Value& config) {
  if (!config.is_map()) return invalid_argument("the configuration is not a mapping");
  // The model's interpolations look outside of it (${model.sample_rate}), so all is resolved first.
  config::ResolveOptions options;
  options.unset_env_is_missing = true;
  AERIE_ASSIGN_OR_RETURN(config::Value resolved, config::resolve_all(config, options));
  config::Value* model = resolved.child("model");
  if (model == nullptr) model = &resolved;
  if (!model->is_map() || model->child("encoder") == nullptr)
    return invalid_argument("the configuration has no model with an encoder")
        .with_hint("give a run configuration with a `model` node, or a model_config.yaml");
  if (model->child("target") == nullptr) model->as_map().set("target", kNemoTarget);
  if (model->child("nemo_version") == nullptr) model->as_map().set("nemo_version", kNemoVersion);
  return config::emit_yaml(*model);
}

}  // namespace aerie::archive
