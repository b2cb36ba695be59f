// Keys of trainer, exp_manager and aerie, each tried by a run of a tiny model.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/archive/nemo.h"
#include "aerie/models/nest/run/nest_eval.h"
#include "aerie/models/nest/run/run_test_util.h"

namespace aerie::train::nest_keys_test {
namespace {

using metrics::RecordKind;
using Steps = std::vector<int64_t>;

// A run that must succeed.
RunResult run(const TinyRun& tiny, const std::vector<std::string>& overrides) {
  auto result = tiny.train(overrides);
  EXPECT_TRUE(result.ok()) << result.status().to_string();
  return result.ok() ? std::move(result).value() : RunResult{};
}

int exit_code(const Result<RunResult>& result) {
  return result.ok() ? 0 : exit_code_for(result.status().code());
}

// 24 clips in batches of 4: 6 batches an epoch.
TEST(TrainerKeysTest, ValidationIntervals) {
  const struct {
    std::vector<std::string> keys;
    Steps expected;
  } kCases[] = {
      {{"trainer.val_check_interval=4"}, {4, 10}},  // counts anew in every epoch
      {{"trainer.val_check_interval=0.5"}, {3, 6, 9, 12}},
      {{"trainer.val_check_interval=1.0"}, {6, 12}},
      {{"trainer.val_check_interval=8"}, {8}},  // more than an epoch: counts across epochs
      {{"trainer.val_check_interval=4", "trainer.check_val_every_n_epoch=null"}, {4, 8, 12}},
      {{"trainer.val_check_interval=0.5", "trainer.check_val_every_n_epoch=2"}, {9, 12}},
      {{"++trainer.limit_val_batches=0"}, {}},
      // Three steps an epoch of which the last is a shorter window.
      {{"trainer.val_check_interval=1.0", "++trainer.limit_train_batches=5",
        "trainer.accumulate_grad_batches=2"},
       {3, 6, 9, 12}},
  };
  for (const auto& item : kCases) {
    const TinyRun tiny;
    std::vector<std::string> keys = item.keys;
    keys.push_back("trainer.max_steps=12");
    run(tiny, keys);
    EXPECT_EQ(tiny.steps(RecordKind::kVal), item.expected) << keys[0];
  }
  const TinyRun compat;
  EXPECT_EQ(exit_code(compat.train({"trainer.val_check_interval=8", "aerie.compat=nemo-2.6"})), 2);
  EXPECT_EQ(exit_code(compat.train(
                {"trainer.val_check_interval=0.5", "trainer.check_val_every_n_epoch=null"})),
            2);
  EXPECT_EQ(exit_code(compat.train({"++trainer.limit_val_batches=0.1"})), 2);
}

// The advice said 16 whatever the factor.
TEST(TrainerKeysTest, PaddingThatDoesNotFitTheSubsamplingNamesOneThatDoes) {
  const TinyRun tiny;
  const auto failed =
      tiny.train({"model.encoder.subsampling=stacking", "model.encoder.subsampling_factor=5"});
  EXPECT_EQ(exit_code(failed), 2);
  EXPECT_NE(failed.status().to_string().find("pad_to"), std::string::npos);
  EXPECT_NE(failed.status().to_string().find("such as 20"), std::string::npos)
      << failed.status().to_string();
}

TEST(TrainerKeysTest, EpochsStepsAndLogging) {
  const TinyRun epochs;
  EXPECT_EQ(run(epochs, {"trainer.max_steps=-1", "trainer.max_epochs=2",
                         "++trainer.limit_train_batches=0.5", "trainer.log_every_n_steps=4"})
                .step,
            6);
  EXPECT_EQ(epochs.steps(RecordKind::kTrain), (Steps{4}));
  const TinyRun silent;
  run(silent, {"trainer.log_every_n_steps=0", "trainer.max_steps=2"});
  EXPECT_TRUE(silent.steps(RecordKind::kTrain).empty());
  const TinyRun windows;
  EXPECT_EQ(run(windows, {"trainer.max_steps=-1", "trainer.max_epochs=1",
                          "trainer.accumulate_grad_batches=4"})
                .step,
            2);
}

TEST(TrainerKeysTest, WhatTheEnvironmentHoldsIsNotWrittenOut) {
  const TinyRun tiny;
  ASSERT_EQ(setenv("AERIE_TEST_MANIFEST", tiny.file("dev_clean.json").c_str(), 1), 0);
  ASSERT_EQ(setenv("AERIE_TEST_SECRET", "hunter2", 1), 0);
  const RunResult result =
      run(tiny,
          {"model.validation_ds.manifest_filepath='${oc.env:AERIE_TEST_MANIFEST}'",
           "++exp_manager.checkpoint_callback_params.postfix='-${oc.env:AERIE_TEST_SECRET}.nemo'"});
  ASSERT_EQ(unsetenv("AERIE_TEST_MANIFEST"), 0);
  ASSERT_EQ(unsetenv("AERIE_TEST_SECRET"), 0);
  Env& env = Env::real();
  for (const char* name : {"config.yaml", "hparams.yaml", "report.html"}) {
    const std::string text = env.read_file(tiny.run_dir() + "/" + name).value();
    EXPECT_NE(text.find("${oc.env:AERIE_TEST_SECRET}"), std::string::npos) << name;
    EXPECT_NE(text.find("${oc.env:AERIE_TEST_MANIFEST}"), std::string::npos) << name;
    EXPECT_EQ(text.find("hunter2"), std::string::npos) << name;
  }
  // The archive is whole without the variable.
  const auto nemo = archive::read_nemo(env, result.archive);
  ASSERT_TRUE(nemo.ok()) << nemo.status().to_string();
  EXPECT_NE(nemo->config_yaml.find(tiny.file("dev_clean.json")), std::string::npos);
  EXPECT_EQ(nemo->config_yaml.find("oc.env"), std::string::npos);
}

// NeMo puts trainer.max_steps over it before it looks.
TEST(TrainerKeysTest, AScheduleWithoutItsOwnLengthTakesTheTrainers) {
  const auto rates = [](const std::string& max_steps) {
    const TinyRun tiny;
    run(tiny, {"trainer.max_steps=4", "model.optim.sched={name: WarmupAnnealing, warmup_steps: 2}",
               "++model.optim.sched.max_steps=" + max_steps});
    return tiny.values(RecordKind::kTrain, "learning_rate");
  };
  const std::vector<double> expected = rates("null");
  ASSERT_EQ(expected.size(), 4u);
  EXPECT_NE(expected[0], expected[1]);
  EXPECT_EQ(rates("-1"), expected);
  EXPECT_EQ(rates("1000"), expected);
}

TEST(TrainerKeysTest, MaxTimeStopsWithAValidation) {
  const TinyRun tiny;
  const RunResult result = run(tiny, {"++trainer.max_time={seconds: 1}", "trainer.max_steps=-1",
                                      "trainer.val_check_interval=100000"});
  EXPECT_EQ(result.stop_reason, "time limit");
  EXPECT_EQ(tiny.steps(RecordKind::kVal), (Steps{result.step}));
  EXPECT_NE(result.best_checkpoint, "");

  const TinyRun held;
  EXPECT_GE(run(held, {"++trainer.max_time={seconds: 0.001}", "++trainer.min_steps=4",
                       "trainer.max_steps=20"})
                .step,
            4);
  const TinyRun per_run;
  const RunResult cut =
      run(per_run, {"++exp_manager.max_time_per_run={seconds: 0.001}", "++trainer.min_steps=4"});
  EXPECT_EQ(cut.step, 1);
  EXPECT_EQ(cut.stop_reason, "time limit");
  EXPECT_TRUE(per_run.steps(RecordKind::kVal).empty());
}

TEST(TrainerKeysTest, FastDevRunKeepsNothing) {
  const TinyRun tiny;
  const RunResult result = run(
      tiny, {"++trainer.fast_dev_run=2", "trainer.max_steps=-1", "++trainer.limit_val_batches=0"});
  EXPECT_EQ(result.step, 2);
  EXPECT_EQ(result.stop_reason, "fast_dev_run");
  EXPECT_EQ(result.run_dir, "");
  EXPECT_FALSE(Env::real().exists(tiny.file("runs")));
}

TEST(TrainerKeysTest, OverfitBatchesRepeatsThem) {
  const TinyRun tiny;
  run(tiny, {"++trainer.overfit_batches=1", "trainer.val_check_interval=1.0"});
  const auto padding = tiny.values(RecordKind::kTrain, "padding_share");
  ASSERT_EQ(padding.size(), 6u);
  for (const double share : padding) EXPECT_EQ(share, padding[0]);
  EXPECT_EQ(tiny.records(RecordKind::kTrain).back().epoch(), 5);
  EXPECT_EQ(tiny.steps(RecordKind::kVal).size(), 6u);
}

TEST(TrainerKeysTest, DeterministicRunsAgreeWhateverTheWorkers) {
  const TinyRun one, two;
  run(one, {"++trainer.deterministic=true", "model.train_ds.num_workers=1"});
  run(two, {"++trainer.deterministic=true", "model.train_ds.num_workers=3"});
  EXPECT_EQ(one.values(RecordKind::kTrain, "train_loss"),
            two.values(RecordKind::kTrain, "train_loss"));
  EXPECT_EQ(one.values(RecordKind::kVal, "val_loss"), two.values(RecordKind::kVal, "val_loss"));
}

TEST(TrainerKeysTest, DetectAnomalyNamesTheFirstCulprit) {
  const TinyRun tiny;
  const std::vector<std::string> explode{"model.optim.lr=1e30", "model.optim.sched.warmup_steps=1",
                                         "model.optim.sched.min_lr=1e20"};
  std::vector<std::string> keys = explode;
  keys.push_back("++trainer.detect_anomaly=true");
  const auto result = tiny.train(keys);
  ASSERT_FALSE(result.ok());
  const std::string text = result.status().to_string();
  EXPECT_NE(text.find("detect_anomaly: the first value that is not finite is"), std::string::npos)
      << text;
  // Without it steps are skipped until there are too many.
  const TinyRun skipping;
  keys = explode;
  keys.push_back("aerie.max_nan_in_a_row=2");
  EXPECT_NE(skipping.train(keys).status().to_string().find("2 steps in a row"), std::string::npos);
}

TEST(TrainerKeysTest, ProfilerWritesAChromeTrace) {
  const TinyRun tiny;
  const RunResult result =
      run(tiny, {"++trainer.profiler=simple", "trainer.num_sanity_val_steps=2"});
  ASSERT_EQ(result.trace, tiny.run_dir() + "/trace.json");
  const auto trace = nlohmann::json::parse(*Env::real().read_file(result.trace));
  std::map<std::string, int> count;
  std::map<std::string, double> first;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    const std::string name = event["name"];
    if (count[name]++ == 0) first[name] = event["ts"];
    EXPECT_GE(event["dur"].get<double>(), 0.0);
  }
  EXPECT_EQ(count["forward"], 6);
  EXPECT_EQ(count["backward"], 6);
  EXPECT_EQ(count["optimizer"], 6);
  EXPECT_EQ(count["host prepare"], 6);
  EXPECT_EQ(count["validation"], 3);  // the sanity check and two more
  EXPECT_EQ(count["evaluate"], 2 + 2 * 3);
  EXPECT_EQ(count["save"], 2);
  EXPECT_EQ(count["write checkpoint"], 2);
  EXPECT_LT(first["validation"], first["forward"]);
}

TEST(TrainerKeysTest, StaticLossScale) {
  const TinyRun tiny;
  run(tiny, {"trainer.precision=16-mixed", "aerie.loss_scale=64", "trainer.max_steps=3"});
  EXPECT_EQ(tiny.values(RecordKind::kTrain, "loss_scale"), (std::vector<double>{64, 64, 64}));
  const TinyRun dynamic;
  run(dynamic,
      {"trainer.precision=16-mixed", "trainer.max_steps=2", "trainer.val_check_interval=2"});
  EXPECT_EQ(dynamic.values(RecordKind::kTrain, "loss_scale")[0], 65536.0);
}

TEST(TrainerKeysTest, DefaultRootDirServesRunsWithoutExpManager) {
  const TinyRun tiny;
  const RunResult result = run(
      tiny,
      {"~exp_manager", "++trainer.default_root_dir=" + tiny.file("root"), "trainer.max_steps=1"});
  EXPECT_TRUE(starts_with(result.run_dir, tiny.file("root") + "/")) << result.run_dir;
}

TEST(EarlyStoppingTest, RulesAndLimits) {
  const std::vector<std::string> base{
      "++exp_manager.create_early_stopping_callback=true", "trainer.val_check_interval=1",
      "trainer.check_val_every_n_epoch=null", "trainer.max_steps=12"};
  const auto steps = [&](std::vector<std::string> keys) {
    const TinyRun tiny;
    keys.insert(keys.end(), base.begin(), base.end());
    const RunResult result = run(tiny, keys);
    return std::make_pair(result.step, result.stop_reason);
  };
  const std::string params = "++exp_manager.early_stopping_callback_params.";
  const std::pair<int64_t, std::string> at_three{3, "early stopping"}, at_one{1, "early stopping"};
  // The first is a gain over nothing, the next two are not.
  EXPECT_EQ(steps({params + "min_delta=1000", params + "patience=2"}), at_three);
  EXPECT_EQ(steps({params + "stopping_threshold=1000"}), at_one);
  EXPECT_EQ(steps({params + "divergence_threshold=0.001"}), at_one);
  EXPECT_EQ(
      steps({params + "stopping_threshold=1000", "++trainer.min_steps=5", "++trainer.min_epochs=0"})
          .first,
      5);
  // Lightning takes min_steps alone for one epoch, too: it has six steps.
  EXPECT_EQ(steps({params + "stopping_threshold=1000", "++trainer.min_steps=5"}).first, 6);
  EXPECT_EQ(steps({params + "stopping_threshold=1000", "++trainer.min_epochs=1"}).first, 6);
  EXPECT_EQ(steps({params + "stopping_threshold=1000", params + "monitor=train_loss"}), at_one);
  // At the ends of epochs only.
  EXPECT_EQ(
      steps({params + "stopping_threshold=1000", params + "check_on_train_epoch_end=true"}).first,
      6);
  const TinyRun tiny;
  std::vector<std::string> wrong = base;
  wrong.push_back(params + "monitor=val_los");
  const auto result = tiny.train(wrong);
  EXPECT_EQ(exit_code(result), 2);
  EXPECT_NE(result.status().to_string().find("did you mean 'val_loss'"), std::string::npos);
  wrong.push_back(params + "strict=false");
  EXPECT_EQ(tiny.train(wrong).value().step, 12);
}

TEST(EmaTest, AveragesValidateAndAreSaved) {
  const std::vector<std::string> ema{"++exp_manager.ema.enable=true",
                                     "++exp_manager.ema.decay=0.5"};
  const TinyRun averaged, original, plain;
  const RunResult result = run(averaged, ema);
  std::vector<std::string> keys = ema;
  keys.push_back("++exp_manager.ema.validate_original_weights=true");
  run(original, keys);
  run(plain, {});
  EXPECT_TRUE(Env::real().exists(result.last_checkpoint + "/ema.safetensors"));
  const auto with = averaged.values(RecordKind::kVal, "val_loss");
  const auto without = plain.values(RecordKind::kVal, "val_loss");
  EXPECT_EQ(original.values(RecordKind::kVal, "val_loss"), without);
  EXPECT_NE(with, without);
  EXPECT_EQ(averaged.values(RecordKind::kTrain, "train_loss"),
            plain.values(RecordKind::kTrain, "train_loss"));

  const auto loaded = averaged.config(ema, false);
  NestEvalOptions options;
  options.config = &loaded->run;
  options.env = &Env::real();
  const auto report = evaluate_nest(options);
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_TRUE(report->averaged);
  EXPECT_DOUBLE_EQ(report->loss, with.back());
}

TEST(CheckpointKeysTest, WhichOnesAreKept) {
  const std::string params = "++exp_manager.checkpoint_callback_params.";
  const std::string name = params + "filename='{step}'";
  const auto kept = [&](std::vector<std::string> keys) {
    const TinyRun tiny;
    keys.push_back(name);
    keys.push_back("trainer.max_steps=12");
    run(tiny, keys);
    return tiny.checkpoint_names();
  };
  using Names = std::set<std::string>;
  const std::string all = params + "save_top_k=-1";
  EXPECT_EQ(kept({all}),
            (Names{"step=3", "step=6", "step=9", "step=12", "step=12-last", "tiny.nemo"}));
  EXPECT_EQ(kept({all, params + "every_n_epochs=2"}),
            (Names{"step=9", "step=12", "step=12-last", "tiny.nemo"}));
  EXPECT_EQ(kept({all, params + "save_last=false", params + "prefix=other"}),
            (Names{"step=3", "step=6", "step=9", "step=12", "other.nemo"}));
  EXPECT_EQ(kept({all, params + "save_on_train_epoch_end=true", params + "always_save_nemo=false",
                  params + "save_nemo_on_train_end=false"}),
            (Names{"step=6", "step=12", "step=12-last"}));
  EXPECT_EQ(kept({all, params + "every_n_train_steps=5", params + "every_n_epochs=0",
                  params + "postfix=.tar"}),
            (Names{"step=5", "step=10", "step=12-last", "tiny.tar"}));
  EXPECT_EQ(kept({params + "save_top_k=0"}), (Names{"step=12-last", "tiny.nemo"}));
  EXPECT_EQ(kept({"exp_manager.create_checkpoint_callback=false"}), Names{});
  // Every step is later than a nanosecond after the one before it.
  EXPECT_EQ(kept({all, params + "train_time_interval=1e-9", params + "every_n_epochs=0",
                  "++trainer.limit_val_batches=0"}),
            (Names{"step=12-last", "tiny.nemo"}));
}

TEST(CheckpointKeysTest, OtherMonitors) {
  const std::string params = "++exp_manager.checkpoint_callback_params.";
  const TinyRun tiny;
  run(tiny,
      {params + "monitor=train_loss", params + "filename='{train_loss:.3f}-{val_loss:.3f}-{step}'",
       params + "auto_insert_metric_name=false", params + "save_top_k=1"});
  ASSERT_EQ(tiny.checkpoint_names().size(), 3u);
  const auto losses = tiny.values(RecordKind::kTrain, "train_loss");
  char best[32];
  std::snprintf(best, sizeof best, "%.3f-", std::min(losses[2], losses[5]));
  int found = 0;
  for (const std::string& name : tiny.checkpoint_names())
    found += starts_with(name, best) && !ends_with(name, "-last") ? 1 : 0;
  EXPECT_EQ(found, 1) << best;
  const TinyRun wrong;
  EXPECT_EQ(exit_code(wrong.train({params + "monitor=accuracy"})), 2);
}

TEST(CheckpointKeysTest, WeightsOnlyAndBestModel) {
  const std::string params = "++exp_manager.checkpoint_callback_params.";
  const TinyRun tiny;
  const RunResult result = run(tiny, {params + "save_weights_only=true"});
  EXPECT_EQ(TinyRun::names(result.last_checkpoint),
            (std::set<std::string>{"manifest.json", "model.safetensors", "state.json"}));
  // It cannot be resumed, and says what to do.
  const auto resumed = tiny.train({"trainer.max_steps=12"});
  ASSERT_FALSE(resumed.ok());
  EXPECT_NE(resumed.status().to_string().find("save_weights_only"), std::string::npos);

  // The .nemo of the best is not that of the last: watch a metric that only gets worse.
  const TinyRun best;
  const std::vector<std::string> keys{params + "save_best_model=true", params + "monitor=val_loss",
                                      params + "mode=max", params + "filename='{step}'"};
  const RunResult kept = run(best, keys);
  const auto losses = best.values(RecordKind::kVal, "val_loss");
  ASSERT_EQ(losses.size(), 2u);
  const auto loaded = best.config(keys, false);
  NestEvalOptions options;
  options.config = &loaded->run;
  options.env = &Env::real();
  options.checkpoint = kept.archive;
  const auto report = evaluate_nest(options);
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_DOUBLE_EQ(report->loss, std::max(losses[0], losses[1]));
}

TEST(CheckpointKeysTest, ValidationOfTheRestoredStep) {
  const TinyRun skips, repeats;
  for (const TinyRun* tiny : {&skips, &repeats}) run(*tiny, {"trainer.max_steps=3"});
  run(skips, {"trainer.max_steps=4"});
  EXPECT_EQ(skips.steps(RecordKind::kVal), (Steps{3}));
  run(repeats, {"trainer.max_steps=4", "++exp_manager.disable_validation_on_resume=false"});
  EXPECT_EQ(repeats.steps(RecordKind::kVal), (Steps{3, 3}));
  const auto losses = repeats.values(RecordKind::kVal, "val_loss");
  EXPECT_EQ(losses[0], losses[1]);
}

TEST(DataKeysTest, MixingInEitherPlaceGivesTheSameRun) {
  const TinyRun cpu, consumer;
  run(cpu, {"aerie.data.mix_on=cpu"});
  run(consumer, {"aerie.data.mix_on=gpu"});
  EXPECT_EQ(cpu.values(RecordKind::kTrain, "train_loss"),
            consumer.values(RecordKind::kTrain, "train_loss"));
}

}  // namespace
}  // namespace aerie::train::nest_keys_test
