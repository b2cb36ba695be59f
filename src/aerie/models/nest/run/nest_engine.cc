#include "aerie/models/nest/run/nest_engine.h"

#include <utility>

#include <ATen/DeviceAccelerator.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "aerie/archive/any_archive.h"
#include "aerie/archive/lightning_checkpoint.h"
#include "aerie/base/log.h"
#include "aerie/base/path.h"
#include "aerie/checkpoint/state_dict.h"
#include "aerie/checkpoint/tensor_io.h"
#include "aerie/device/gpu.h"
#include "aerie/models/nest/engine/fast_engine.h"
#include "aerie/models/nest/engine/reference_engine.h"
#include "aerie/models/nest/nemo_model.h"
#include "aerie/models/nest/restore.h"
#include "aerie/models/nest/run/lightning_export.h"
#include "aerie/optim/optimizer_state.h"
#include "aerie/train/ranks/rank_settings.h"

namespace aerie::train {

namespace {

// Every engine of NEST is made below.
CoreEngine& core_engine(BuiltEngine& engine) {
  return static_cast<CoreEngine&>(*engine.engine);
}

// The engine that aerie.engine asks for. `auto` takes the fast one on a GPU, unless the
// configuration needs something that only the reference engine does.
Result<std::unique_ptr<CoreEngine>> choose_engine(const config::RunConfig& config,
                                                  at::Device device) {
  const bool asked = config.aerie.engine == config::Engine::kFast;
  std::string reason;
  if (config.aerie.engine != config::Engine::kReference) {
    reason = device.is_cuda() ? FastEngine::not_covered(config) : "it needs a GPU";
    if (reason.empty()) {
      auto fast = FastEngine::create(config, device);
      if (fast.ok()) return std::unique_ptr<CoreEngine>(std::move(fast).value());
      // Too little memory for the weights is no question of engines.
      if (fast.status().code() == StatusCode::kOutOfMemory) return fast.status();
      reason = fast.status().message();
    }
    if (asked)
      return unsupported(str_cat("aerie.engine=fast cannot run this configuration: ", reason))
          .with_hint("use aerie.engine=auto or reference");
    if (device.is_cuda()) log_info("train", "reference engine instead of the fast one: ", reason);
  }
  AERIE_ASSIGN_OR_RETURN(auto engine, ReferenceEngine::create(config, device));
  return std::unique_ptr<CoreEngine>(std::move(engine));
}

}  // namespace

Result<BuiltEngine> make_nest_engine(const config::RunConfig& given, const EngineOptions& options) {
  config::RunConfig config = given;
  AERIE_RETURN_IF_ERROR(take_precision(options, config.trainer));
  AERIE_ASSIGN_OR_RETURN(const at::Device device, engine_device(options));
  AERIE_ASSIGN_OR_RETURN(auto engine, choose_engine(config, device));
  engine->core().set_global_loss(config.aerie.loss_reduction == config::LossReduction::kGlobal);
  AERIE_RETURN_IF_ERROR(engine->join_ranks(options, config.trainer, config.aerie,
                                           config.model.optim.kind, !engine->is_fast()));
  BuiltEngine out = built_engine(std::move(engine), options);
  // What setting up took and gave back is the device's again.
  if (options.gpu) at::accelerator::emptyCache();
  return out;
}

ReductionSize reduction_size(BuiltEngine& engine) {
  EngineRanks* ranks = core_engine(engine).ranks();
  if (ranks == nullptr) return {};
  const ReducerCounters counters = ranks->reducer().counters();
  return {counters.buckets, counters.bytes};
}

Status load_initial_weights(Env& env, BuiltEngine& engine, const config::InitFromConfig& init) {
  if (init.kind == config::InitFromConfig::Kind::kNone) return ok_status();
  AERIE_ASSIGN_OR_RETURN(
      const std::vector<ckpt::LoadReport> reports,
      ckpt::initialize_from(env, init, core_engine(engine).core().model().parameters()));
  for (size_t i = 0; i < reports.size(); ++i)
    log_info("train", "initialised from ", init.sources[i].path, ": ", reports[i].summary());
  return core_engine(engine).state_written();
}

Result<LoadedWeights> load_all_weights(Env& env, BuiltEngine& engine, const std::string& path,
                                       bool averaged) {
  nn::ParameterRegistry& registry = core_engine(engine).core().model().parameters();
  LoadedWeights out;
  AERIE_ASSIGN_OR_RETURN(out.path, ckpt::find_weights(env, path));
  AERIE_ASSIGN_OR_RETURN(const archive::AnyArchive file, archive::open_any(env, out.path));
  AERIE_RETURN_IF_ERROR(ckpt::load_state_dict(file.tensors, registry, ckpt::LoadOptions{})
                            .status()
                            .with_context(out.path));
  // The averages cover the parameters; buffers stay those of the model.
  const std::string averages = join_path(parent_path(out.path), "ema.safetensors");
  if (averaged && base_name(out.path) == "model.safetensors" && env.exists(averages)) {
    AERIE_ASSIGN_OR_RETURN(const archive::AnyArchive ema, archive::open_any(env, averages));
    ckpt::LoadOptions options;
    options.strict = false;
    AERIE_RETURN_IF_ERROR(
        ckpt::load_state_dict(ema.tensors, registry, options).status().with_context(averages));
    out.averaged = true;
  }
  AERIE_RETURN_IF_ERROR(core_engine(engine).state_written());
  return out;
}

namespace {

// The averages lie in a file of their own, as NeMo has it.
Status import_averages(Env& env, NestCore& core, const archive::LightningCheckpoint& checkpoint,
                       const std::string& path) {
  const std::string averages = averaged_path(path);
  if (!env.exists(averages)) {
    log_warn("train", "there is no ", averages, ": the average of the weights starts anew");
    return ok_status();
  }
  AERIE_ASSIGN_OR_RETURN(const archive::LightningCheckpoint file,
                         archive::read_lightning_checkpoint(env, averages));
  const nn::ParameterRegistry& registry = core.model().parameters();
  at::NoGradGuard no_grad;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // target, value
  for (const int64_t index : registry.parameters()) {
    const nn::ParamInfo& info = registry.entries()[static_cast<size_t>(index)];
    if (info.flat_offset < 0) continue;  // frozen: its own average
    auto value = ckpt::read_tensor(file.weights, info.name);
    if (!value.ok()) return value.status().with_context(averages);
    if (value->sizes() != at::IntArrayRef(info.shape))
      return data_error(str_cat(info.name, " has another shape")).with_context(averages);
    copies.emplace_back(registry.flat_view(core.ema()->flat(), index), std::move(value).value());
  }
  for (auto& [target, value] : copies) target.copy_(value);
  core.ema()->restore(file.averaged_steps.value_or(checkpoint.global_step));
  return ok_status();
}

}  // namespace

Result<TrainState> import_lightning_checkpoint(Env& env, BuiltEngine& engine,
                                               const std::string& path) {
  NestCore& core = core_engine(engine).core();
  AERIE_ASSIGN_OR_RETURN(const archive::LightningCheckpoint checkpoint,
                         archive::read_lightning_checkpoint(env, path));
  AERIE_RETURN_IF_ERROR(
      ckpt::load_state_dict(checkpoint.weights, core.model().parameters(), ckpt::LoadOptions{})
          .status()
          .with_context(path));
  AERIE_RETURN_IF_ERROR(
      optim::load_lightning_state(checkpoint, core.optimizer()).with_context(path));
  if (core.scaler() != nullptr && checkpoint.scaler)
    core.scaler()->restore(checkpoint.scaler->scale, checkpoint.scaler->growth_tracker);
  if (core.ema() != nullptr) AERIE_RETURN_IF_ERROR(import_averages(env, core, checkpoint, path));
  AERIE_RETURN_IF_ERROR(core_engine(engine).state_written());
  TrainState state;
  state.step = checkpoint.global_step;
  state.epoch = checkpoint.epoch;
  return state;
}

}  // namespace aerie::train
