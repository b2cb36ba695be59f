// Which checkpoints a run leaves behind, beside what NeMo 2.6.2 left under the same settings
// (tests/interop/retention_in_nemo.py recorded it): the whole loop and the real checkpointer, with
// scripted losses in place of a model.
#include <cmath>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/base/testing/mem_env.h"
#include "aerie/base/testing/paths.h"
#include "aerie/train/run_checkpointer.h"
#include "aerie/train/trainer.h"

namespace aerie::train {
namespace {

using Json = nlohmann::json;

class NoTensors final : public StateSnapshot {
 public:
  NoTensors() : list_{{"model", "w", Dtype::kF32, {1}, &value_, sizeof value_}} {}
  Status wait() override { return ok_status(); }
  const std::vector<SnapshotTensor>& tensors() const override { return list_; }
  const std::string& scalars_json() const override { return scalars_; }

 private:
  float value_ = 1.0f;
  std::vector<SnapshotTensor> list_;
  std::string scalars_ = "{}";
};

class CountedBatches final : public BatchSource {
 public:
  explicit CountedBatches(int64_t batches) : batches_(batches) {}
  int64_t batches_per_epoch() const override { return batches_; }
  Result<const data::Batch*> next() override {
    if (next_ >= batches_) return static_cast<const data::Batch*>(nullptr);
    ++next_;
    return reinterpret_cast<const data::Batch*>(this);
  }
  void release(const data::Batch*) override {}
  Status start_epoch(int64_t) override {
    next_ = 0;
    return ok_status();
  }
  EpochPosition position() const override { return {next_, batches_}; }
  Status restore_counts(const std::string&) override { return ok_status(); }
  BatchSummary summary(const data::Batch&) const override { return {}; }
  std::string cursor_json() const override { return str_cat(next_); }
  Status restore(const std::string& cursor) override {
    next_ = std::stoll(cursor);
    return ok_status();
  }

 private:
  int64_t batches_;
  int64_t next_ = 0;
};

// Gives the losses it is told: of the training steps by their number, of the validations in turn.
class ScriptedEngine final : public Engine {
 public:
  std::string description() const override { return "scripted"; }
  int64_t num_param_groups() const override { return 1; }
  int64_t num_parameters() const override { return 1; }
  int64_t max_in_flight() const override { return in_flight; }
  Status submit(const StepRequest& request) override {
    ++submitted;
    StepOutcome outcome;
    outcome.step = request.step;
    outcome.loss = train_losses[static_cast<size_t>(request.step) % train_losses.size()];
    outcome.skipped = !std::isfinite(outcome.loss);
    outcome.grad_norm = 1.0;
    pending_.push_back(outcome);
    return ok_status();
  }
  Result<std::vector<StepOutcome>> collect(bool wait) override {
    std::vector<StepOutcome> out;
    while (!pending_.empty() && (wait || static_cast<int64_t>(pending_.size()) > in_flight)) {
      out.push_back(pending_.front());
      pending_.erase(pending_.begin());
    }
    return out;
  }
  Result<EvalOutcome> evaluate(const data::Batch&, uint64_t, uint64_t) override {
    EvalOutcome out;
    out.loss = val_losses[validations++ % val_losses.size()];
    return out;
  }
  Status use_ema_weights(bool) override { return ok_status(); }
  Result<std::unique_ptr<StateSnapshot>> snapshot() override {
    return std::unique_ptr<StateSnapshot>(std::make_unique<NoTensors>());
  }
  Status restore(const StateSource&) override { return ok_status(); }
  Result<std::string> fall_back_precision() override { return unsupported("none"); }
  EngineMemory memory() const override { return {}; }

  int64_t in_flight = 0;
  std::vector<double> train_losses, val_losses;
  size_t validations = 0;
  int64_t submitted = 0;

