#include "aerie/train/autograd/autograd_engine.h"

#include <algorithm>

#include <ATen/DeviceAccelerator.h>

#include "aerie/base/strings.h"
#include "aerie/base/system.h"
#include "aerie/device/gpu.h"
#include "aerie/train/graph/torch_status.h"
#include "aerie/train/ranks/rank_settings.h"

namespace aerie::train {
namespace {

constexpr const char* kFallenBackTo = "fallen_back_to";  // in the scalars of a state

// What a saved run had fallen back to, for one that would otherwise start in 16-mixed again.
Result<std::optional<config::Precision>> fallen_back_to(const ReadState& read,
                                                        config::Precision precision) {
  const auto saved = read.text(kFallenBackTo);
  if (!saved) return std::optional<config::Precision>();
  if (*saved != "bf16-mixed" && *saved != "32")
    return data_error("the precision in the checkpoint is damaged");
  if (precision != config::Precision::k16Mixed) return std::optional<config::Precision>();
  return std::optional(*saved == "32" ? config::Precision::k32 : config::Precision::kBf16Mixed);
}

}  // namespace

std::string AutogradEngine::description() const {
  return str_cat(kind(), " engine, ", autograd().device().str(), ", precision ",
                 config::precision_name(autograd().precision()));
}

int64_t AutogradEngine::num_param_groups() const {
  return static_cast<int64_t>(autograd().optimizer().groups().size());
}

int64_t AutogradEngine::num_parameters() const {
  return autograd().registry().num_trainable_elements();
}

Status AutogradEngine::use_ema_weights(bool on) {
  optim::Ema* ema = autograd().ema();
  if (ema == nullptr || ema->swapped() == on) return ok_status();
  AERIE_RETURN_IF_ERROR(write_state());
  try {
    ema->swap();
  } catch (const std::exception& error) {
    return torch_status(error).with_context("averaged weights");
  }
  return state_written();
}

Result<std::unique_ptr<StateSnapshot>> AutogradEngine::snapshot() {
  AERIE_RETURN_IF_ERROR(write_state());
  if (autograd().window_open())
    return internal_error("snapshot inside a window: its gradients would be lost");
  AERIE_RETURN_IF_ERROR(autograd().show_state(/*gather=*/true));
  TextScalars texts;
  if (fallen_back_)
    texts.emplace_back(kFallenBackTo, config::precision_name(autograd().precision()));
  auto snapshot = take_snapshot(autograd().flat_state(), snapshot_memory_, std::move(texts));
  autograd().hide_state(/*written=*/false);
  return snapshot;
}

// What this rank has of a sharded state goes to the one that writes.
Status AutogradEngine::join_snapshot() {
  AERIE_RETURN_IF_ERROR(write_state());
  AERIE_RETURN_IF_ERROR(autograd().show_state(/*gather=*/true));
  autograd().hide_state(/*written=*/false);
  return ok_status();
}

void AutogradEngine::reserve_snapshots() {
  snapshot_memory_->reserve(autograd().device(), snapshot_bytes(autograd().flat_state()));
}

Status AutogradEngine::restore(const StateSource& source) {
  AERIE_RETURN_IF_ERROR(finish_update());
  AERIE_RETURN_IF_ERROR(autograd().show_state(/*gather=*/false));
  const Status restored = restore_whole(source);
  autograd().hide_state(/*written=*/restored.ok());
  AERIE_RETURN_IF_ERROR(restored);
  met_ = ranks_ == nullptr;
  finished_.clear();
  return state_written();
}

Status AutogradEngine::restore_whole(const StateSource& source) {
  AERIE_ASSIGN_OR_RETURN(ReadState read, read_state(autograd().flat_state(), source));
  AERIE_ASSIGN_OR_RETURN(const auto saved, fallen_back_to(read, autograd().precision()));
  autograd().drop_window();
  if (saved) autograd().set_precision(*saved);
  AERIE_RETURN_IF_ERROR(read.write(autograd().flat_state()));
  fallen_back_ = saved.has_value();
  return ok_status();
}

Status AutogradEngine::set_precision(config::Precision precision) {
  AERIE_RETURN_IF_ERROR(finish_update());
  autograd().set_precision(precision);
  return state_written();
}

Result<std::string> AutogradEngine::fall_back_precision() {
  AERIE_RETURN_IF_ERROR(write_state());
  AERIE_ASSIGN_OR_RETURN(const config::Precision precision, autograd().fall_back_precision());
  fallen_back_ = true;
  AERIE_RETURN_IF_ERROR(state_written());
  return std::string(config::precision_name(precision));
}

Status AutogradEngine::set_reducer(GradientReducer* reducer) {
  AERIE_RETURN_IF_ERROR(finish_update());
  return autograd().set_reducer(reducer);
}

Status AutogradEngine::set_exchange(kernels::ExchangeSums exchange, bool recordable) {
  AERIE_RETURN_IF_ERROR(finish_update());
  return autograd().set_exchange(std::move(exchange), recordable);
}

Status AutogradEngine::set_ranks(std::shared_ptr<EngineRanks> ranks) {
  AERIE_RETURN_IF_ERROR(set_reducer(&ranks->reducer()));
  AERIE_RETURN_IF_ERROR(set_exchange(ranks->exchange(), ranks->exchange_is_recordable()));
  if (ranks->broadcasts_buffers())
    autograd().set_broadcast_statistics([ranks = ranks.get()](std::vector<at::Tensor> statistics) {
      return ranks->broadcast(std::move(statistics));
    });
  autograd().set_group(&ranks->group());
  ranks_ = std::move(ranks);
  met_ = false;
  return ok_status();
}

Status AutogradEngine::meet_ranks() {
  if (met_) return ok_status();
  AERIE_RETURN_IF_ERROR(write_state());
  AERIE_RETURN_IF_ERROR(ranks_->broadcast_state(autograd().flat_state()));
  met_ = true;
  return state_written();
}

EngineMemory AutogradEngine::memory() const {
  constexpr double kGib = 1073741824.0;
  const at::Device device = autograd().device();
  if (!device.is_cuda()) {
    const ProcessMemory memory = process_memory();
    return {static_cast<double>(memory.rss_bytes) / kGib,
            static_cast<double>(memory.peak_rss_bytes) / kGib};
  }
  const auto stats = at::accelerator::getDeviceStats(std::max<c10::DeviceIndex>(0, device.index()));
  const double beside = static_cast<double>(own_memory_bytes()) / kGib;
  return {static_cast<double>(stats.allocated_bytes[0].current) / kGib + beside,
          static_cast<double>(stats.allocated_bytes[0].peak) / kGib + beside};
}

Result<at::Device> engine_device(const EngineOptions& options) {
  if (!options.gpu) return at::Device(at::kCPU);
  AERIE_RETURN_IF_ERROR(device::load_torch_cuda());
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(options.gpu_index));
  // An earlier engine's peak is not this one's.
  if (at::getDeviceAllocator(at::kCUDA)->initialized()) {
    at::accelerator::emptyCache();
    at::accelerator::resetPeakStats(device.index());
  }
  return device;
}

