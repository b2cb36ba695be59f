// The loop's validations: one pass over the sets, its numbers in records and logs, early stopping.
#include <algorithm>
#include <utility>

#include "aerie/base/log.h"
#include "aerie/base/spans.h"
#include "aerie/base/strings.h"
#include "aerie/train/measure.h"
#include "aerie/train/trainer.h"

namespace aerie::train {

namespace {

// Of one evaluation set, the loss first.
std::vector<std::pair<std::string, double>> numbers_of(const TaskInfo& task,
                                                       const SetResult& result) {
  std::vector<std::pair<std::string, double>> out{{task.eval_loss, result.all.mean_loss()}};
  if (task.eval_metrics)
    for (auto& number : task.eval_metrics(result.all)) out.push_back(std::move(number));
  return out;
}

}  // namespace

Status Trainer::validate(bool sanity) {
  if (!sanity) state_.validation_pending = false;
  if (parts_.validation.empty()) return ok_status();
  const double start = parts_.clock->monotonic_s();
  const config::LoopConfig& config = *parts_.config;
  const dist::PhaseScope phase(parts_.ranks, dist::Phase::kValidate);
  SpanScope span(kPhaseValidation);
  const bool swap =
      config.exp_manager.ema.enable && !config.exp_manager.ema.validate_original_weights;
  if (swap) AERIE_RETURN_IF_ERROR(parts_.engine->use_ema_weights(true));
  // A fixed seed makes val_loss comparable between validations and runs; NeMo draws afresh each
  // time.
  const bool fixed = config.aerie.validation_seed == config::ValidationSeed::kFixed;
  EvaluateOptions options;
  options.seed = config.aerie.seed;
  options.round = fixed ? 0 : static_cast<uint64_t>(validations_ + 1);
  if (sanity && config.trainer.num_sanity_val_steps > 0)
    options.max_batches = config.trainer.num_sanity_val_steps;
  ui::ProgressInfo progress;
  const int64_t step = cadence_.step_at(position_);
  progress.step = step;
  progress.planned_steps = cadence_.planned_steps();
  progress.activity = "validate";
  for (const ValidationSet& set : parts_.validation)
    progress.of +=
        options.max_batches >= 0 ? std::min(set.batches, options.max_batches) : set.batches;
  if (parts_.progress) parts_.progress(progress);
  std::vector<double> batch_s;
  double batch_start_s = parts_.clock->monotonic_s();
  options.after_batch = [&] {
    const double now = parts_.clock->monotonic_s();
    batch_s.push_back(now - std::exchange(batch_start_s, now));
    ++progress.done;
    if (parts_.progress) parts_.progress(progress);
  };
  bool asked = false;
  Status voted;
  options.stop = [&] {
    voted = vote();
    asked = voted.ok() && decided(RankVotes::kSignal) != 0;
    return asked || !voted.ok();
  };
  auto evaluated = evaluate_sets(*parts_.engine, parts_.validation, options);
  AERIE_RETURN_IF_ERROR(voted);
  const bool stopped = evaluated.status().code() == StatusCode::kCancelled && asked;
  if (!evaluated.ok() && !stopped) return evaluated.status();
  if (swap) AERIE_RETURN_IF_ERROR(parts_.engine->use_ema_weights(false));
  span.end();
  // Its phases are not those of a training step.
  for (const SpanTotal& total : take_thread_spans())
    summary_.phase_s[kPhaseValidation] += static_cast<double>(total.self_ns) * 1e-9;
  (void)take_device_spans();
  const double took = parts_.clock->monotonic_s() - start;
  last_step_done_s_ += took;
  summary_.validation_s += took;
  if (sanity) return ok_status();
  if (stopped) {
    state_.validation_pending = true;
    log_info("train", "step ", step, ": the validation was stopped after ", human_duration(took),
             "; it is done when the run is resumed");
    return ok_status();
  }
  std::vector<SetResult>& results = *evaluated;
  const std::vector<SetResult> own = results;
  if (parts_.ranks != nullptr) {
    AERIE_RETURN_IF_ERROR(merge_over_ranks(*parts_.ranks, results));
    for (const ValidationSet& set : parts_.validation)
      AERIE_RETURN_IF_ERROR(share_bad_samples(*set.source));
  }
  ++validations_;
  validated_step_ = position_.step;
  const size_t monitored = std::min(parts_.monitored_set, results.size() - 1);
  metrics::Record record(metrics::RecordKind::kVal, step, position_.epoch, wall_s());
  const std::vector<std::pair<std::string, double>> shown =
      numbers_of(parts_.task, results[monitored]);
  double monitor = shown.front().second;
  for (const auto& [name, value] : shown)
    if (name == parts_.task.monitor) monitor = value;
  std::vector<std::pair<std::string, double>> named = shown;
  if (results.size() > 1)
    for (size_t set = 0; set < results.size(); ++set)
      for (auto& [name, value] : numbers_of(parts_.task, results[set]))
        named.emplace_back(parts_.validation[set].name + name, value);
  for (const auto& [name, value] : named) {
    record.add(name, value);
    latest_[name] = value;
  }
  // Lightning logs what rank 0 saw.
  if (parts_.ranks != nullptr)
    record.add(parts_.task.eval_loss + "_rank0", own[monitored].all.mean_loss());
  record.add("validation_s", took);
  write_record(record);
  if (parts_.tensorboard != nullptr) {
    const double time = parts_.clock->wall_s();
    // Lightning numbers points by the steps before the current one.
    const int64_t x = std::max<int64_t>(0, step - (cadence_.window_open(position_) ? 0 : 1));
    for (const auto& [name, value] : named) parts_.tensorboard->scalar(name, value, x, time);
    parts_.tensorboard->scalar("epoch", static_cast<double>(position_.epoch), x, time);
    if (config.exp_manager.log_step_timing) write_validation_timing(own, batch_s, time);
    (void)parts_.tensorboard->flush();
  }
  std::string numbers;
  for (const auto& [name, value] : shown)
    numbers += str_cat(numbers.empty() ? "" : ", ", name, " ", value);
  log_info("train", "step ", step, ": ", numbers, " (", human_duration(took), ")");
  if (parts_.after_validation) {
    const double before = parts_.clock->monotonic_s();
    if (const Status status = parts_.after_validation(step, results[monitored]); !status.ok())
      log_warn("train", "step ", step, ": ", status.to_string());
    last_step_done_s_ += parts_.clock->monotonic_s() - before;
  }
  summary_.last_monitor = state_.last_monitor = monitor;
  if (!early_stopping_.at_epoch_ends(config.trainer)) AERIE_RETURN_IF_ERROR(check_early_stopping());
  return ok_status();
}

// NeMo's timer: one point a batch, numbered through the validations of the process, each set by
// itself.
void Trainer::write_validation_timing(const std::vector<SetResult>& results,
                                      const std::vector<double>& batch_s, double time) {
  timed_batches_.resize(results.size());
  size_t next = 0;
  for (size_t set = 0; set < results.size(); ++set) {
    const std::string tag = results.size() == 1
                                ? std::string("validation_step_timing in s")
                                : str_cat("validation_step_timing in s/dataloader_idx_", set);
    for (int64_t i = 0; i < results[set].all.batches() && next < batch_s.size(); ++i)
      parts_.tensorboard->scalar(tag, batch_s[next++], timed_batches_[set]++, time);
  }
}

// After a validation, or at the end of an epoch.
Status Trainer::check_early_stopping() {
  const config::EarlyStoppingConfig& rules =
      parts_.config->exp_manager.early_stopping_callback_params;
  const std::string& name = early_stopping_.metric();
  const std::optional<double> value = metric(name);
  if (!value) {
    // Without validation the run was told at its start that nothing will stop it.
    const bool validates = std::any_of(parts_.validation.begin(), parts_.validation.end(),
                                       [](const ValidationSet& set) { return set.batches > 0; });
    if (early_stopping_.enabled() && rules.strict && validates)
      return invalid_argument(str_cat("early stopping watches '", name,
                                      "', which was not logged before its first check"))
          .with_hint(
              "set exp_manager.early_stopping_callback_params.monitor=val_loss, or strict=false");
    if (early_stopping_.enabled())
      AERIE_LOG_ONCE(warn, "train", "early stopping watches '", name, "', which is not logged");
    return ok_status();
  }
  const std::string why = early_stopping_.check(*value);
  if (!why.empty()) {
    if (rules.verbose) log_info("train", "step ", position_.step, ": early stopping, ", why);
    event("early_stopping", [&](metrics::Record& record) { record.add("reason", why); });
  }
  int64_t stop = !why.empty() && parts_.config->trainer.fast_dev_run == 0 ? 1 : 0;
  if (parts_.ranks != nullptr) {
    // Losses of training differ between ranks: rank 0's count.
    if (!leads(parts_.ranks)) stop = 0;
    AERIE_RETURN_IF_ERROR(parts_.ranks->max(std::span(&stop, 1)));
  }
  if (stop != 0 && !stop_wanted_) {
    stop_wanted_ = StopReason::kEarlyStopping;
    stop_wanted_why_ = why;
  }
  return ok_status();
}

}  // namespace aerie::train
