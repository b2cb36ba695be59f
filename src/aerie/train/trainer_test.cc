#include "aerie/train/trainer.h"

#include <cmath>
#include <limits>
#include <map>

#include <gtest/gtest.h>

#include "aerie/train/testing/trainer_fakes.h"

namespace aerie::train {
namespace {

TEST(TrainerTest, AccumulatesIncludingTheLastPartialWindow) {
  FakeRun run(5);
  run.config.trainer.accumulate_grad_batches = 2;
  run.config.trainer.max_steps = 6;
  const auto summary = run.go();
  ASSERT_TRUE(summary.ok()) << summary.status().to_string();
  EXPECT_EQ(run.engine.windows, (std::vector<int64_t>{2, 2, 1, 2, 2, 1}));
  EXPECT_EQ(run.engine.rates, (std::vector<double>{0.0, 0.5, 1.0, 1.5, 2.0, 2.5}));
  EXPECT_EQ(run.engine.momentums, (std::vector<double>{0.0, 0.25, 0.5, 0.75, 1.0, 1.25}));
  EXPECT_EQ(run.train.held, 0);
  EXPECT_EQ(run.records(metrics::RecordKind::kTrain).size(), 6u);
  EXPECT_EQ(summary->state.step, 6);
}

// Iteration-based systems count micro-batches: limits, rates, logs and saves follow. mmcv's
// GradientCumulativeOptimizerHook: an update after every second micro-batch of the run, also across
// epochs, and after the last one; an update has the rate of its last micro-batch.
TEST(TrainerTest, StepsMayBeMicroBatches) {
  FakeRun run(5);
  run.config.aerie.step_unit = config::StepUnit::kMicro;
  run.config.trainer.accumulate_grad_batches = 2;
  run.config.trainer.max_steps = 8;
  run.config.trainer.log_every_n_steps = 3;
  run.config.exp_manager.checkpoint_callback_params.every_n_train_steps = 4;
  const auto summary = run.go();
  ASSERT_TRUE(summary.ok()) << summary.status().to_string();
  EXPECT_EQ(run.engine.windows, (std::vector<int64_t>{2, 2, 2, 2}));
  EXPECT_EQ(run.engine.divisors, (std::vector<int64_t>{2, 2, 2, 2}));
  EXPECT_EQ(run.engine.rates, (std::vector<double>{0.5, 1.5, 2.5, 3.5}));
  EXPECT_EQ(run.engine.momentums, (std::vector<double>{0.25, 0.75, 1.25, 1.75}));
  EXPECT_EQ(run.engine.micro, (std::vector<std::string>{"e0b0", "e0b1", "e0b2", "e0b3", "e0b4",
                                                        "e1b0", "e1b1", "e1b2"}));
  EXPECT_EQ(run.train.held, 0);
  EXPECT_EQ(summary->state.step, 8);
  EXPECT_EQ(summary->state.micro_step, 8u);
  // Logged where a multiple of three was passed, saved where one of four was.
  std::vector<int64_t> logged, saved;
  for (const auto& record : run.records(metrics::RecordKind::kTrain))
    logged.push_back(record.step());
  for (const SaveRequest& save : run.checkpointer.saves) saved.push_back(save.state.step);
  EXPECT_EQ(logged, (std::vector<int64_t>{4, 6}));
  EXPECT_EQ(saved, (std::vector<int64_t>{4, 8}));
}

TEST(TrainerTest, MicroBatchesLeftOverAtTheEndDivideByTheirNumber) {
  FakeRun run(5);
  run.config.aerie.step_unit = config::StepUnit::kMicro;
  run.config.trainer.accumulate_grad_batches = 4;
  run.config.trainer.max_steps = 11;
  ASSERT_TRUE(run.go().ok());
  EXPECT_EQ(run.engine.windows, (std::vector<int64_t>{4, 4, 3}));
  EXPECT_EQ(run.engine.divisors, (std::vector<int64_t>{4, 4, 3}));
  EXPECT_EQ(run.engine.rates, (std::vector<double>{1.5, 3.5, 5.0}));

  // Epochs bound the run: the last of fifteen ends it.
  FakeRun epochs(5);
  epochs.config = run.config;
  epochs.config.trainer.max_steps = -1;
  epochs.config.trainer.max_epochs = 3;
  const auto summary = epochs.go();
  ASSERT_TRUE(summary.ok()) << summary.status().to_string();
  EXPECT_EQ(epochs.engine.windows, (std::vector<int64_t>{4, 4, 4, 3}));
  EXPECT_EQ(epochs.engine.divisors, (std::vector<int64_t>{4, 4, 4, 3}));
  EXPECT_EQ(summary->state.step, 15);
  EXPECT_EQ(summary->state.epoch, 3);

  // It went on to a later end: mmcv updates at multiples of four, and divides by four.
  FakeRun longer(5);
  longer.config = run.config;
  longer.config.trainer.max_steps = 14;
  ASSERT_TRUE(longer.go(run.checkpointer.saves.back().state).ok());
  EXPECT_EQ(longer.engine.windows, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(longer.engine.divisors, (std::vector<int64_t>{4, 2}));
  EXPECT_EQ(longer.engine.micro, (std::vector<std::string>{"e2b1", "e2b2", "e2b3"}));
}

TEST(TrainerTest, WindowsOfMicroBatchesThatCrossEpochsResume) {
  for (const bool by_epochs : {false, true}) {
    FakeRun whole(5, 1);
    whole.config.aerie.step_unit = config::StepUnit::kMicro;
    whole.config.trainer.accumulate_grad_batches = 3;
    if (by_epochs)
      whole.config.trainer.max_epochs = 4;
    else
      whole.config.trainer.max_steps = 20;
    ASSERT_TRUE(whole.go().ok());
    EXPECT_EQ(whole.engine.windows.size(), 7u);
    for (const int64_t cut : {1, 2, 3, 4, 6}) {
      FakeRun first(5, 1), second(5, 1);
      first.config = second.config = whole.config;
      first.signal_after = cut;
      ASSERT_TRUE(first.go().ok());
      second.engine.weight = first.engine.weight;
      second.engine.micro = first.engine.micro;
      ASSERT_TRUE(second.go(first.checkpointer.saves.back().state).ok());
      EXPECT_EQ(second.engine.micro, whole.engine.micro) << "cut after " << cut;
      EXPECT_EQ(second.engine.weight, whole.engine.weight) << "cut after " << cut;
    }
  }
}

// The numbers of an evaluation inside a window belong to the micro-batch before it; checkpoints
// wait for the end of the window and rank by the epoch that asked for them.
TEST(TrainerTest, EvaluatesMicroBatchesAtExactlyTheInterval) {
  FakeRun run(5, 1);
  run.config.aerie.step_unit = config::StepUnit::kMicro;
  run.config.trainer.accumulate_grad_batches = 2;
  run.config.trainer.max_steps = 17;
  run.config.trainer.val_check_interval = {false, 0.0, 5};
  run.config.trainer.check_val_every_n_epoch = std::nullopt;
  const auto steps = [](FakeRun& of) {
    std::vector<int64_t> out;
    for (const auto& record : of.records(metrics::RecordKind::kVal)) out.push_back(record.step());
    return out;
  };
  ASSERT_TRUE(run.go().ok());
  EXPECT_EQ(steps(run), (std::vector<int64_t>{5, 10, 15}));
  FakeRun late(5, 1);
  late.config = run.config;
  late.config.aerie.eval_start = 7;
  ASSERT_TRUE(late.go().ok());
  EXPECT_EQ(steps(late), (std::vector<int64_t>{7, 12, 17}));

  FakeRun epochs(3, 1);
  epochs.config.aerie.step_unit = config::StepUnit::kMicro;
  epochs.config.trainer.accumulate_grad_batches = 2;
  epochs.config.trainer.max_epochs = 6;
  epochs.config.trainer.check_val_every_n_epoch = 2;
  epochs.config.exp_manager.checkpoint_callback_params.every_n_epochs = 3;
  ASSERT_TRUE(epochs.go().ok());
  EXPECT_EQ(steps(epochs), (std::vector<int64_t>{6, 12, 18}));
  FakeRun third(3, 1);
  third.config = epochs.config;
  third.config.aerie.eval_start = 3;
  ASSERT_TRUE(third.go().ok());
  EXPECT_EQ(steps(third), (std::vector<int64_t>{9, 15}));
  std::vector<std::pair<int64_t, bool>> saved;
  for (const SaveRequest& save : third.checkpointer.saves)
    saved.emplace_back(save.state.step, save.top_k);
  // Of the third epoch, after the window that reaches into the fourth; of the fifth; the end.
  EXPECT_EQ(saved, (std::vector<std::pair<int64_t, bool>>{{10, true}, {16, false}, {18, true}}));
}

TEST(TrainerTest, NumbersOfAnEvaluationHaveTheFamilysNames) {
  FakeRun run(4, 3);
  run.config.trainer.max_steps = 4;
  run.task.monitor = "iou";
  run.task.monitor_max = true;
  run.engine.eval_sums = {1.0, 4.0};
  run.task.eval_metrics = [](const EvalAccumulator& all) {
    return std::vector<std::pair<std::string, double>>{{"iou", all.sums()[0] / all.sums()[1]}};
  };
  run.config.exp_manager.checkpoint_callback_params.monitor = "iou";
  const auto summary = run.go();
  ASSERT_TRUE(summary.ok()) << summary.status().to_string();
  const auto records = run.records(metrics::RecordKind::kVal);
  ASSERT_EQ(records.size(), 1u);
  double loss = 0.0, iou = 0.0;
  EXPECT_TRUE(records[0].number("val_loss", &loss) && records[0].number("iou", &iou));
  EXPECT_EQ(loss, 6.0);
  EXPECT_EQ(iou, 0.25);
  EXPECT_EQ(summary->last_monitor, 0.25);
  ASSERT_FALSE(run.checkpointer.saves.empty());
  EXPECT_EQ(run.checkpointer.saves[0].monitor, 0.25);
}

TEST(TrainerTest, ValidatesInsideAWindowAndSavesAfterIt) {
  FakeRun run(6, 2);
  run.config.trainer.accumulate_grad_batches = 2;
  run.config.trainer.val_check_interval = {false, 0.0, 3};
  run.config.trainer.max_steps = 3;
  ASSERT_TRUE(run.go().ok());
  EXPECT_EQ(run.engine.windows, (std::vector<int64_t>{2, 2, 2}));
  const auto val = run.records(metrics::RecordKind::kVal);
  ASSERT_EQ(val.size(), 2u);
  EXPECT_EQ(val[0].step(), 1);  // after micro-batch 3: one optimizer step done
  EXPECT_EQ(val[1].step(), 3);
  ASSERT_EQ(run.checkpointer.saves.size(), 2u);
  EXPECT_EQ(run.checkpointer.saves[0].state.step, 2);
  EXPECT_EQ(run.checkpointer.saves[1].state.step, 3);
  double loss = 0;
  ASSERT_TRUE(val[0].number("val_loss", &loss));
  EXPECT_EQ(loss, 5.5);
}

TEST(TrainerTest, FixedValidationSeedRepeatsAndRandomDoesNot) {
  FakeRun fixed(4, 1);
  fixed.config.trainer.val_check_interval = {false, 0.0, 2};
  fixed.config.trainer.max_steps = 4;
  ASSERT_TRUE(fixed.go().ok());
  ASSERT_EQ(fixed.engine.eval_seeds.size(), 2u);
  EXPECT_EQ(fixed.engine.eval_seeds[0], fixed.engine.eval_seeds[1]);
  FakeRun random(4, 1);
  random.config = fixed.config;
  random.config.aerie.validation_seed = config::ValidationSeed::kRandom;
  ASSERT_TRUE(random.go().ok());
  EXPECT_NE(random.engine.eval_seeds[0], random.engine.eval_seeds[1]);
}

TEST(TrainerTest, EmptyEvaluationBatchesDoNotCount) {
  FakeRun run(1, 3);
  run.config.trainer.max_steps = 1;
  run.engine.empty_eval[1] = true;
  ASSERT_TRUE(run.go().ok());
  double loss = 0;
  ASSERT_TRUE(run.records(metrics::RecordKind::kVal)[0].number("val_loss", &loss));
  EXPECT_EQ(loss, 6.0);  // mean of 5 and 7
}

TEST(TrainerTest, ResumedRunEqualsAnUninterruptedOne) {
  for (const int64_t in_flight : {0, 3}) {
    FakeRun whole(7, 0, in_flight);
    whole.config.trainer.accumulate_grad_batches = 3;
    whole.config.trainer.max_steps = 20;
    ASSERT_TRUE(whole.go().ok());
    for (const int64_t cut : {1, 2, 3, 7, 19}) {
      FakeRun first(7, 0, in_flight);
      first.config = whole.config;
      first.signal_after = cut;
      const auto stopped = first.go();
      ASSERT_TRUE(stopped.ok());
      EXPECT_EQ(stopped->reason, StopReason::kSignal);
      ASSERT_FALSE(first.checkpointer.saves.empty());
      FakeRun second(7, 0, in_flight);
      second.config = whole.config;
      ASSERT_TRUE(second.go(first.checkpointer.saves.back().state).ok());
      std::vector<std::string> both = first.engine.micro;
      both.insert(both.end(), second.engine.micro.begin(), second.engine.micro.end());
      EXPECT_EQ(both, whole.engine.micro) << "cut after " << cut;
      std::vector<double> rates = first.engine.rates;
      rates.insert(rates.end(), second.engine.rates.begin(), second.engine.rates.end());
      EXPECT_EQ(rates, whole.engine.rates);
    }
  }
}

// Half the batches of twice the size: three quarters of the epoch are done, one batch is left.
TEST(TrainerTest, TakesItsPositionFromTheSource) {
  FakeRun first(8);
  first.config.trainer.max_steps = 20;
  first.signal_after = 6;
  ASSERT_TRUE(first.go().ok());
  FakeRun second(4);
  second.config.trainer.max_steps = 9;
  const auto summary = second.go(first.checkpointer.saves.back().state);
  ASSERT_TRUE(summary.ok()) << summary.status().to_string();
  EXPECT_EQ(second.engine.micro, (std::vector<std::string>{"e0b3", "e1b0", "e1b1"}));
  EXPECT_EQ(second.engine.rates, (std::vector<double>{3.0, 3.5, 4.0}));
  // Windows of two: the first one is whole although it begins at an odd batch.
  FakeRun third(16);
  third.config.trainer.max_steps = 8;
  third.config.trainer.accumulate_grad_batches = 2;
  TrainState state = first.checkpointer.saves.back().state;
  state.data_cursor_json = "0 5 16";
  ASSERT_TRUE(third.go(state).ok());
  EXPECT_EQ(third.engine.micro, (std::vector<std::string>{"e0b5", "e0b6", "e0b7", "e0b8"}));
}

TEST(TrainerTest, EpochsMayDifferInLength) {
  FakeRun run(5, 1);
  run.train.per_epoch = {5, 3, 4};
  run.config.trainer.max_steps = 14;
  ASSERT_TRUE(run.go().ok());
  std::vector<int64_t> steps;
  for (const auto& record : run.records(metrics::RecordKind::kVal)) steps.push_back(record.step());
  EXPECT_EQ(steps, (std::vector<int64_t>{5, 8, 12}));
}

TEST(TrainerTest, ARunThatIsFinishedSaysSo) {
  FakeRun first(4);
  first.config.trainer.max_steps = 6;
  ASSERT_TRUE(first.go().ok());
  FakeRun second(4);
  second.config.trainer.max_steps = 6;
  const auto summary = second.go(first.checkpointer.saves.back().state);
  ASSERT_TRUE(summary.ok());
  EXPECT_EQ(stop_sentence(stop_reason_name(summary->reason), summary->state.step, summary->why),
            "already finished at step 6; raise trainer.max_steps");
  EXPECT_TRUE(second.engine.windows.empty());
  EXPECT_TRUE(second.checkpointer.saves.empty());
}

TEST(TrainerTest, ARunThatEndedWithAnEpochCanGoOn) {
  FakeRun first(5);
  first.config.trainer.max_steps = 10;
  const auto ended = first.go();
  ASSERT_TRUE(ended.ok());
  ASSERT_FALSE(first.checkpointer.saves.empty());
  FakeRun second(5);
  second.config.trainer.max_steps = 13;
  const auto summary = second.go(first.checkpointer.saves.back().state);
  ASSERT_TRUE(summary.ok()) << summary.status().to_string();
  EXPECT_EQ(second.engine.micro, (std::vector<std::string>{"e2b0", "e2b1", "e2b2"}));
}

TEST(TrainerTest, AForgedEarlyStoppingStateIsADataError) {
  for (const char* json : {"[]", "{}", R"({"checks":"1"})", R"({"checks":1,"validations":"two"})",
                           R"({"checks":1,"validations":1.5})", R"({"checks":-1})"}) {
    FakeRun run(4);
    run.config.trainer.max_steps = 5;
    TrainState state;
    state.early_stopping_json = json;
    EXPECT_EQ(run.go(state).status().code(), StatusCode::kDataError) << json;
  }
}

TEST(TrainerTest, NonFiniteStepsAreReportedAndTooManyStopTheRun) {
  FakeRun run(4);
  run.config.trainer.max_steps = 20;
  run.engine.bad_steps = {{3, true}, {5, true}};
  ASSERT_TRUE(run.go().ok());
  EXPECT_EQ(run.nonfinite.size(), 2u);
  EXPECT_NE(run.nonfinite[4].find("e0b3"), std::string::npos);

  FakeRun hopeless(4);
  hopeless.config.trainer.max_steps = 100;
  hopeless.config.aerie.max_nan_in_a_row = 10;
  hopeless.engine.always_bad = true;
  const auto failed = hopeless.go();
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(hopeless.engine.windows.size(), 10u);
  EXPECT_NE(failed.status().hint().find("gradient_clip_val"), std::string::npos);
}

// A diverged run that reaches its last step before max_nan_in_a_row stops it.
TEST(TrainerTest, ARunThatEndsInBadStepsIsUnhealthy) {
  FakeRun run(4);
  run.config.trainer.max_steps = 20;
  for (int64_t step = 14; step < 20; ++step) run.engine.bad_steps[step] = true;
  const auto summary = run.go();
  ASSERT_TRUE(summary.ok()) << summary.status().to_string();
  EXPECT_TRUE(summary->health.unhealthy());
  const metrics::Record end = run.records(metrics::RecordKind::kEvent).back();
  EXPECT_EQ(end.text("event"), "end");
  EXPECT_EQ(end.text("reason"), "finished");
  EXPECT_EQ(end.text("health"), "the last 6 steps were not finite or skipped");

  // Gone on with, the steps before count too.
  FakeRun more(4);
  more.config.trainer.max_steps = 21;
  const auto longer = more.go(run.checkpointer.saves.back().state);
  ASSERT_TRUE(longer.ok());
  EXPECT_TRUE(longer->health.unhealthy());
  more.config.trainer.max_steps = 40;
  const auto recovered = more.go(run.checkpointer.saves.back().state);
  ASSERT_TRUE(recovered.ok());
  EXPECT_FALSE(recovered->health.unhealthy());
}

TEST(TrainerTest, EveryStopIsToldInTheSameWords) {
  EXPECT_EQ(stop_sentence("finished", 7, ""), "finished after step 7");
  EXPECT_EQ(stop_sentence("signal", 7, "SIGTERM"), "stopped after step 7: signal (SIGTERM)");
  EXPECT_EQ(stop_sentence("early stopping", 7, "no gain in 3 validations"),
            "stopped after step 7: early stopping (no gain in 3 validations)");
  FakeRun run(4);
  run.config.trainer.max_steps = 20;
  run.signal_after = 5;
  const auto summary = run.go();
  ASSERT_TRUE(summary.ok());
  EXPECT_EQ(summary->why, "SIGTERM");
  EXPECT_EQ(run.records(metrics::RecordKind::kEvent).back().text("why"), "SIGTERM");
}

TEST(TrainerTest, FallsBackToAnotherPrecision) {
  FakeRun run(4);
  run.config.trainer.max_steps = 15;
  run.config.aerie.on_nan = config::OnNan::kFallback;
  run.config.aerie.max_nan_in_a_row = 3;
  run.engine.always_bad = true;
  const auto summary = run.go();
  ASSERT_TRUE(summary.ok()) << summary.status().to_string();
  EXPECT_EQ(summary->state.precision, "bf16-mixed");
}

TEST(TrainerTest, SplitsBatchesWhenOutOfMemoryAndRemembers) {
  FakeRun run(4);
  run.config.trainer.max_steps = 3;
  run.engine.needed_split = 4;
  const auto summary = run.go();
  ASSERT_TRUE(summary.ok());
  EXPECT_EQ(run.engine.splits, (std::vector<int64_t>{4, 4, 4}));
  EXPECT_EQ(summary->state.split, 4);

  // Six clips a batch: 2, 4, then one clip a part and no more.
  FakeRun hopeless(4);
  hopeless.config.trainer.max_steps = 3;
  hopeless.engine.needed_split = 7;
  const auto failed = hopeless.go();
  EXPECT_EQ(failed.status().code(), StatusCode::kOutOfMemory);
  EXPECT_NE(failed.status().message().find("one sample at a time"), std::string::npos);
  EXPECT_NE(failed.status().message().find("fake memory"), std::string::npos);
  EXPECT_NE(failed.status().hint().find(hopeless.task.smaller_sample), std::string::npos);
  EXPECT_EQ(hopeless.engine.tried_splits, (std::vector<int64_t>{1, 2, 4, 6}));

  FakeRun stop(4);
  stop.config.trainer.max_steps = 3;
  stop.config.aerie.on_oom = config::OnOom::kStop;
  stop.engine.needed_split = 2;
  const Status refused = stop.go().status();
  EXPECT_EQ(refused.code(), StatusCode::kOutOfMemory);
  EXPECT_NE(refused.hint().find(stop.task.smaller_batch), std::string::npos) << refused.hint();
}

TEST(TrainerTest, SavingIncludesTheStepsInFlight) {
  FakeRun run(8, 0, /*in_flight=*/2);
  run.config.trainer.max_steps = 8;
  run.config.exp_manager.checkpoint_callback_params.every_n_train_steps = 4;
  run.engine.before_wait = [&] { run.clock.advance_s(0.5); };
  const auto summary = run.go();
  ASSERT_TRUE(summary.ok()) << summary.status().to_string();
  const auto number = [](const metrics::Record& record, const char* name) {
    double value = -1.0;
    EXPECT_TRUE(record.number(name, &value)) << name;
    return value;
  };
  std::vector<double> blocked;
  for (const metrics::Record& record : run.records(metrics::RecordKind::kEvent))
    if (record.text("event") == "save") blocked.push_back(number(record, "blocked_ms"));
  ASSERT_EQ(blocked.size(), 2u);
  for (const double ms : blocked) EXPECT_NEAR(ms, 500.0, 1e-6);
  // They are steps all the same: their time is not taken out of the step times.
  double steps_ms = 0.0;
  for (const metrics::Record& record : run.records(metrics::RecordKind::kTrain))
    steps_ms += number(record, "step_ms");
  EXPECT_NEAR(steps_ms, 1000.0, 1e-6);
}

TEST(TrainerTest, SavesThatGaveWayAreRecorded) {
  FakeRun run(8);
  run.config.trainer.max_steps = 8;
  run.config.exp_manager.checkpoint_callback_params.every_n_train_steps = 4;
  run.checkpointer.superseded = 3;
  ASSERT_TRUE(run.go().ok());
  int64_t events = 0;
  for (const metrics::Record& record : run.records(metrics::RecordKind::kEvent)) {
    if (record.text("event") != "saved") continue;
    ++events;
    double value = 0.0;
    EXPECT_TRUE(record.number("superseded", &value) && value == 3.0);
    EXPECT_TRUE(record.number("write_cpu_ms", &value));
  }
  EXPECT_EQ(events, 2);
}

TEST(TrainerTest, StopsEarlyWithoutGain) {
  FakeRun run(2, 1);
  run.config.trainer.max_steps = 100;
  run.config.exp_manager.create_early_stopping_callback = true;
  run.config.exp_manager.early_stopping_callback_params.patience = 3;
  const auto summary = run.go();
  ASSERT_TRUE(summary.ok());
  EXPECT_EQ(summary->reason, StopReason::kEarlyStopping);
  EXPECT_EQ(summary->state.step, 8);  // best at 2, three checks without gain
}

// Lightning's rule: the first value is a gain over nothing.
TEST(TrainerTest, WithoutPatienceTheFirstValueDoesNotStopTheRun) {
  FakeRun run(2, 1);
  run.config.trainer.max_steps = 100;
  run.config.exp_manager.create_early_stopping_callback = true;
  run.config.exp_manager.early_stopping_callback_params.patience = 0;
  const auto summary = run.go();
  ASSERT_TRUE(summary.ok());
  EXPECT_EQ(summary->state.step, 4);  // best at 2, the next is no gain
}

// Lightning's default: at the ends of epochs where each of them ends with a validation. A whole
// number 1 is 1.0 to Python.
TEST(TrainerTest, EarlyStoppingLooksAtEpochsWhereEachEndsWithAValidation) {
  const auto steps = [](const config::BatchLimit& interval, std::optional<int64_t> every_epoch,
                        std::optional<bool> at_epoch_end, int64_t validation = 1) {
    FakeRun run(4, validation);
    run.config.trainer.max_steps = 40;
    run.config.trainer.val_check_interval = interval;
    run.config.trainer.check_val_every_n_epoch = every_epoch;
    run.config.exp_manager.create_early_stopping_callback = true;
    auto& rules = run.config.exp_manager.early_stopping_callback_params;
    rules.monitor = "train_loss";
    rules.stopping_threshold = 1000.0;
    rules.check_on_train_epoch_end = at_epoch_end;
    const auto summary = run.go();
    EXPECT_TRUE(summary.ok()) << summary.status().to_string();
    return summary.ok() ? summary->state.step : -1;
  };
  const config::BatchLimit once, each{false, 0.0, 1}, half{true, 0.5, 0};
  EXPECT_EQ(steps(once, 1, std::nullopt), 4);
  EXPECT_EQ(steps(each, 1, std::nullopt), 4);
  EXPECT_EQ(steps(each, 1, false), 1);
  EXPECT_EQ(steps(each, std::nullopt, std::nullopt), 1);
  EXPECT_EQ(steps(half, 1, std::nullopt), 2);
  EXPECT_EQ(steps(half, 1, true), 4);
  EXPECT_EQ(steps(once, 2, std::nullopt), 8);
  // Without validation the loss of training can still stop the run.
  EXPECT_EQ(steps(once, 1, std::nullopt, 0), 4);
  EXPECT_EQ(steps(once, 2, std::nullopt, 0), 40);
}

// Lightning takes min_steps alone for min_epochs 1 as well.
TEST(TrainerTest, StepsThatWerePromisedBringTheirEpoch) {
  const auto steps = [](std::optional<int64_t> min_steps, std::optional<int64_t> min_epochs) {
    FakeRun run(4, 1);
    run.config.trainer.max_steps = 40;
    run.config.trainer.val_check_interval = {false, 0.0, 1};
    run.config.trainer.min_steps = min_steps;
    run.config.trainer.min_epochs = min_epochs;
    run.config.exp_manager.create_early_stopping_callback = true;
    auto& rules = run.config.exp_manager.early_stopping_callback_params;
    rules.monitor = "train_loss";
    rules.stopping_threshold = 1000.0;
    rules.check_on_train_epoch_end = false;
    const auto summary = run.go();
    EXPECT_TRUE(summary.ok()) << summary.status().to_string();
    return summary.ok() ? summary->state.step : -1;
  };
  EXPECT_EQ(steps(std::nullopt, std::nullopt), 1);
  EXPECT_EQ(steps(2, std::nullopt), 4);
  EXPECT_EQ(steps(2, 0), 2);
  EXPECT_EQ(steps(6, std::nullopt), 6);
}

TEST(TrainerTest, SwapsAveragedWeightsInForValidation) {
  FakeRun run(1, 1);
  run.config.trainer.max_steps = 1;
  run.config.exp_manager.ema.enable = true;
  ASSERT_TRUE(run.go().ok());
  EXPECT_EQ(run.engine.ema, (std::vector<bool>{true, false}));
}

TEST(TrainerTest, ACheckpointThatFailedIsTriedAgain) {
  FakeRun run(100, 1);
  run.config.trainer.max_steps = 50;
  run.config.trainer.val_check_interval = {false, 0.0, 10};
  run.config.trainer.limit_val_batches = {false, 0.0, 1};
  run.checkpointer.failures = 2;
  run.seconds_per_step = 4.0;
  const auto summary = run.go();
  ASSERT_TRUE(summary.ok()) << summary.status().to_string();
  std::vector<int64_t> steps;
  for (const SaveRequest& save : run.checkpointer.saves) steps.push_back(save.state.step);
  // 30 s after the failures of steps 10 and 18, then as usual.
  EXPECT_EQ(steps, (std::vector<int64_t>{10, 18, 20, 30, 40, 50}));
}

TEST(TrainerTest, TheLastCheckpointIsTriedTwice) {
  FakeRun run(10, 1);
  run.config.trainer.max_steps = 10;
  run.config.trainer.val_check_interval = {false, 0.0, 10};
  run.checkpointer.failures = 1;
  ASSERT_TRUE(run.go().ok());
  EXPECT_EQ(run.checkpointer.saves.size(), 2u);
  FakeRun lost(10, 1);
  lost.config.trainer.max_steps = 10;
  lost.config.trainer.val_check_interval = {false, 0.0, 10};
  lost.checkpointer.failures = 2;
  EXPECT_FALSE(lost.go().ok()) << "nothing of the run was saved";
}

// Names of the batches, the rates and the validations of a run or of its two halves.
struct Trace {
  void add(FakeRun& run) {
    micro.insert(micro.end(), run.engine.micro.begin(), run.engine.micro.end());
    rates.insert(rates.end(), run.engine.rates.begin(), run.engine.rates.end());
    for (const metrics::Record& record : run.records(metrics::RecordKind::kVal))
      validations.push_back(str_cat(record.epoch(), ":", record.step()));
  }
  std::vector<std::string> micro, validations;
  std::vector<double> rates;
};

TEST(TrainerTest, ASignalEndsAValidationAfterOneBatchAndTheResumedRunDoesIt) {
  // Five validation batches; windows of three in epochs of seven, so that validations fall on the
  // ends of windows and epochs and inside a window.
  for (const int64_t interval : {3, 4, 7}) {
    FakeRun whole(7, 5);
    whole.config.trainer.accumulate_grad_batches = 3;
    whole.config.trainer.max_steps = 9;
    whole.config.trainer.val_check_interval = {false, 0.0, interval};
    ASSERT_TRUE(whole.go().ok());
    Trace expected;
    expected.add(whole);
    for (const int64_t evaluated : {1, 7, 12}) {
      SCOPED_TRACE(str_cat("every ", interval, " batches, signal in evaluation ", evaluated));
      if (evaluated > whole.engine.evaluated) continue;
      FakeRun first(7, 5);
      first.config = whole.config;
      first.signal_after_evaluated = evaluated;
      const auto stopped = first.go();
      ASSERT_TRUE(stopped.ok()) << stopped.status().to_string();
      EXPECT_EQ(stopped->reason, StopReason::kSignal);
      EXPECT_EQ(first.engine.evaluated, evaluated) << "one batch, not the rest of the validation";
      const TrainState saved = first.checkpointer.saves.back().state;
      EXPECT_TRUE(saved.validation_pending);
      EXPECT_EQ(saved.micro_step, first.engine.micro.size()) << "the window is finished";
      EXPECT_EQ(static_cast<int64_t>(first.engine.windows.size()), saved.step);
      const auto stored = TrainState::from_json(saved.to_json());
      ASSERT_TRUE(stored.ok());

      FakeRun second(7, 5);
      second.config = whole.config;
      second.config.exp_manager.disable_validation_on_resume = true;
      ASSERT_TRUE(second.go(*stored).ok());
      Trace both;
      both.add(first);
      both.add(second);
      EXPECT_EQ(both.micro, expected.micro);
      EXPECT_EQ(both.rates, expected.rates);
      EXPECT_EQ(both.validations.size(), expected.validations.size());
      // Inside a window the validation comes one step later than it would have.
      if (interval != 4) {
        EXPECT_EQ(both.validations, expected.validations);
      }
      EXPECT_FALSE(second.checkpointer.saves.back().state.validation_pending);
      EXPECT_EQ(second.checkpointer.saves.front().reason, SaveReason::kValidation);
    }
  }
}

TEST(TrainerTest, AValidationStoppedAgainIsStillPending) {
  FakeRun first(4, 5);
  first.config.trainer.max_steps = 8;
  first.config.exp_manager.ema.enable = true;
  first.signal_after_evaluated = 2;
  ASSERT_TRUE(first.go().ok());
  EXPECT_EQ(first.engine.ema, (std::vector<bool>{true, false})) << "the weights are put back";
  FakeRun second(4, 5);
  second.config = first.config;
  second.signal_after_evaluated = 1;
  const auto again = second.go(first.checkpointer.saves.back().state);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->state.validation_pending);
  EXPECT_TRUE(second.engine.micro.empty());
  EXPECT_TRUE(second.checkpointer.saves.empty()) << "the checkpoint says so already";
  // Without a validation set there is nothing to catch up with.
  FakeRun without(4);
  without.config = first.config;
  const auto done = without.go(first.checkpointer.saves.back().state);
  ASSERT_TRUE(done.ok()) << done.status().to_string();
  EXPECT_FALSE(done->state.validation_pending);
  EXPECT_EQ(done->state.step, 8);
}

TEST(TrainerTest, ASignalBeforeTheFirstStepSavesNothing) {
  FakeRun run(4, 5);
  run.config.trainer.max_steps = 8;
  run.config.trainer.num_sanity_val_steps = 3;
  run.signal_after_evaluated = 1;
  const auto stopped = run.go();
  ASSERT_TRUE(stopped.ok());
  EXPECT_EQ(stopped->reason, StopReason::kSignal);
  EXPECT_EQ(run.engine.evaluated, 1);
  EXPECT_TRUE(run.engine.micro.empty());
  EXPECT_TRUE(run.checkpointer.saves.empty());
}

TEST(TrainerTest, FailedMetricsWritesDoNotStopTraining) {
  FakeRun run(2);
  run.config.trainer.max_steps = 3;
  run.log.~MetricsLog();
  new (&run.log) metrics::MetricsLog(*run.env, "/no/such/folder/metrics.jsonl");
  EXPECT_TRUE(run.go().ok());
  EXPECT_GE(run.log.pending(), 3u);
}

}  // namespace
}  // namespace aerie::train