Status take_precision(const EngineOptions& options, config::TrainerConfig& trainer) {
  using config::Precision;
  if (options.precision.empty()) return ok_status();
  for (const Precision one : {Precision::k32, Precision::kBf16Mixed, Precision::k16Mixed})
    if (options.precision == config::precision_name(one)) {
      trainer.precision = one;
      return ok_status();
    }
  return data_error(str_cat("unknown precision '", options.precision, "' in the checkpoint"));
}

Status AutogradEngine::join_ranks(const EngineOptions& options,
                                  const config::TrainerConfig& trainer,
                                  const config::AerieConfig& aerie, config::OptimizerKind optimizer,
                                  bool autograd_alone) {
  if (options.ranks == nullptr) return ok_status();
  AERIE_ASSIGN_OR_RETURN(
      RankSettings settings,
      rank_settings(trainer, aerie, optimizer, autograd_alone, options.ranks->size()));
  settings.reduces = options.reduces;
  AERIE_ASSIGN_OR_RETURN(auto ranks,
                         EngineRanks::create(options.ranks, autograd().registry(), settings));
  return set_ranks(std::move(ranks));
}

BuiltEngine built_engine(std::unique_ptr<AutogradEngine> engine, const EngineOptions& options) {
  BuiltEngine out;
  out.base_rates = engine->base_rates();
  for (const nn::ParamInfo& entry : engine->autograd().registry().entries()) {
    if (entry.is_buffer || entry.alias_of >= 0) continue;
    if (out.parts.empty() || out.parts.back().name != entry.group)
      out.parts.push_back({entry.group, 0, 0});
    (entry.trainable ? out.parts.back().trainable : out.parts.back().frozen) += entry.numel;
  }
  out.start_times = engine->start_times();
  if (options.saves) engine->reserve_snapshots();
  out.engine = std::move(engine);
  return out;
}

}  // namespace aerie::train
