#include "aerie/train/nest/nest_start.h"

#include <cstdlib>
#include <utility>
#include <vector>

#include "aerie/archive/nemo.h"
#include "aerie/base/log.h"
#include "aerie/base/path.h"
#include "aerie/base/strings.h"
#include "aerie/config/yaml.h"

namespace aerie::train {

namespace {

constexpr char kTarget[] =
    "nemo.collections.asr.models.ssl_models.EncDecDenoiseMaskedTokenPredModel";
constexpr char kNemoVersion[] = "2.6.0rc0";

}  // namespace

Result<RunFolder> run_folder_of(Env& env, Clock& clock, const config::RunConfig& run) {
  config::ExpManagerConfig exp = run.exp_manager;
  // NeMo's exp_manager ignores Lightning's folder.
  if (!exp.present) exp.exp_dir = run.trainer.default_root_dir;
  const char* version = std::getenv("NEMO_EXPM_VERSION");
  return choose_run_folder(env, clock, exp, run.name, version != nullptr ? version : "");
}

Result<StartPoint> find_start_point(Env& env, const RunFolder& folder, const ResumePlan& plan) {
  StartPoint out;
  if (plan.kind != ResumePlan::Kind::kNative) return out;
  if (plan.path == folder.checkpoints) {
    const CheckpointStore store(env, folder.checkpoints);
    AERIE_ASSIGN_OR_RETURN(
        out.loaded, store.newest_valid([](const CheckpointInfo& info, const Status& status) {
          log_warn("train", "checkpoint ", info.path,
                   info.is_unhealthy && info.manifest.ok() ? " is passed over: "
                                                           : " is damaged and passed over: ",
                   status.to_string());
        }));
    if (out.loaded == nullptr)
      return data_error(str_cat("no valid checkpoint in ", folder.checkpoints))
          .with_hint("remove the damaged ones to start from scratch");
  } else {
    const size_t slash = plan.path.find_last_of('/');
    const CheckpointStore other(env, slash == std::string::npos ? "." : plan.path.substr(0, slash));
    AERIE_ASSIGN_OR_RETURN(out.loaded, other.open(plan.path.substr(slash + 1)));
  }
  out.state = out.loaded->state();
  return out;
}

Status load_start_point(Env& env, NestEngine& engine, const config::RunConfig& run,
                        const ResumePlan& plan, StartPoint& point) {
  if (point.loaded != nullptr) {
    AERIE_RETURN_IF_ERROR(engine.engine->restore(*point.loaded));
    point.loaded.reset();
    return ok_status();
  }
  if (plan.kind == ResumePlan::Kind::kForeign) {
    AERIE_ASSIGN_OR_RETURN(point.state, import_lightning_checkpoint(env, engine, plan.path));
    point.state.data_cursor_json.clear();
    return ok_status();
  }
  return load_initial_weights(env, engine, run.init_from);
}

std::optional<int64_t> schedule_steps(const config::RunConfig& run, const Cadence& cadence) {
  if (run.trainer.max_steps >= 0) return run.trainer.max_steps;
  if (run.model.optim.sched && run.model.optim.sched->max_steps)
    return *run.model.optim.sched->max_steps;
  const int64_t planned = cadence.planned_steps();
  return planned >= 0 ? std::optional(planned) : std::nullopt;
}

Result<std::string> nemo_model_config(const config::Value& resolved) {
  const config::Value* model = resolved.find("model");
  if (model == nullptr) return invalid_argument("the configuration has no model node");
  config::Value out = *model;
  if (out.find("target") == nullptr)
    AERIE_RETURN_IF_ERROR(out.set("target", config::Value(kTarget)));
  if (out.find("nemo_version") == nullptr)
    AERIE_RETURN_IF_ERROR(out.set("nemo_version", config::Value(kNemoVersion)));
  return config::emit_yaml(out);
}

Status write_nemo_snapshot(Env& env, const std::string& path, const std::string& model_yaml,
                           const StateSnapshot& snapshot) {
  std::vector<archive::OutTensor> tensors;
  for (const SnapshotTensor& tensor : snapshot.tensors()) {
    if (tensor.file != "model") continue;
    const auto dtype = archive::dtype_from_safetensors(tensor.dtype);
    AERIE_CHECK(dtype.has_value(), tensor.dtype);
    tensors.push_back({tensor.name, *dtype, tensor.shape, tensor.data, {}});
  }
  return archive::write_nemo(env, path, model_yaml, tensors);
}

}  // namespace aerie::train