 private:
  std::vector<StepOutcome> pending_;
};

class FixedRate final : public LearningRates {
 public:
  std::vector<double> at(int64_t) const override { return {1.0}; }
};

// One run or several after each other in one folder.
struct ScriptedRun {
  ScriptedRun() {
    config.trainer.max_epochs = -1;
    config.trainer.num_sanity_val_steps = 0;
    config.trainer.val_check_interval = {false, 0.0, 3};
    params().filename = "r-{step}";
    params().save_nemo_on_train_end = false;
    params().always_save_nemo = false;
    engine.train_losses = {4.0};
    engine.val_losses = {5.0, 3.0, 4.0, 2.0, 6.0};
  }
  config::CheckpointCallbackConfig& params() {
    return config.exp_manager.checkpoint_callback_params;
  }
  Result<TrainSummary> go(int64_t max_steps) {
    config.trainer.max_steps = max_steps;
    RunCheckpointerOptions options;
    options.folder = {"/run", "/run/checkpoints", "r", ""};
    options.params = params();
    options.monitor = params().monitor;
    RunCheckpointer checkpointer(*env, clock, options);
    AERIE_RETURN_IF_ERROR(checkpointer.adopt_existing());
    const CheckpointStore store(*env, "/run/checkpoints");
    AERIE_ASSIGN_OR_RETURN(const auto loaded,
                           store.newest_valid([&](const CheckpointInfo& info, const Status&) {
                             passed_over.push_back(info.stem);
                           }));
    CountedBatches train(6), val(validates ? 1 : 0);
    metrics::MetricsLog log(*env, "/run/metrics.jsonl");
    TrainerParts parts;
    parts.config = &config;
    parts.engine = &engine;
    parts.train = &train;
    if (validates) parts.validation.push_back({"", &val, 1});
    parts.rates = &rates;
    parts.metrics = &log;
    parts.checkpointer = &checkpointer;
    parts.clock = &clock;
    const int64_t last = engine.submitted + steps_until_signal;
    parts.stop_signal = [&, last] {
      return steps_until_signal > 0 && engine.submitted >= last ? 15 : 0;
    };
    AERIE_ASSIGN_OR_RETURN(const Cadence cadence, Cadence::make(config.trainer, 6, validates));
    resumed_at = loaded != nullptr ? loaded->state().step : 0;
    auto summary =
        Trainer(parts, cadence, loaded != nullptr ? loaded->state() : TrainState{}).run();
    best = checkpointer.best_stem();
    return summary;
  }
  std::set<std::string> kept() const {
    std::set<std::string> out;
    const auto entries = env->list_dir("/run/checkpoints");
    if (entries.ok())
      for (const DirEntry& entry : *entries) out.insert(entry.name);
    return out;
  }

