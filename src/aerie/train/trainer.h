// The training loop. Model-independent: it moves batches from a source into an engine, validates,
// logs, saves and stops.
//
// Everything it touches is handed in, so that a test can run it with fakes; every decision that
// ranks of a data-parallel run must take together (stop, split, save, fall back) is voted on once a
// step (RankVotes); what follows from counters alone is the same everywhere anyway. Rank 0 writes.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aerie/base/clock.h"
#include "aerie/base/status.h"
#include "aerie/checkpoint/train_state.h"
#include "aerie/config/schema/loop_config.h"
#include "aerie/metrics/metrics_log.h"
#include "aerie/metrics/nvml.h"
#include "aerie/metrics/run_end.h"
#include "aerie/metrics/tfevents_writer.h"
#include "aerie/train/batch_source.h"
#include "aerie/train/cadence.h"
#include "aerie/train/checkpointer.h"
#include "aerie/train/early_stopping.h"
#include "aerie/train/engine.h"
#include "aerie/train/evaluate.h"
#include "aerie/train/guards.h"
#include "aerie/train/learning_rates.h"
#include "aerie/train/rank_talk.h"
#include "aerie/train/run_listener.h"
#include "aerie/train/step_reporter.h"
#include "aerie/train/step_times.h"

namespace aerie::train {

using metrics::stop_reason_name;
using metrics::stop_sentence;
using metrics::StopReason;

struct TrainerParts {
  TaskInfo task;
  const config::LoopConfig* config = nullptr;
  Engine* engine = nullptr;
  BatchSource* train = nullptr;
  std::vector<ValidationSet> validation;
  size_t monitored_set = 0;  // val_dl_idx
  LearningRates* rates = nullptr;
  metrics::MetricsLog* metrics = nullptr;          // null: another rank writes
  metrics::TfEventsWriter* tensorboard = nullptr;  // may be null
  metrics::NvmlSampler* nvml = nullptr;            // may be null
  RunListener* listener = nullptr;                 // may be null
  Checkpointer* checkpointer = nullptr;            // may be null: nothing is saved here
  bool joins_saves = false;                        // of another rank
  CheckpointRules checkpoint_rules;
  Clock* clock = nullptr;
  std::function<int()> stop_signal;  // number of a signal that asks to stop, 0 otherwise
  // An error ends the run without saving: the folder belongs to somebody else now. May be empty.
  std::function<Status()> may_go_on;
  // What a terminal shows; called from the loop's thread after every step. May be empty.
  std::function<void(const ui::ProgressInfo&)> progress;
  // Called when the first step of this process is done. May be empty.
  std::function<void()> first_step;
  // After a validation whose numbers count, with the result of the monitored set. An error is only
  // a warning: the run does not hang on its pictures. May be empty.
  std::function<Status(int64_t step, const SetResult& monitored)> after_validation;
  // Writes nonfinite/step_N.json; may be empty.
  std::function<Status(int64_t step, const std::string& json)> write_nonfinite;
  dist::ProcessGroup* ranks = nullptr;  // that train together; null: this process alone
};

// Totals for the report and the closing lines.
struct TrainSummary {
  metrics::StopReason reason = metrics::StopReason::kFinished;
  int signal = 0;
  int64_t steps = 0;  // done in this process
  TrainState state;
  double train_s = 0.0;      // wall time inside the loop
  double data_wait_s = 0.0;  // of it, waiting for batches
  double validation_s = 0.0;
  double save_block_s = 0.0;
  double amount = 0.0;  // of input, as TaskInfo::amount counts it
  double last_loss = 0.0;
  std::optional<double> last_monitor, best_monitor;
  std::map<std::string, double> phase_s;  // time in the named phases, by the loop's thread
  StepTimes step_times;
  metrics::StepHealth health;
  std::string why;  // of a stop: "SIGTERM", "val_loss did not improve ..."; may be empty
};
class Trainer {
 public:
  Trainer(TrainerParts parts, Cadence cadence, TrainState start);

  // Runs to the end, a limit or a signal. An error means that the run failed; what could be saved
  // was saved.
  Result<TrainSummary> run();

 private:
  // A step that was submitted and not yet collected.
  struct InFlight {
    StepInfo info;
    std::string sample_ids;
    int64_t requested = 0;  // StepRequest::step
  };

