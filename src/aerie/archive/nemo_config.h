// The text of model_config.yaml for a .nemo archive.
#pragma once

#include <string>

#include "aerie/base/status.h"
#include "aerie/config/value.h"

namespace aerie::archive {

// The class NeMo instantiates, and the release whose archives ours follow.
inline constexpr char kNemoTarget[] =
    "nemo.collections.asr.models.ssl_models.EncDecDenoiseMaskedTokenPredModel";
inline constexpr char kNemoVersion[] = "2.6.2";

// The resolved model node in its own key order, with `target` (the class NeMo instantiates) and
// `nemo_version` appended when they are missing. `config` is a whole run configuration with a
// `model` node, or the model node itself; interpolations are resolved, `???` stays, also
// for what comes from a variable of the environment that is not set here.
Result<std::string> nemo_config_yaml(const config::Value& config);

}  // namespace aerie::archive
