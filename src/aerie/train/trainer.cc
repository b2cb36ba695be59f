#include "aerie/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <nlohmann/json.hpp>

#include "aerie/base/log.h"
#include "aerie/base/signals.h"
#include "aerie/base/spans.h"
#include "aerie/base/system.h"
#include "aerie/train/measure.h"

namespace aerie::train {

namespace {

constexpr double kLoaderEventS = 10.0;  // between two records of the loader's state

std::string nonfinite_advice(const TaskInfo& task) {
  return str_cat(task.lower_rate,
                 " or set trainer.gradient_clip_val=1.0; look at the batches in "
                 "nonfinite/; "
                 "with 16-mixed try trainer.precision=bf16-mixed or aerie.on_nan=fallback");
}

}  // namespace

Trainer::Trainer(TrainerParts parts, Cadence cadence, TrainState start)
    : parts_(std::move(parts)),
      cadence_(std::move(cadence)),
      state_(std::move(start)),
      guards_({parts_.config->aerie.max_nan_in_a_row, parts_.config->aerie.spike_zscore}),
      early_stopping_(parts_.config->exp_manager, parts_.task),
      reporter_({&parts_.task, parts_.config, parts_.tensorboard, parts_.nvml, parts_.clock,
                 [this](const metrics::Record& record) { write_record(record); }}),
      votes_(parts_.ranks) {
  saved_pending_ = state_.validation_pending;
  position_.step = state_.step;
  position_.epoch = state_.epoch;
  position_.batch = state_.batch_in_epoch;
  position_.total_batch = static_cast<int64_t>(state_.micro_step);
  reported_.steps = static_cast<double>(position_.step);
}

double Trainer::wall_s() const {
  return state_.wall_s + parts_.clock->monotonic_s() - start_s_;
}

Status Trainer::restore_parts() {
  if (!state_.guards_json.empty()) AERIE_RETURN_IF_ERROR(guards_.restore(state_.guards_json));
  if (!state_.schedule_json.empty())
    AERIE_RETURN_IF_ERROR(parts_.rates->restore(state_.schedule_json));
  if (!state_.early_stopping_json.empty()) {
    const auto json = nlohmann::json::parse(state_.early_stopping_json, nullptr, false);
    const auto integer = [&](const char* name, int64_t* out) {
      const auto found = json.find(name);
      if (found == json.end()) return true;
      if (!found->is_number_integer() || found->get<int64_t>() < 0) return false;
      *out = found->get<int64_t>();
      return true;
    };
    int64_t checks = 0;
    if (!json.is_object() || !json.contains("checks") || !integer("checks", &checks) ||
        !integer("validations", &validations_))
      return data_error("the early-stopping state is damaged");
    if (const auto metrics = json.find("metrics"); metrics != json.end() && metrics->is_object())
      for (const auto& [name, value] : metrics->items())
        if (value.is_number()) latest_[name] = value.get<double>();
    std::optional<double> best;
    if (json.contains("best") && json["best"].is_number()) best = json["best"].get<double>();
    early_stopping_.restore(best, checks);
  }
  summary_.last_loss = state_.last_train_loss;
  if (validations_ > 0) summary_.last_monitor = state_.last_monitor;
  return restore_position();
}

Status Trainer::restore_position() {
  const std::string& cursor = state_.data_cursor_json;
  if (!cursor.empty()) AERIE_RETURN_IF_ERROR(parts_.train->restore_counts(cursor));
  // A checkpoint taken at the very end of an epoch points at the start of the next one.
  bool over = position_.batch > 0 && state_.epoch_batches > 0
                  ? position_.batch >= state_.epoch_batches
                  : position_.batch >= cadence_.batches_per_epoch();
  // At the start of an epoch the cursor may still be that of the one before: a run that was
  // finished there never began the next, and may have been given more steps since.
  if (!cursor.empty() && position_.batch > 0 && !(over && state_.epoch_batches > 0)) {
    const Status restored = parts_.train->restore(cursor);
    // Earlier versions do not say how many batches the epoch had: one that is over needs no cursor.
    if (!restored.ok() && !over) return restored;
    if (restored.ok()) {
      // With other batches than before the source counts anew; optimizer steps go on.
      const EpochPosition at = parts_.train->position();
      position_.batch = position_.window_start = at.batch;
      position_.epoch_batches = cadence_.limited(at.batches);
      if (position_.batch < position_.epoch_batches) return ok_status();
      over = true;
    }
  }
  if (over) {
    // The epoch ends after the validation that is still to come.
    if (state_.validation_pending) {
      position_.epoch_batches = position_.window_start = position_.batch;
      return ok_status();
    }
    position_.batch = 0;
    ++position_.epoch;
    parts_.rates->after_epoch(summary_.last_loss, summary_.last_monitor);
  }
  return start_epoch();
}

Status Trainer::start_epoch() {
  AERIE_RETURN_IF_ERROR(parts_.train->start_epoch(position_.epoch));
  position_.window_start = position_.batch;
  position_.epoch_batches =
      std::max<int64_t>(1, cadence_.limited(parts_.train->position().batches));
  return ok_status();
}

TrainState Trainer::current_state() {
  TrainState out = state_;
  out.step = position_.step;
  out.epoch = position_.epoch;
  out.batch_in_epoch = position_.batch;
  out.epoch_batches = position_.epoch_batches;
  out.micro_step = static_cast<uint64_t>(position_.total_batch);
  out.wall_s = wall_s();
  out.data_cursor_json = parts_.train->cursor_json();
  out.last_train_loss = summary_.last_loss;
  out.schedule_json = parts_.rates->state_json();
  out.guards_json = guards_.to_json();
  nlohmann::json early;
  early["checks"] = early_stopping_.checks_without_gain();
  early["validations"] = validations_;
  if (early_stopping_.best()) early["best"] = *early_stopping_.best();
  for (const auto& [name, value] : latest_)
    if (std::isfinite(value)) early["metrics"][name] = value;
  out.early_stopping_json = early.dump();
  out.finished = cadence_.finished(position_);
  return out;
}

void Trainer::write_record(const metrics::Record& record) {
  if (parts_.listener != nullptr && record.kind() != metrics::RecordKind::kEvent)
    parts_.listener->after_record(record);
  if (parts_.metrics == nullptr) return;
  const Status status = parts_.metrics->write(record);
  if (!status.ok()) {
    if (!disk_trouble_)
      log_warn("train",
               "cannot write metrics, training goes on and will try again: ", status.to_string());
    disk_trouble_ = true;
  } else if (disk_trouble_) {
    disk_trouble_ = false;
    log_info("train", "metrics are being written again");
  }
}

void Trainer::event(const std::string& name, const std::function<void(metrics::Record&)>& fill) {
  metrics::Record record(metrics::RecordKind::kEvent, position_.step, position_.epoch, wall_s());
  record.add("event", name);
  fill(record);
  write_record(record);
}

// Where the loader's time went so far, for `aerie doctor`. Rank 0's, as all of metrics.jsonl.
void Trainer::loader_event() {
  last_loader_event_s_ = parts_.clock->monotonic_s();
  const std::optional<data::LoaderStats> stats = parts_.train->stats();
  if (parts_.metrics == nullptr || !stats) return;
  event("loader", [&](metrics::Record& record) {
    record.add("limit", stats->bottleneck())
        .add("workers", stats->workers)
        .add("loader_s", stats->wall_s)
        .add("batches", static_cast<int64_t>(stats->batches))
        .add("read_busy_s", stats->read.busy_s)
        .add("read_bytes", stats->read.bytes)
        .add("read_wait_share", stats->read_wait_share);
    if (!stats->words.side.empty())
      record.add("side", stats->words.side).add("side_busy_s", stats->side.busy_s);
    record.add("finish", stats->words.finish)
        .add("finish_busy_s", stats->finish.busy_s)
        .add("batch_bytes", stats->finish.bytes)
        .add("blocked_s", stats->blocked_s)
        .add("starved_s", stats->starved_s)
        .add("consumer_wait_s", stats->consumer_wait_s)
        .add("consumer_work_s", stats->consumer_work_s)
        .add("batches_ready", static_cast<int64_t>(stats->ring_ready))
        .add("batches_ahead", static_cast<int64_t>(stats->ring_slots))
        .add("process_cpu_s", process_cpu_s());
    if (!stats->storage.empty()) record.add("storage", stats->storage);
    if (stats->left_out > 0) record.add("left_out", static_cast<int64_t>(stats->left_out));
  });
}

// The last line of a run in metrics.jsonl: how it ended, and whether its latest steps were sound.
void Trainer::end_event(const Status& status) {
  event("end", [&](metrics::Record& record) {
    record.add("reason", status.ok() ? stop_reason_name(summary_.reason) : "failed");
    if (!status.ok()) record.add("message", status.to_string());
    if (status.ok() && !summary_.why.empty()) record.add("why", summary_.why);
    record.add("healthy", !guards_.health().unhealthy());
    if (const std::string health = guards_.health().sentence(); !health.empty())
      record.add("health", health);
  });
}

void Trainer::stop_with(StopReason reason, std::string why) {
  summary_.reason = reason;
  summary_.why = std::move(why);
  stop_ = true;
  log_info("train", stop_sentence(stop_reason_name(reason), position_.step, summary_.why));
}

Result<TrainSummary> Trainer::run() {
  start_s_ = last_step_done_s_ = last_interval_save_s_ = last_loader_event_s_ =
      parts_.clock->monotonic_s();
  // Phases of the steps are always timed; a caller that wants a trace has begun a recording.
  struct Recording {
    const bool mine = !spans_on();
    Recording() {
      if (mine) start_spans();
    }
    ~Recording() {
      if (mine) stop_spans();
    }
  } const recording;
  const config::TrainerConfig& trainer = parts_.config->trainer;
  const config::ExpManagerConfig& exp = parts_.config->exp_manager;
  AERIE_RETURN_IF_ERROR(restore_parts());
  if (!cadence_.note().empty()) log_info("train", cadence_.note());

  const bool fresh = state_.step == 0 && state_.micro_step == 0;
  if (cadence_.resumes_inside_window(position_))
    log_warn("train", "step ", position_.step, " is no multiple of accumulate_grad_batches (",
             trainer.accumulate_grad_batches,
             "): the first update has fewer batches, as the gradients before it are lost");
  if (fresh && trainer.num_sanity_val_steps != 0 && trainer.fast_dev_run == 0)
    AERIE_RETURN_IF_ERROR(validate(/*sanity=*/true));
  const bool caught_up = state_.validation_pending;
  if (caught_up) {
    // A signal ended the validation before this checkpoint: what comes after the window is left to
    // do as well.
    AERIE_RETURN_IF_ERROR(validate(/*sanity=*/false));
    if (!state_.validation_pending) {
      AERIE_RETURN_IF_ERROR(save_after_validation(position_.epoch));
      AERIE_RETURN_IF_ERROR(after_window());
    }
  } else if (!fresh && !exp.disable_validation_on_resume && cadence_.validate_after(position_)) {
    // The process may have been killed in the middle of a validation.
    AERIE_RETURN_IF_ERROR(validate(/*sanity=*/false));
    if (!state_.validation_pending) AERIE_RETURN_IF_ERROR(save_after_validation(position_.epoch));
  }

  AERIE_RETURN_IF_ERROR(vote());
  stop_on_signal();
  if (!stop_ && !fresh && !caught_up && cadence_.finished(position_))
    stop_with(StopReason::kAlreadyFinished, cadence_.limit_key(position_));

  Status status;
  while (!stop_ && !cadence_.finished(position_)) {
    status = train_step();
    if (status.ok() && parts_.may_go_on) status = parts_.may_go_on();
    if (!status.ok()) break;
    stop_on_signal();
    // NeMo's limit of one run ends it at once, Lightning's limit of all runs only past min_steps.
    if (!stop_ && decided(RankVotes::kRunTimeOver) != 0)
      stop_with(StopReason::kTimeLimit, "exp_manager.max_time_per_run");
    if (!stop_wanted_ && decided(RankVotes::kTotalTimeOver) != 0) {
      stop_wanted_ = StopReason::kTimeLimit;
      stop_wanted_why_ = "trainer.max_time";
    }
    if (!stop_ && stop_wanted_) status = stop_if_wanted();
    if (!status.ok()) break;
  }
  enter(dist::Phase::kFinish);
  if (status.ok()) status = collect(/*wait=*/true);
  if (status.ok() && trainer.fast_dev_run > 0) summary_.reason = StopReason::kFastDevRun;
  // Whatever ended the loop, the last step is saved once, unless a validation just saved it and
  // that worked.
  if (parts_.checkpointer != nullptr) {
    (void)parts_.checkpointer->drain();
    take_save_reports();
  }
  if (status.ok()) status = vote();
  const bool untrained = summary_.reason == StopReason::kSignal && position_.total_batch == 0;
  if (untrained) log_info("train", "nothing was trained yet: there is nothing to save");
  if (status.ok() && saves() && !untrained &&
      (position_.step != state_.last_saved_step ||
       (state_.validation_pending && !saved_pending_))) {
    const SaveReason reason = summary_.reason == StopReason::kSignal      ? SaveReason::kSignal
                              : summary_.reason == StopReason::kTimeLimit ? SaveReason::kTimeLimit
                                                                          : SaveReason::kTrainEnd;
    // Lightning also ends an epoch that max_steps cut short.
    const config::CheckpointCallbackConfig& params = exp.checkpoint_callback_params;
    const bool ends_epoch = params.save_on_train_epoch_end && reason == SaveReason::kTrainEnd &&
                            position_.batch > 0 && epoch_counts(position_.epoch);
    status = save(reason, ends_epoch ? metric(params.monitor) : std::nullopt);
  }
  if (parts_.checkpointer != nullptr) {
    const Status drained = parts_.checkpointer->drain();
    take_save_reports();
    if (status.ok()) status = drained;
  }
  summary_.train_s = parts_.clock->monotonic_s() - start_s_;
  summary_.state = current_state();
  summary_.best_monitor = early_stopping_.best();
  summary_.health = guards_.health();
  loader_event();
  end_event(status);
  const Status synced = parts_.metrics == nullptr ? ok_status() : parts_.metrics->sync();
  if (!synced.ok()) log_warn("train", "metrics could not be written: ", synced.to_string());
  if (parts_.tensorboard != nullptr) (void)parts_.tensorboard->flush();
  if (!status.ok()) return status;
  return summary_;
}

void Trainer::stop_on_signal() {
  const int signal = static_cast<int>(decided(RankVotes::kSignal));
  if (signal == 0) return;
  summary_.signal = signal;
  event("signal", [&](metrics::Record& record) { record.add("signal", signal); });
  stop_with(StopReason::kSignal, signal_name(signal));
}

// Lightning's order: steps and epochs that were promised come first, then one last validation.
Status Trainer::stop_if_wanted() {
  const config::TrainerConfig& trainer = parts_.config->trainer;
  // min_steps alone stands for one whole epoch, too.
  if (position_.epoch < trainer.min_epochs.value_or(trainer.min_steps ? 1 : 0) ||
      position_.step < trainer.min_steps.value_or(0)) {
    if (!hold_told_)
      log_info("train", "stopping is put off until min_epochs and min_steps are reached");
    hold_told_ = true;
    return ok_status();
  }
  stop_with(*stop_wanted_, stop_wanted_why_);
  if (*stop_wanted_ != StopReason::kTimeLimit || validated_step_ == position_.step ||
      !cadence_.validates_in_epoch(position_.epoch))
    return ok_status();
  AERIE_RETURN_IF_ERROR(collect(/*wait=*/true));
  AERIE_RETURN_IF_ERROR(validate(/*sanity=*/false));
  return state_.validation_pending ? ok_status() : save_after_validation(position_.epoch);
}

std::optional<double> Trainer::metric(const std::string& name) const {
  const auto found = latest_.find(name);
  return found == latest_.end() ? std::nullopt : std::optional(found->second);
}

Status Trainer::train_step() {
  const int64_t window = cadence_.next_window(position_);
  AERIE_RETURN_IF_ERROR(submit_window(window));
  AERIE_RETURN_IF_ERROR(collect(parts_.engine->max_in_flight() == 0));
  AERIE_RETURN_IF_ERROR(after_votes());
  // A signal ended the validation of this window: it and what follows are done on resume.
  if (state_.validation_pending) return ok_status();
  return after_window();
}

Status Trainer::after_window() {
  if (const auto epoch = std::exchange(save_validation_of_, std::nullopt))
    AERIE_RETURN_IF_ERROR(save_after_validation(*epoch));
  if (const auto epoch = std::exchange(save_epoch_of_, std::nullopt))
    AERIE_RETURN_IF_ERROR(save_after_epoch(*epoch));
  AERIE_RETURN_IF_ERROR(interval_saves());
  if (decided(RankVotes::kRetrySave) != 0 && position_.step != state_.last_saved_step) {
    votes_.settle(RankVotes::kRetrySave);
    log_info("train", "trying again to write a checkpoint");
    AERIE_RETURN_IF_ERROR(save(SaveReason::kInterval, std::nullopt));
  }
  if (position_.batch >= position_.epoch_batches) AERIE_RETURN_IF_ERROR(end_of_epoch());
  take_save_reports();
  return ok_status();
}

// One optimizer step. A validation or the end of an epoch may fall inside the window, which is then
// submitted in parts.
Status Trainer::submit_window(int64_t window) {
  StepInfo info;
  std::string sample_ids;
  StepRequest request;
  request.step = position_.step;
  request.accumulate = cadence_.loss_divisor(position_);
  // mmcv sets the rate before every micro-batch: an update sees that of its last one.
  const int64_t rate_step = position_.step + cadence_.steps_of(window) - 1;
  request.learning_rates = parts_.rates->at(rate_step);
  request.momentum = parts_.rates->momentum_at(rate_step);
  set_span_step(position_.step + 1);
  info.learning_rate = request.learning_rates.front();
  info.momentum = request.momentum;

  int64_t done = 0;
  bool validate_now = false;
  while (done < window) {
    // Only where steps are micro-batches: Lightning's windows end with the epoch.
    if (position_.batch >= position_.epoch_batches) AERIE_RETURN_IF_ERROR(end_of_epoch());
    info.epoch = position_.epoch;
    std::vector<const data::Batch*> part;
    int64_t samples = 1;  // of the largest micro-batch
    request.first_micro_step = static_cast<uint64_t>(position_.total_batch);
    while (done < window && position_.batch < position_.epoch_batches && !validate_now) {
      const double before = parts_.clock->monotonic_s();
      enter(dist::Phase::kData);
      SpanScope wait(kPhaseDataWait);
      auto next = parts_.train->next();
      wait.end();
      const double waited = parts_.clock->monotonic_s() - before;
      info.data_wait_s += waited;
      summary_.data_wait_s += waited;
      if (!next.ok()) return next.status();
      if (*next == nullptr)
        return internal_error(str_cat("the loader ended after ", position_.batch, " of ",
                                      position_.epoch_batches, " batches"));
      part.push_back(*next);
      const BatchSummary summary = parts_.train->summary(**next);
      info.amount += summary.amount;
      samples = std::max(samples, summary.samples);
      info.padding_share += summary.padding_share / static_cast<double>(window);
      sample_ids += sample_ids.empty() ? summary.sample_ids : str_cat(" | ", summary.sample_ids);
      position_.in_window = ++done;
      ++position_.batch;
      ++position_.total_batch;
      validate_now = cadence_.validate_after(position_);
    }
    // Epochs may have fewer batches than the first one had.
    if (position_.batch >= position_.epoch_batches && cadence_.last_epoch(position_)) window = done;
    request.micro_batches = part;
    request.finish = done == window;
    AERIE_RETURN_IF_ERROR(submit_with_split(request, samples));
    for (const data::Batch* batch : part) parts_.train->release(batch);
    if (request.finish) {
      AERIE_RETURN_IF_ERROR(share_amounts(info));
      info.width = cadence_.steps_of(window);
      position_.step += info.width;
      position_.in_window = 0;
      last_width_ = info.width;
      info.step = position_.step;
      in_flight_.push_back({info, std::move(sample_ids), request.step});
    }
    if (validate_now) {
      validate_now = false;
      AERIE_RETURN_IF_ERROR(collect(/*wait=*/true));
      if (request.finish) {
        // What goes on from a checkpoint that comes before the validation has that to do first.
        state_.validation_pending = true;
        AERIE_RETURN_IF_ERROR(interval_saves());
        state_.validation_pending = false;
      }
      AERIE_RETURN_IF_ERROR(validate(/*sanity=*/false));
      // The rest of the window is finished first: half of it cannot be saved.
      if (state_.validation_pending) continue;
      // A checkpoint inside a window would lose the gradients gathered so far: it is taken when the
      // step is done.
      if (request.finish) {
        AERIE_RETURN_IF_ERROR(save_after_validation(position_.epoch));
      } else {
        save_validation_of_ = position_.epoch;
      }
    }
  }
  return ok_status();
}

Status Trainer::submit_with_split(StepRequest& request, int64_t samples) {
  while (true) {
    request.split = state_.split;
    bool asked = false;
    if (parts_.ranks != nullptr)
      request.agree = [&](const Status& own) -> Status {
        asked = true;
        const bool short_of_memory = own.code() == StatusCode::kOutOfMemory;
        if (!own.ok() && !short_of_memory) return own;
        AERIE_RETURN_IF_ERROR(vote(short_of_memory, samples));
        if (!own.ok() || decided(RankVotes::kOutOfMemory) == 0) return own;
        return out_of_memory("another rank has no memory left");
      };
    enter(dist::Phase::kForward);
    Status status = parts_.engine->submit(request);
    if (parts_.ranks != nullptr && !asked) {
      // It meets the others inside: one that stops half way ends all of them.
      AERIE_RETURN_IF_ERROR(status);
      AERIE_RETURN_IF_ERROR(vote());
    }
    if (status.code() != StatusCode::kOutOfMemory) return status;
    if (parts_.ranks != nullptr) samples = decided(RankVotes::kSamples);
    if (parts_.config->aerie.on_oom == config::OnOom::kStop)
      return Status(status).with_hint(
          str_cat(parts_.task.smaller_batch, ", or set aerie.on_oom=split"));
    // Parts of one sample cannot be cut any further.
    if (state_.split >= samples)
      return out_of_memory(str_cat("step ", request.step + 1,
                                   " does not fit into memory, even one ", parts_.task.sample,
                                   " at a time with recomputed activations: ", status.message()))
          .with_hint(str_cat(parts_.task.smaller_sample,
                             ", use a smaller model, or free memory that other programs hold"));
    state_.split = std::min(state_.split * 2, samples);
    event("oom", [&](metrics::Record& record) {
      record.add("split", state_.split).add("message", status.message());
    });
    log_warn("train", "out of memory at step ", request.step + 1, ": batches are cut into ",
             state_.split, " parts from now on (", status.message(), "); to avoid it, ",
             parts_.task.smaller_batch);
  }
}

Status Trainer::collect(bool wait) {
  SpanScope span(kPhaseReadBack);
  AERIE_ASSIGN_OR_RETURN(const std::vector<StepOutcome> outcomes, parts_.engine->collect(wait));
  span.end();
  if (!outcomes.empty()) {
    // Where results come late the times are those of all steps since the last results.
    phase_s_.clear();
    const double count = static_cast<double>(outcomes.size());
    for (const SpanTotal& total : take_thread_spans()) {
      phase_s_[total.name] += static_cast<double>(total.self_ns) * 1e-9 / count;
      summary_.phase_s[total.name] += static_cast<double>(total.self_ns) * 1e-9;
    }
    for (const SpanTotal& total : take_device_spans())
      phase_s_[total.name] = static_cast<double>(total.total_ns) * 1e-9 / count;
  }
  if (outcomes.empty()) return ok_status();
  // Steps that are collected together took the time since the last ones together.
  const double now = parts_.clock->monotonic_s();
  const double step_s = (now - last_step_done_s_) / static_cast<double>(outcomes.size());
  last_step_done_s_ = now;
  for (const StepOutcome& outcome : outcomes) AERIE_RETURN_IF_ERROR(after_outcome(outcome, step_s));
  return ok_status();
}

Status Trainer::after_outcome(const StepOutcome& outcome, double step_s) {
  AERIE_CHECK(!in_flight_.empty() && in_flight_.front().requested == outcome.step,
              "outcomes out of order");
  InFlight done = std::move(in_flight_.front());
  in_flight_.erase(in_flight_.begin());
  StepInfo& info = done.info;
  info.step_s = step_s;
  summary_.step_times.add(info.step, step_s, outcome.first_runs > 0);
  if (++summary_.steps == 1 && parts_.first_step) parts_.first_step();
  summary_.amount += info.amount;
  summary_.last_loss = outcome.loss;

  // A family may have batches without a loss (NeMo's empty mask): a number to log, not a failure.
  const bool no_loss = !outcome.skipped && outcome.without_loss > 0 && std::isnan(outcome.loss);
  GuardVerdict verdict;
  if (!no_loss) verdict = guards_.after_step(outcome);
  scale_overflow_ = std::isfinite(outcome.loss) && outcome.loss_scale != 1.0;

  latest_[parts_.task.train_loss] = outcome.loss;
  const bool log_now = cadence_.log_after_step(info.step, info.width);
  if (parts_.listener != nullptr) parts_.listener->after_step(outcome, info);
  reporter_.log(outcome, info, log_now, phase_s_, wall_s());
  // Records are rank 0's; each of the others has its log file.
  if (!leads(parts_.ranks) && log_now)
    log_info("train", "step ", info.step, ": ", parts_.task.train_loss, " ", outcome.loss,
             " on this rank");
  if (log_now && parts_.clock->monotonic_s() - last_loader_event_s_ >= kLoaderEventS)
    loader_event();
  if (parts_.progress) {
    // Validations and saves so far take their share of what is to come.
    const double elapsed = std::max(1e-9, parts_.clock->monotonic_s() - start_s_);
    parts_.progress(reporter_.progress(info, cadence_.planned_steps(), guards_.smoothed_loss(),
                                       (summary_.validation_s + summary_.save_block_s) / elapsed));
  }
  if (verdict.loss_spike || verdict.grad_spike) {
    event("spike", [&](metrics::Record& record) {
      record.add("train_loss", outcome.loss)
          .add("grad_norm", outcome.grad_norm)
          .add("loss_zscore", verdict.loss_zscore)
          .add("grad_zscore", verdict.grad_zscore)
          .add("samples", done.sample_ids);
    });
  }
  if (verdict.nonfinite) return on_nonfinite(outcome, done, verdict.give_up);
  return ok_status();
}

Status Trainer::on_nonfinite(const StepOutcome& outcome, const InFlight& step, bool give_up) {
  const StepInfo& info = step.info;
  const config::AerieConfig& aerie = parts_.config->aerie;
  nlohmann::json details;
  details["step"] = info.step;
  details["epoch"] = info.epoch;
  details["loss"] = std::isfinite(outcome.loss) ? nlohmann::json(outcome.loss)
                                                : nlohmann::json(str_cat(outcome.loss));
  details["grad_norm"] = std::isfinite(outcome.grad_norm)
                             ? nlohmann::json(outcome.grad_norm)
                             : nlohmann::json(str_cat(outcome.grad_norm));
  details["micro_losses"] = nlohmann::json::array();
  for (const double loss : outcome.micro_losses) details["micro_losses"].push_back(str_cat(loss));
  details["loss_scale"] = outcome.loss_scale;
  details["learning_rate"] = info.learning_rate;
  details["samples"] = step.sample_ids;
  details["in_a_row"] = guards_.nonfinite_in_a_row();
  if (parts_.write_nonfinite) {
    const Status written = parts_.write_nonfinite(
        info.step, details.dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
    if (!written.ok()) AERIE_LOG_EVERY_S(warn, 60.0, "train", written.to_string());
  }
  event("nan", [&](metrics::Record& record) {
    record.add("bad_step", info.step)
        .add("in_a_row", guards_.nonfinite_in_a_row())
        .add("loss_scale", outcome.loss_scale)
        .add("samples", step.sample_ids);
  });
  static LogLimiter limiter(10.0, 3);
  limiter.warn("nonfinite", "train", "step ", info.step, ": loss ", outcome.loss,
               ", gradient norm ", outcome.grad_norm,
               "; the step is skipped (details in nonfinite/step_", info.step, ".json)");
  if (aerie.on_nan == config::OnNan::kStop)
    return Status(StatusCode::kInternal,
                  str_cat("step ", info.step, " is not finite and aerie.on_nan is stop"))
        .with_hint(nonfinite_advice(parts_.task));
  if (!give_up) return ok_status();
  if (aerie.on_nan == config::OnNan::kFallback) {
    // Ranks see their results at different times: they fall back after the next vote.
    fall_back_wanted_ = true;
    return parts_.ranks == nullptr ? fall_back() : ok_status();
  }
  return give_up_on_nonfinite();
}

Status Trainer::give_up_on_nonfinite() const {
  return Status(StatusCode::kInternal,
                str_cat(guards_.nonfinite_in_a_row(), " steps in a row were not finite"))
      .with_hint(nonfinite_advice(parts_.task));
}

Status Trainer::fall_back() {
  fall_back_wanted_ = false;
  const auto precision = parts_.engine->fall_back_precision();
  if (!precision.ok()) return give_up_on_nonfinite();
  state_.precision = *precision;
  guards_.forgive();
  event("fallback", [&](metrics::Record& record) { record.add("precision", *precision); });
  log_warn("train", parts_.config->aerie.max_nan_in_a_row,
           " steps in a row were not finite: going on in ", *precision);
  return ok_status();
}

Status Trainer::end_of_epoch() {
  const config::ExpManagerConfig& exp = parts_.config->exp_manager;
  AERIE_RETURN_IF_ERROR(collect(/*wait=*/true));
  if (early_stopping_.at_epoch_ends(parts_.config->trainer))
    AERIE_RETURN_IF_ERROR(check_early_stopping());
  if (exp.checkpoint_callback_params.save_on_train_epoch_end) {
    if (position_.in_window > 0)
      save_epoch_of_ = position_.epoch;
    else
      AERIE_RETURN_IF_ERROR(save_after_epoch(position_.epoch));
  }
  position_.batch = 0;
  ++position_.epoch;
  // Schedules that follow the loss need the same one everywhere.
  AERIE_ASSIGN_OR_RETURN(summary_.last_loss, loss_of_ranks());
  parts_.rates->after_epoch(summary_.last_loss, summary_.last_monitor);
  if (cadence_.finished(position_)) return ok_status();
  return start_epoch();
}

}  // namespace aerie::train
