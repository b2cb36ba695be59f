#include "aerie/config/schema/build_loop_config.h"
#include "aerie/data/speech/config/speech_schema.h"
#include "aerie/models/nest/config/build_parts.h"
#include "aerie/models/nest/config/run_config.h"

namespace aerie::config {
namespace {

void build_aerie_nest(const NodeReader& node, NestAerieConfig& out) {
  if (node.given("compat")) out.empty_mask = EmptyMask::kNan;
  node.read_enum(
      "tokens_precision", out.tokens_precision,
      {{"float32", TokensPrecision::kFloat32}, {"autocast", TokensPrecision::kAutocast}});
  node.read_enum("empty_mask", out.empty_mask,
                 {{"zero", EmptyMask::kZero}, {"nan", EmptyMask::kNan}});
  node.read("train_pre_encode", out.train_pre_encode);
  node.read_enum("batch_norm_frames", out.batch_norm_frames,
                 {{"padded", BatchNormFrames::kPadded}, {"valid", BatchNormFrames::kValid}});
}

}  // namespace

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
