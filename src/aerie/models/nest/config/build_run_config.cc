#include "aerie/config/schema/build_loop_config.h"
#include "aerie/data/speech/config/speech_schema.h"
#include "aerie/models/nest/config/nest_keys.h"
#include "aerie/models/nest/config/run_config.h"

namespace aerie::config {

LoopConfig RunConfig::loop() const {
  return {name, trainer, exp_manager, init_from, aerie};
}

Result<RunConfig> build_run_config(const Value& resolved) {
  if (!resolved.is_map())
    return invalid_argument(str_cat("expected a mapping of keys, got ", resolved.brief()));
  RunConfig out;
  Status status;
  const NodeReader root(&resolved, "", &status);
  const NodeReader model = root.child("model");
  build_model_parts(model, out.model);
  build_datasets(model, out.model.sample_rate, out.model);
  LoopConfig loop;
  build_loop_config(root, loop);
  build_optim(model, loop.trainer, out.model.optim, out.model.optim_param_groups);
  static_cast<AerieConfig&>(out.aerie) = std::move(loop.aerie);
  build_aerie_speech(root.child("aerie"), out.aerie);
  build_aerie_nest(root.child("aerie"), out.aerie);
  out.name = std::move(loop.name);
  out.trainer = std::move(loop.trainer);
  out.exp_manager = std::move(loop.exp_manager);
  out.init_from = std::move(loop.init_from);
  if (!status.ok()) return status;
  return out;
}

}  // namespace aerie::config