  std::unique_ptr<Env> env = new_mem_env();
  FakeClock clock;
  config::LoopConfig config;
  ScriptedEngine engine;
  FixedRate rates;
  bool validates = true;
  int64_t steps_until_signal = 0;
  int64_t resumed_at = 0;
  std::string best;
  std::vector<std::string> passed_over;
};

using Names = std::set<std::string>;

double number(const Json& value) {
  return value.is_null() ? std::nan("") : value.get<double>();
}

void set_params(const Json& json, config::CheckpointCallbackConfig* params) {
  for (const auto& [key, value] : json.items()) {
    if (key == "filename") {
      params->filename = value;
    } else if (key == "save_top_k") {
      params->save_top_k = value;
    } else if (key == "mode") {
      params->mode_max = value == "max";
    } else if (key == "save_last") {
      params->save_last = value;
    } else if (key == "monitor") {
      params->monitor = value;
    } else if (key == "every_n_train_steps") {
      params->every_n_train_steps = value.get<int64_t>();
    } else if (key == "every_n_epochs") {
      params->every_n_epochs = value.is_null() ? 0 : value.get<int64_t>();
    } else if (key == "save_on_train_epoch_end") {
      params->save_on_train_epoch_end = value;
    } else {
      FAIL() << "setting " << key;
    }
  }
}

TEST(RetentionTest, KeepsWhatNeMoKeeps) {
  const std::string path = test_data("/retention/checkpoints.json");
  const Json recorded = Json::parse(*Env::real().read_file(path));
  ASSERT_GE(recorded["settings"].size(), 9u);
  for (const Json& setting : recorded["settings"]) {
    for (const int64_t in_flight : {0, 3}) {
      ScriptedRun run;
      run.engine.in_flight = in_flight;
      run.engine.train_losses.clear();
      for (const Json& loss : recorded["train_losses"])
        run.engine.train_losses.push_back(number(loss));
      run.engine.val_losses.clear();
      for (const Json& loss : setting["val_losses"]) run.engine.val_losses.push_back(number(loss));
      run.validates = setting["validates"];
      set_params(setting["params"], &run.params());
      const auto summary = run.go(setting["max_steps"]);
      ASSERT_TRUE(summary.ok()) << summary.status().to_string();
      EXPECT_EQ(run.kept(), setting["kept"].get<Names>())
          << setting["name"] << ", " << in_flight << " steps in flight";
    }
  }
}

// Cut at any step, a run leaves the same behind in the end.
TEST(RetentionTest, ARunInPiecesKeepsWhatAWholeOneKeeps) {
  const std::string path = test_data("/retention/checkpoints.json");
  const Json recorded = Json::parse(*Env::real().read_file(path));
  for (const Json& setting : recorded["settings"]) {
    if (setting["max_steps"] != 15) continue;
    for (const int64_t cut : {4, 7, 13}) {
      ScriptedRun run;
      run.engine.train_losses.clear();
      for (const Json& loss : recorded["train_losses"])
        run.engine.train_losses.push_back(number(loss));
      run.engine.val_losses.clear();
      for (const Json& loss : setting["val_losses"]) run.engine.val_losses.push_back(number(loss));
      run.validates = setting["validates"];
      set_params(setting["params"], &run.params());
      run.steps_until_signal = cut;
      ASSERT_TRUE(run.go(15).ok());
      run.steps_until_signal = 0;
      ASSERT_TRUE(run.go(15).ok());
      EXPECT_EQ(run.resumed_at, cut) << setting["name"];
      EXPECT_EQ(run.kept(), setting["kept"].get<Names>()) << setting["name"] << ", cut at " << cut;
    }
  }
}

TEST(RetentionTest, ASaveAfterAStepThatWasNotFiniteTakesNoOnesPlace) {
  ScriptedRun run;
  const double nan = std::nan("");
  run.engine.train_losses = {4.0, 4.0, 4.0, 4.0, nan, nan, nan, nan};
  run.config.aerie.max_nan_in_a_row = 100;
  run.config.trainer.val_check_interval = {false, 0.0, 2};
  ASSERT_TRUE(run.go(8).ok());
  EXPECT_EQ(run.kept(), (Names{"r-step=2", "r-step=4", "r-step=4-last", "r-step=8-unhealthy"}));
  // The next run goes on from the healthy one, and the other goes when that has come further.
  run.engine.train_losses = {4.0};
  ASSERT_TRUE(run.go(6).ok());
  EXPECT_EQ(run.resumed_at, 4);
  EXPECT_EQ(run.passed_over, (std::vector<std::string>{"r-step=8-unhealthy"}));
  EXPECT_TRUE(run.kept().contains("r-step=6-last"));
  EXPECT_TRUE(run.kept().contains("r-step=8-unhealthy"));
  ASSERT_TRUE(run.go(10).ok());
  EXPECT_FALSE(run.kept().contains("r-step=8-unhealthy"));
  EXPECT_TRUE(run.kept().contains("r-step=10-last"));
}

TEST(RetentionTest, WithoutSaveLastOnlyAnInterruptedRunLeavesOne) {
  ScriptedRun run;
  run.params().save_last = false;
  run.params().save_top_k = 1;
  run.steps_until_signal = 5;
  ASSERT_TRUE(run.go(8).ok());
  EXPECT_EQ(run.kept(), (Names{"r-step=3", "r-step=5-last"}));
  run.steps_until_signal = 0;
  ASSERT_TRUE(run.go(8).ok());
  EXPECT_EQ(run.resumed_at, 5);
  EXPECT_EQ(run.kept(), (Names{"r-step=6"}));
}

}  // namespace
}  // namespace aerie::train
