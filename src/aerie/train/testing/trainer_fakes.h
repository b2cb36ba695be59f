// The loop's parts as tests put them in: batches are numbers, the model is a hash of what it saw.
#pragma once

#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aerie/base/strings.h"
#include "aerie/train/trainer.h"

namespace aerie::train {

// Batches are numbers; the loop only passes their addresses on.
class FakeSource final : public BatchSource {
 public:
  explicit FakeSource(int64_t batches)
      : storage_(static_cast<size_t>(batches)), batches_(batches) {}
  int64_t batches_per_epoch() const override { return batches_; }
  Result<const data::Batch*> next() override {
    if (next_ >= batches_) return static_cast<const data::Batch*>(nullptr);
    ++held;
    return reinterpret_cast<const data::Batch*>(&storage_[static_cast<size_t>(next_++)]);
  }
  void release(const data::Batch*) override { --held; }
  Status start_epoch(int64_t epoch) override {
    epoch_ = epoch;
    next_ = 0;
    if (!per_epoch.empty()) batches_ = per_epoch[static_cast<size_t>(epoch) % per_epoch.size()];
    return ok_status();
  }
  EpochPosition position() const override { return {next_, batches_}; }
  Status restore_counts(const std::string&) override { return ok_status(); }
  BatchSummary summary(const data::Batch& batch) const override {
    return {2.0, 0.1, str_cat("e", epoch_, "b", index(batch)), 6};
  }
  std::string cursor_json() const override { return str_cat(epoch_, " ", next_, " ", batches_); }
  Status restore(const std::string& cursor) override {
    const auto parts = split(cursor, ' ');
    epoch_ = std::stoll(parts[0]);
    // With batches of another size the same share of the epoch is done.
    next_ = std::stoll(parts[1]) * batches_ / std::stoll(parts[2]);
    return ok_status();
  }
  int64_t index(const data::Batch& batch) const {
    return reinterpret_cast<const uint64_t*>(&batch) - storage_.data();
  }
  int64_t epoch() const { return epoch_; }

  int held = 0;
  std::vector<int64_t> per_epoch;  // batches, where epochs differ

 private:
  std::vector<uint64_t> storage_;  // as aligned as batches are
  int64_t batches_;
  int64_t epoch_ = 0;
  int64_t next_ = 0;
};

struct FakeSnapshot final : StateSnapshot {
  Status wait() override { return ok_status(); }
  const std::vector<SnapshotTensor>& tensors() const override { return list; }
  const std::string& scalars_json() const override { return scalars; }
  std::vector<SnapshotTensor> list;
  std::string scalars;
};

// A "model" whose weight is a running hash of everything it has seen, so that two runs agree only
// if they did the same.
class FakeEngine final : public Engine {
 public:
  FakeEngine(const FakeSource& source, int64_t in_flight)
      : source_(source), in_flight_(in_flight) {}
  std::string description() const override { return "fake"; }
  int64_t num_param_groups() const override { return 1; }
  int64_t num_parameters() const override { return 1; }
  int64_t max_in_flight() const override { return in_flight_; }
  Status submit(const StepRequest& request) override;
  Result<std::vector<StepOutcome>> collect(bool wait) override {
    std::vector<StepOutcome> out;
    if (wait && before_wait && !pending_.empty()) before_wait();
    while (!pending_.empty() && (wait || static_cast<int64_t>(pending_.size()) > in_flight_)) {
      out.push_back(pending_.front());
      pending_.erase(pending_.begin());
    }
    return out;
  }
  Result<EvalOutcome> evaluate(const data::Batch&, uint64_t seed, uint64_t position) override {
    EvalOutcome out;
    ++evaluated;
    out.loss = eval_loss + static_cast<double>(position);
    eval_seeds.push_back(seed);
    out.counted = !empty_eval.contains(position);
    out.sums = eval_sums;
    return out;
  }
  Status use_ema_weights(bool on) override {
    ema.push_back(on);
    return ok_status();
  }
  Result<std::unique_ptr<StateSnapshot>> snapshot() override {
    return std::unique_ptr<StateSnapshot>(std::make_unique<FakeSnapshot>());
  }
  Status join_snapshot() override {
    ++joined;
    return ok_status();
  }
  Status restore(const StateSource&) override { return ok_status(); }
  Result<std::string> fall_back_precision() override {
    precision = "bf16-mixed";
    return precision;
  }
  EngineMemory memory() const override { return {}; }

  std::function<void()> before_wait;  // steps in flight are waited for
  uint64_t weight = 0;
  int64_t needed_split = 1;
  std::map<int64_t, bool> bad_steps;
  bool always_bad = false;
  std::string precision = "16-mixed";
  double eval_loss = 5.0;
  std::vector<double> eval_sums;
  int64_t evaluated = 0;
  int64_t joined = 0;
  std::map<uint64_t, bool> empty_eval;
  std::vector<std::string> micro;
  std::vector<int64_t> windows, divisors, splits, tried_splits;
  std::vector<double> rates, momentums;
  std::vector<uint64_t> eval_seeds;
  std::vector<bool> ema;

 private:
  const FakeSource& source_;
  int64_t in_flight_;
  std::vector<double> losses_;
  std::vector<StepOutcome> pending_;
};

class FakeRates final : public LearningRates {
 public:
  std::vector<double> at(int64_t step) const override { return {static_cast<double>(step) * 0.5}; }
  std::optional<double> momentum_at(int64_t step) const override {
    return static_cast<double>(step) * 0.25;
  }
};

class FakeCheckpointer final : public Checkpointer {
 public:
  Status save(SaveRequest request, std::unique_ptr<StateSnapshot>) override {
    SaveReport report;
    report.step = request.state.step;
    report.stem = "saved";
    report.superseded = superseded;
    if (failures > 0) {
      --failures;
      report.status = io_error("disk full");
    }
    last = report.status;
    reports.push_back(std::move(report));
    saves.push_back(std::move(request));
    return ok_status();
  }
  std::vector<SaveReport> take_reports() override { return std::exchange(reports, {}); }
  Status drain() override { return last; }
  std::vector<SaveRequest> saves;
  std::vector<SaveReport> reports;
  int failures = 0;        // so many saves fail
  int64_t superseded = 0;  // that every report tells of
  Status last;
};

struct FakeRun {
  explicit FakeRun(int64_t batches, int64_t val_batches = 0, int64_t in_flight = 0);
  Result<TrainSummary> go(TrainState start = {});
  std::vector<metrics::Record> records(metrics::RecordKind kind);

  std::unique_ptr<Env> env;
  config::LoopConfig config;
  FakeSource train, val;
  FakeEngine engine;
  FakeRates rates;
  FakeCheckpointer checkpointer;
  metrics::MetricsLog log;
  FakeClock clock;
  int64_t signal_after = std::numeric_limits<int64_t>::max();
  int64_t signal_after_evaluated = std::numeric_limits<int64_t>::max();
  double seconds_per_step = 0.0;
  TaskInfo task;
  std::map<int64_t, std::string> nonfinite;
  std::function<void(TrainerParts&)> adjust;  // may be empty
};

}  // namespace aerie::train
