#include "aerie/models/bev/run/make_engine.h"

#include <memory>
#include <utility>

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/Tensor.h>

#include "aerie/archive/any_archive.h"
#include "aerie/archive/native_checkpoint.h"
#include "aerie/base/log.h"
#include "aerie/base/path.h"
#include "aerie/base/printable.h"
#include "aerie/base/strings.h"
#include "aerie/device/gpu.h"
#include "aerie/models/bev/engine/bev_engine.h"
#include "aerie/models/bev/weights/load_weights.h"
#include "aerie/train/ranks/rank_settings.h"
#include "aerie/train/run_folder.h"

namespace aerie::bev {
namespace {

// Float16 on a CPU would only be slower.
void settle_precision(BevRunConfig& run, bool gpu) {
  if (gpu || run.trainer.precision != config::Precision::k16Mixed) return;
  log_warn("train", "fp16 needs a GPU; the run is in float32 on the CPU");
  run.trainer.precision = config::Precision::k32;
}

void log_precision(const BevRunConfig& run) {
  if (run.trainer.precision != config::Precision::k16Mixed) return;
  const LossScaleConfig& scale = run.loss_scale;
  log_info("train", "FP16混合精度训练已启用 (mixed precision fp16, ",
           scale.dynamic ? "dynamic loss scale from " : "constant loss scale ", scale.initial, ")");
}

// Who asks for graphs is told why there are none.
void warn_without_graphs(const BevRunConfig& run, const train::EngineOptions& options) {
  if (run.compile.enabled != Compile::kYes) return;
  const char* why = !options.gpu               ? "there is no GPU"
                    : options.ranks != nullptr ? "ranks add up gradients in the backward pass"
                    : run.aerie.activation_checkpointing
                        ? "activation_checkpointing runs blocks twice"
                    : run.trainer.detect_anomaly ? "detect_anomaly looks at every value"
                                                 : nullptr;
  if (why != nullptr)
    log_warn("train", "aerie.compile.enabled: steps are launched operation by operation, since ",
             why);
}

std::string brief(const LoadReport& report) {
  std::string out = str_cat(report.kind, ", ", report.loaded, " tensors");
  const auto add = [&](const char* what, const std::vector<std::string>& names) {
    if (names.empty()) return;
    out += str_cat("; ", names.size(), " ", what, ": ", names.front(),
                   names.size() > 1 ? ", ..." : "");
  };
  add("not in the file keep their initial values", report.missing);
  add("of the file not used", report.unused);
  return out;
}

// Where a file lies now: a run that starts from nothing has moved what an earlier one left in its
// folder to run_<k>, and weights to start with may be among it.
std::string where_it_is(Env& env, const std::string& path) {
  std::string rest = base_name(path);
  std::string folder = parent_path(path);
  for (int level = 0; !env.exists(path) && level < 3; ++level) {
    const auto next = train::next_run_number(env, folder);
    if (next.ok() && *next > 0) {
      const std::string moved = join_path(folder, str_cat("run_", *next - 1, "/", rest));
      if (env.exists(moved)) return moved;
    }
    rest = join_path(base_name(folder), rest);
    folder = parent_path(folder);
  }
  return path;
}

// `key`: what names the file.
Result<LoadReport> take_weights(Env& env, const char* key, const std::string& path,
                                nn::ParameterRegistry& registry, bool backbone_alone) {
  auto file = archive::open_weights(env, where_it_is(env, path));
  if (file.status().code() == StatusCode::kNotFound)
    return invalid_argument(str_cat(key, ": there is no file ", path))
        .with_hint("a .pth or .safetensors file with weights, or null to start without");
  if (!file.ok()) return file.status();
  auto report = backbone_alone ? load_backbone(registry, *file) : load_weights(registry, *file);
  if (report.ok() && !report->beyond.empty())
    log_warn("train", path, " holds a larger Swin: ", report->beyond.size(),
             " tensors of blocks that this model does not have are left out, such as ",
             printable(report->beyond.front()));
  return report;
}

}  // namespace

Result<train::BuiltEngine> make_bev_engine(const BevRunConfig& given,
                                           const train::EngineOptions& options) {
  BevRunConfig run = given;
  AERIE_RETURN_IF_ERROR(train::take_precision(options, run.trainer));
  if (run.aerie.engine == config::Engine::kFast)
    return unsupported("aerie.engine=fast: this family has the reference engine alone")
        .with_hint("use aerie.engine=auto or reference");
  AERIE_ASSIGN_OR_RETURN(const at::Device device, train::engine_device(options));
  settle_precision(run, options.gpu);
  log_precision(run);
  if (run.trainer.accumulate_grad_batches > 1 && !run.model.norm_eval)
    log_warn("train",
             "BatchNorm sees every micro-batch by itself: ", run.trainer.accumulate_grad_batches,
             " accumulated ones are not quite one larger batch (model.norm_eval=true freezes its "
             "statistics)");
  warn_without_graphs(run, options);
  AERIE_ASSIGN_OR_RETURN(auto engine, BevEngine::create(run, device));
  AERIE_RETURN_IF_ERROR(engine->join_ranks(options, run.trainer, run.aerie, run.optim.kind,
                                           /*autograd_alone=*/true));
  return train::built_engine(std::move(engine), options);
}

Status load_initial_weights(Env& env, const BevRunConfig& run, train::BuiltEngine& engine) {
  nn::ParameterRegistry& registry = static_cast<BevEngine&>(*engine.engine).model().parameters();
  if (!run.backbone_init.empty()) {
    AERIE_ASSIGN_OR_RETURN(const LoadReport report,
                           take_weights(env, "model.encoders.camera.backbone.init_cfg.checkpoint",
                                        run.backbone_init, registry, /*backbone_alone=*/true));
    log_info("train", "backbone from ", run.backbone_init, ": ", brief(report));
  }
  if (!run.load_from.empty()) {
    AERIE_ASSIGN_OR_RETURN(
        const LoadReport report,
        take_weights(env, "load_from", run.load_from, registry, /*backbone_alone=*/false));
    log_info("train", "weights from ", run.load_from, ": ", brief(report));
  }
  return ok_status();
}

Result<std::string> find_weights(Env& env, const std::string& given) {
  constexpr const char* kCheckpoints =
      "a run's folder, a checkpoint in it, an iter_N.pth or a .safetensors file is needed";
  if (given.empty())
    return invalid_argument("no checkpoint to evaluate")
        .with_hint("name it behind the configuration: aerie eval CONFIG CHECKPOINT");
  const std::string path = expand_user(given);
  const auto stat = env.stat(path);
  if (!stat.ok()) {
    if (stat.status().code() == StatusCode::kNotFound)
      return invalid_argument(str_cat("there is no checkpoint '", path, "'"))
          .with_hint(kCheckpoints);
    return stat.status();
  }
  if (!stat->is_dir) return path;
  const auto folder = archive::find_native_checkpoint(env, path);
  if (folder.ok()) return join_path(*folder, archive::kNativeWeights);
  // A folder of mmcv's, which has none of ours.
  const std::string latest = join_path(path, "latest.pth");
  if (env.exists(latest)) return latest;
  if (folder.status().code() != StatusCode::kDataError) return folder.status();
  return data_error("no usable checkpoint in this folder")
      .with_context(path)
      .with_hint(kCheckpoints);
}

Result<bool> load_whole_model(Env& env, const std::string& path, bool averaged,
                              train::BuiltEngine& engine) {
  nn::ParameterRegistry& registry = static_cast<BevEngine&>(*engine.engine).model().parameters();
  AERIE_ASSIGN_OR_RETURN(const archive::TensorArchive file, archive::open_weights(env, path));
  AERIE_ASSIGN_OR_RETURN(const LoadReport report, load_weights(registry, file));
  if (!report.missing.empty())
    return data_error(str_cat(report.missing.size(),
                              " tensors of the model are not in it, such as ",
                              report.missing.front()))
        .with_hint("use the configuration that the checkpoint was trained with")
        .with_context(path);
  const std::string averages = join_path(parent_path(path), "ema.safetensors");
  if (!averaged || base_name(path) != archive::kNativeWeights || !env.exists(averages))
    return false;
  // The averages cover the parameters; statistics stay those of the model.
  AERIE_ASSIGN_OR_RETURN(const archive::TensorArchive means, archive::open_weights(env, averages));
  AERIE_RETURN_IF_ERROR(load_weights(registry, means).status());
  return true;
}

void set_prediction_sink(train::BuiltEngine& engine, PredictionSink* sink) {
  static_cast<BevEngine&>(*engine.engine).set_prediction_sink(sink);
}

}  // namespace aerie::bev
