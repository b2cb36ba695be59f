#include "aerie/models/nest/engine/core_engine.h"

#include "aerie/base/strings.h"
#include "aerie/models/nest/config/run_config.h"
#include "aerie/train/graph/autograd_parts.h"
#include "aerie/train/graph/torch_status.h"

namespace aerie::train {
std::string CoreEngine::description() const {
  return str_cat(kind(), " engine, ", core_->device().str(), ", precision ",
                 config::precision_name(core_->precision()));
}

NestCore& CoreEngine::core() {
  (void)finish_update();  // a device that fails here fails again at the next step
  return *core_;
}

int64_t CoreEngine::num_param_groups() const {
  return static_cast<int64_t>(core_->optimizer().groups().size());
}

int64_t CoreEngine::num_parameters() const {
  return core_->model().parameters().num_trainable_elements();
}

Status CoreEngine::use_ema_weights(bool on) {
  optim::Ema* ema = core_->ema();
  if (ema == nullptr || ema->swapped() == on) return ok_status();
  AERIE_RETURN_IF_ERROR(write_state());
  try {
    ema->swap();
  } catch (const std::exception& error) {
    return torch_status(error).with_context("averaged weights");
  }
  return state_written();
}

Result<std::unique_ptr<StateSnapshot>> CoreEngine::snapshot() {
  AERIE_RETURN_IF_ERROR(write_state());
  if (core_->window_open())
    return internal_error("snapshot inside a window: its gradients would be lost");
  AERIE_RETURN_IF_ERROR(core_->show_state(/*gather=*/true));
  auto snapshot = take_snapshot(core_->flat_state(), snapshot_memory_,
                                fallen_back_texts(fallen_back_, core_->precision()));
  core_->hide_state(/*written=*/false);
  return snapshot;
}

// What this rank has of a sharded state goes to the one that writes.
Status CoreEngine::join_snapshot() {
  AERIE_RETURN_IF_ERROR(write_state());
  AERIE_RETURN_IF_ERROR(core_->show_state(/*gather=*/true));
  core_->hide_state(/*written=*/false);
  return ok_status();
}

void CoreEngine::reserve_snapshots() {
  snapshot_memory_->reserve(core_->device(), snapshot_bytes(core_->flat_state()));
}

Status CoreEngine::restore(const StateSource& source) {
  AERIE_RETURN_IF_ERROR(finish_update());
  AERIE_RETURN_IF_ERROR(core_->show_state(/*gather=*/false));
  const Status restored = restore_whole(source);
  core_->hide_state(/*written=*/restored.ok());
  AERIE_RETURN_IF_ERROR(restored);
  met_ = ranks_ == nullptr;
  finished_.clear();
  return state_written();
}

Status CoreEngine::restore_whole(const StateSource& source) {
  AERIE_ASSIGN_OR_RETURN(ReadState read, read_state(core_->flat_state(), source));
  AERIE_ASSIGN_OR_RETURN(const auto saved, fallen_back_to(read, core_->precision()));
  core_->drop_window();
  if (saved) core_->set_precision(*saved);
  AERIE_RETURN_IF_ERROR(read.write(core_->flat_state()));
  fallen_back_ = saved.has_value();
  return ok_status();
}

Status CoreEngine::set_precision(config::Precision precision) {
  AERIE_RETURN_IF_ERROR(finish_update());
  core_->set_precision(precision);
  return state_written();
}

Result<std::string> CoreEngine::fall_back_precision() {
  AERIE_RETURN_IF_ERROR(write_state());
  AERIE_ASSIGN_OR_RETURN(const config::Precision precision, core_->fall_back_precision());
  fallen_back_ = true;
  AERIE_RETURN_IF_ERROR(state_written());
  return std::string(config::precision_name(precision));
}

Status CoreEngine::set_reducer(GradientReducer* reducer) {
  AERIE_RETURN_IF_ERROR(finish_update());
  return core_->set_reducer(reducer);
}

Status CoreEngine::set_exchange(kernels::ExchangeSums exchange, bool recordable) {
  AERIE_RETURN_IF_ERROR(finish_update());
  return core_->set_exchange(std::move(exchange), recordable);
}

Status CoreEngine::set_ranks(std::shared_ptr<EngineRanks> ranks) {
  AERIE_RETURN_IF_ERROR(set_reducer(&ranks->reducer()));
  AERIE_RETURN_IF_ERROR(set_exchange(ranks->exchange(), ranks->exchange_is_recordable()));
  if (ranks->broadcasts_buffers())
    core_->set_broadcast_statistics([ranks = ranks.get()](std::vector<at::Tensor> statistics) {
      return ranks->broadcast(std::move(statistics));
    });
  core_->set_group(&ranks->group());
  ranks_ = std::move(ranks);
  met_ = false;
  return ok_status();
}

Status CoreEngine::meet_ranks() {
  if (met_) return ok_status();
  AERIE_RETURN_IF_ERROR(write_state());
  AERIE_RETURN_IF_ERROR(ranks_->broadcast_state(core_->flat_state()));
  met_ = true;
  return state_written();
}

EngineMemory CoreEngine::memory() const {
  const MemoryUse use = memory_use(core_->device(), own_memory_bytes());
  return {use.current_gib, use.peak_gib};
}

}  // namespace aerie::train
