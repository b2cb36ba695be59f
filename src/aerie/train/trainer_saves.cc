// When the loop saves, and what becomes of saves that fail.
#include <cmath>
#include <utility>

#include "aerie/base/log.h"
#include "aerie/base/spans.h"
#include "aerie/base/strings.h"
#include "aerie/train/measure.h"
#include "aerie/train/trainer.h"

namespace aerie::train {

namespace {
// After a checkpoint could not be written (full disk, lost mount), another attempt follows so soon.
constexpr double kSaveRetryS = 30.0;
}  // namespace

const char* save_reason_name(SaveReason reason) {
  switch (reason) {
    case SaveReason::kValidation:
      return "validation";
    case SaveReason::kInterval:
      return "interval";
    case SaveReason::kEpochEnd:
      return "epoch_end";
    case SaveReason::kSignal:
      return "signal";
    case SaveReason::kTrainEnd:
      return "train_end";
    case SaveReason::kTimeLimit:
      return "time_limit";
  }
  return "";
}

// Lightning saves after a validation, or with save_on_train_epoch_end after an epoch; only epochs
// that every_n_epochs counts may enter the best.
bool Trainer::epoch_counts(int64_t epoch) const {
  const int64_t every = parts_.config->exp_manager.checkpoint_callback_params.every_n_epochs;
  return every >= 1 && (epoch + 1) % every == 0;
}

Status Trainer::save_for_best(SaveReason reason, int64_t epoch) {
  const config::CheckpointCallbackConfig& params =
      parts_.config->exp_manager.checkpoint_callback_params;
  const bool top_k = epoch_counts(epoch);
  if (!top_k && (!params.save_last || parts_.checkpoint_rules.newest)) return ok_status();
  return save(reason, metric(params.monitor), top_k, std::nullopt,
              reason == SaveReason::kEpochEnd ? epoch + 1 : 0);
}

Status Trainer::save_after_validation(int64_t epoch) {
  const config::CheckpointCallbackConfig& params =
      parts_.config->exp_manager.checkpoint_callback_params;
  const CheckpointRules& rules = parts_.checkpoint_rules;
  if (rules.newest && rules.best)
    return save(SaveReason::kValidation, metric(params.monitor), true, std::nullopt,
                rules.by_epoch ? epoch + 1 : 0);
  if (rules.newest || params.save_on_train_epoch_end) return ok_status();
  // The step's own save came before the validation and nothing new may enter the best.
  if (position_.step == state_.last_saved_step && params.every_n_epochs < 1) return ok_status();
  return save_for_best(SaveReason::kValidation, epoch);
}

Status Trainer::save_after_epoch(int64_t epoch) {
  if (position_.step == state_.last_saved_step) return ok_status();
  return save_for_best(SaveReason::kEpochEnd, epoch);
}

// Lightning's order: after the step and before the validation that follows it. Checkpoints compete
// with the latest value of the monitor, however old.
Status Trainer::interval_saves() {
  const config::CheckpointCallbackConfig& params =
      parts_.config->exp_manager.checkpoint_callback_params;
  const bool by_steps = params.every_n_train_steps &&
                        Cadence::passes(position_.step, last_width_, *params.every_n_train_steps);
  const double now = parts_.clock->monotonic_s();
  const bool by_time = decided(RankVotes::kSaveByTime) != 0;
  votes_.settle(RankVotes::kSaveByTime);
  if (!by_steps && !by_time) return ok_status();
  if (by_time) last_interval_save_s_ = now;
  if (position_.step == state_.last_saved_step) return ok_status();
  // The monitor may be the loss of this very step.
  AERIE_RETURN_IF_ERROR(collect(/*wait=*/true));
  return save(SaveReason::kInterval, metric(params.monitor), /*top_k=*/true, now);
}

// 16-mixed skips a step whenever its loss scale has grown too far; that alone is no harm.
bool Trainer::healthy() const {
  const int64_t bad = guards_.nonfinite_in_a_row();
  return bad == 0 || (bad == 1 && scale_overflow_);
}

Status Trainer::save(SaveReason reason, std::optional<double> monitor, bool top_k,
                     std::optional<double> asked_s, int64_t epochs_done) {
  if (!saves()) return ok_status();
  const dist::PhaseScope phase(parts_.ranks, dist::Phase::kSave);
  // Waiting for the steps in flight is part of what a save costs.
  const double asked = asked_s.value_or(parts_.clock->monotonic_s());
  AERIE_RETURN_IF_ERROR(collect(/*wait=*/true));
  const SpanScope span(kPhaseSave);
  const double start = parts_.clock->monotonic_s();
  // The best one by mmcv's rules stands beside the others, not for one of them.
  if (!parts_.checkpoint_rules.newest || reason != SaveReason::kValidation)
    state_.last_saved_step = position_.step;
  saved_pending_ = state_.validation_pending;
  AERIE_ASSIGN_OR_RETURN(const double loss, loss_of_ranks());
  if (parts_.checkpointer == nullptr) return parts_.engine->join_snapshot().with_context("saving");
  auto snapshot = parts_.engine->snapshot();
  if (!snapshot.ok()) return snapshot.status().with_context("saving");
  SaveRequest request;
  request.state = current_state();
  request.state.last_train_loss = loss;
  request.reason = reason;
  request.monitor = monitor;
  request.top_k = top_k;
  request.healthy = healthy();
  request.epochs_done = epochs_done;
  request.metrics = latest_;
  // Until the outcome is known no further attempt is due.
  if (retry_save_at_s_) retry_save_at_s_ = parts_.clock->monotonic_s() + kSaveRetryS;
  const Status status = parts_.checkpointer->save(std::move(request), std::move(snapshot).value());
  const double done = parts_.clock->monotonic_s(), blocked = done - asked;
  last_step_done_s_ += done - start;
  summary_.save_block_s += done - start;
  event("save", [&](metrics::Record& record) {
    record.add("reason", save_reason_name(reason)).add("blocked_ms", blocked * 1e3);
  });
  if (parts_.config->exp_manager.checkpoint_callback_params.verbose)
    log_info("train", "step ", position_.step,
             ": checkpoint handed to the writer, training blocked for ",
             std::round(blocked * 1e4) / 10.0, " ms");
  return status;
}

void Trainer::take_save_reports() {
  if (parts_.checkpointer == nullptr) return;
  for (const SaveReport& report : parts_.checkpointer->take_reports()) {
    superseded_saves_ += report.superseded;
    // Without save_last a save may leave nothing behind.
    if (report.status.ok() && report.stem.empty()) {
      if (state_.last_saved_step == report.step) state_.last_saved_step = -1;
      continue;
    }
    event("saved", [&](metrics::Record& record) {
      record.add("stem", report.stem)
          .add("saved_step", report.step)
          .add("write_ms", report.write_ms)
          .add("write_cpu_ms", report.cpu_ms)
          .add("bytes", static_cast<int64_t>(report.bytes))
          .add("ok", report.status.ok());
      if (superseded_saves_ > 0) record.add("superseded", std::exchange(superseded_saves_, 0));
      if (!report.status.ok()) record.add("message", report.status.to_string());
    });
    if (!report.status.ok()) {
      log_warn("train", "checkpoint of step ", report.step,
               " could not be written, training goes on and will try again: ",
               report.status.to_string());
      if (state_.last_saved_step == report.step) state_.last_saved_step = -1;
      retry_save_at_s_ = parts_.clock->monotonic_s() + kSaveRetryS;
    } else if (retry_save_at_s_) {
      log_info("train", "checkpoints are being written again: ", report.stem);
      retry_save_at_s_.reset();
    }
  }
}

}  // namespace aerie::train