  Status restore_parts();
  Status restore_position();
  Status start_epoch();
  Status train_step();
  // What follows the steps of a window: saves, the end of an epoch.
  Status after_window();
  Status submit_window(int64_t window);
  Status submit_with_split(StepRequest& request, int64_t samples);
  Status collect(bool wait);
  Status after_outcome(const StepOutcome& outcome, double step_s);
  Status on_nonfinite(const StepOutcome& outcome, const InFlight& info, bool give_up);
  // A signal ends it after the batch at hand: state_.validation_pending is set then, and nothing
  // else of the validation counts.
  Status validate(bool sanity);
  void write_validation_timing(const std::vector<SetResult>& results,
                               const std::vector<double>& batch_s, double time);
  Status end_of_epoch();
  // `top_k` false: it becomes the last one, never one of the best.
  // `asked_s`: when the loop began to wait for it, if that was before the call.
  Status save(SaveReason reason, std::optional<double> monitor, bool top_k = true,
              std::optional<double> asked_s = std::nullopt, int64_t epochs_done = 0);
  bool epoch_counts(int64_t epoch) const;  // every_n_epochs
  Status save_for_best(SaveReason reason, int64_t epoch);
  Status save_after_validation(int64_t epoch);
  Status save_after_epoch(int64_t epoch);
  Status interval_saves();
  bool healthy() const;  // what a save says of the latest step
  Status stop_if_wanted();
  void stop_on_signal();
  // Ranks (trainer_ranks.cc). What this one has to say; the answers; one of them, or at one rank
  // what it is right now.
  int64_t opinion(RankVotes::Question question) const;
  Status vote(bool out_of_memory = false, int64_t samples = 0);
  int64_t decided(RankVotes::Question question) const;
  bool saves() const { return parts_.checkpointer != nullptr || parts_.joins_saves; }
  Status share_bad_samples(BatchSource& source);
  Status share_amounts(StepInfo& info);
  Status report_stragglers();
  // What follows from the votes of a window.
  Status after_votes();
  Result<double> loss_of_ranks();  // of the latest step: their mean
  Status fall_back();
  Status give_up_on_nonfinite() const;
  void enter(dist::Phase phase);
  // The latest value of a metric the run knows: train_loss, val_loss, <stem>_val_loss.
  std::optional<double> metric(const std::string& name) const;
  Status check_early_stopping();
  void take_save_reports();
  void write_record(const metrics::Record& record);
  void event(const std::string& name, const std::function<void(metrics::Record&)>& fill);
  void end_event(const Status& status);
  void loader_event();
  void stop_with(metrics::StopReason reason, std::string why);
  double wall_s() const;
  TrainState current_state();

  TrainerParts parts_;
  Cadence cadence_;
  TrainState state_;
  Position position_;
  Guards guards_;
  EarlyStopping early_stopping_;
  StepReporter reporter_;
  TrainSummary summary_;
  std::vector<InFlight> in_flight_;
  double start_s_ = 0.0;
  double last_step_done_s_ = 0.0;
  double last_loader_event_s_ = 0.0;
  // A save that fell inside a window comes when the window is done: the epoch that asked for it.
  std::optional<int64_t> save_validation_of_, save_epoch_of_;
  bool saved_pending_ = false;  // what the newest checkpoint says about a validation to come
  bool stop_ = false;
  // Asked for by a rule that min_steps and min_epochs may hold back.
  std::optional<metrics::StopReason> stop_wanted_;
  std::string stop_wanted_why_;
  bool hold_told_ = false;
  int64_t validated_step_ = -1;
  std::map<std::string, double> latest_;   // metrics by name
  double last_interval_save_s_ = 0.0;      // train_time_interval
  std::map<std::string, double> phase_s_;  // of the step that was just collected
  int64_t validations_ = 0;
  int64_t last_width_ = 1;              // steps that the latest update stands for
  std::vector<int64_t> timed_batches_;  // of each validation set, in this process
  bool scale_overflow_ = false;         // the latest step's loss was finite and scaled
  bool disk_trouble_ = false;
  std::optional<double> retry_save_at_s_;  // a checkpoint could not be written
  int64_t superseded_saves_ = 0;           // not recorded yet
  RankVotes votes_;
  bool fall_back_wanted_ = false;
  double vote_wait_s_ = 0.0;
  RankTimes reported_;  // totals when the last report was made
  RankWindow rank_window_;
};

}  // namespace aerie::train
