#include <cmath>

#include <gtest/gtest.h>

#include "aerie/base/clock.h"
#include "aerie/checkpoint/train_state.h"
#include "aerie/metrics/record.h"
#include "aerie/train/eval_accumulator.h"
#include "aerie/train/guards.h"
#include "aerie/train/start_times.h"
#include "aerie/train/step_times.h"

namespace aerie::train {
namespace {

StepOutcome outcome(double loss, double grad_norm = 1.0) {
  StepOutcome out;
  out.loss = loss;
  out.grad_norm = grad_norm;
  return out;
}

TEST(StepTimesTest, SlowestStepIsNamedAndFirstRunsAreCountedApart) {
  StepTimes times;
  for (int64_t step = 1; step <= 20; ++step) times.add(step, 5.0, step < 3);  // warm-up
  EXPECT_EQ(times.sentence(), "");
  for (int64_t step = 21; step <= 120; ++step)
    times.add(step, step == 70 ? 0.021 : 0.008, /*first_run=*/false);
  times.add(121, 0.3, /*first_run=*/true);
  EXPECT_NEAR(times.median_s(), 0.008, 1e-6);
  EXPECT_EQ(times.slowest_step(), 70);
  EXPECT_EQ(times.num_first_runs(), 1);
  EXPECT_EQ(times.sentence(),
            "step time after the first 20: median 8 ms, slowest 21 ms (step 70); 1 more ran a "
            "shape of batch for the first or second time, the slowest in 300 ms");
}

TEST(StartTimesTest, PhasesAddUpToTheTimeSinceTheLaunch) {
  FakeClock clock;
  StartTimes times(clock, 0.5);
  clock.advance_s(1.0);
  times.mark("model");
  clock.advance_s(0.25);
  times.mark("first step");
  times.beside("libraries", 0.75);
  EXPECT_NEAR(times.total_s(), 1.75, 1e-9);
  EXPECT_EQ(times.sentence(),
            "first step done 1.75 s after the launch: configuration 0.50 s, model 1.00 s, first "
            "step 0.25 s (in them or beside them: libraries 0.75 s)");
  EXPECT_GE(process_age_s(), 0.0);
  EXPECT_LT(process_age_s(), 3600.0);
}

TEST(GuardsTest, FindsSpikesOnlyOnceItKnowsTheSpread) {
  Guards guards({10, 6.0});
  for (int i = 0; i < 200; ++i) {
    const GuardVerdict verdict = guards.after_step(outcome(1.0 + 0.01 * (i % 7)));
    EXPECT_FALSE(verdict.loss_spike) << i;
  }
  EXPECT_TRUE(guards.after_step(outcome(3.0)).loss_spike);
}

TEST(GuardsTest, StateSurvivesACheckpoint) {
  Guards a({10, 6.0});
  for (int i = 0; i < 150; ++i) (void)a.after_step(outcome(2.0 - 0.01 * i, 0.5 + 0.001 * (i % 5)));
  Guards b({10, 6.0});
  ASSERT_TRUE(b.restore(a.to_json()).ok());
  for (int i = 0; i < 20; ++i) {
    const GuardVerdict x = a.after_step(outcome(0.3 * i, 1.0)),
                       y = b.after_step(outcome(0.3 * i, 1.0));
    EXPECT_EQ(x.loss_zscore, y.loss_zscore);
    EXPECT_EQ(a.smoothed_loss(), b.smoothed_loss());
  }
  for (const char* damaged : {"", "{}", "[1]", "{\"nonfinite_in_a_row\":\"x\"}"})
    EXPECT_FALSE(b.restore(damaged).ok());
}

// Two ranks that merge what they gathered know what one that saw everything knows.
TEST(EvalAccumulatorTest, RanksMergeToTheWhole) {
  const std::vector<EvalOutcome> outcomes = {
      {2.0, true, {1.0, 10.0}}, {9.0, false, {}}, {4.0, true, {3.0, 5.0}}, {6.0, true, {0.0, 1.0}}};
  EvalAccumulator all, first, second, none;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    all.add(outcomes[i]);
    (i < 2 ? first : second).add(outcomes[i]);
  }
  EvalAccumulator merged;
  for (const EvalAccumulator* part : {&none, &first, &second}) merged.merge(part->pack());
  EXPECT_EQ(merged.pack(), all.pack());
  EXPECT_EQ(merged.mean_loss(), 4.0);
  EXPECT_EQ(merged.batches(), 4);
  EXPECT_EQ(merged.counted(), 3);
  EXPECT_EQ(std::vector<double>(merged.sums().begin(), merged.sums().end()),
            (std::vector<double>{4.0, 16.0}));
  EXPECT_TRUE(std::isnan(none.mean_loss()));
  // With a global loss batches count by what they are means of.
  EvalAccumulator weighted;
  for (const EvalOutcome& one : {EvalOutcome{2.0, true, {}, 3.0}, EvalOutcome{5.0, true, {}, 1.0},
                                 EvalOutcome{9.0, false, {}, 8.0}})
    weighted.add(one);
  EXPECT_EQ(weighted.mean_loss(), 2.75);
  merged = {};
  merged.merge(weighted.pack());
  EXPECT_EQ(merged.mean_loss(), 2.75);
}

TEST(MetricValuesTest, AreSumsOverWeights) {
  MetricValues step, other;
  step.add("share", 3.0, 10.0);
  step.add("share", 1.0, 10.0);
  other.add("share", 4.0, 20.0);
  other.add("depth", 2.0, 0.0);
  step.merge(other);
  ASSERT_NE(step.find("share"), nullptr);
  EXPECT_EQ(step.find("share")->value(), 8.0 / 40.0);
  EXPECT_EQ(step.find("depth")->value(), 0.0);
  EXPECT_EQ(step.find("width"), nullptr);
}

TEST(StepHealthTest, TellsADivergedRunFromASingleBadStep) {
  const auto health = [](const std::string& steps) {  // '.' fine, 'x' bad
    StepHealth out;
    for (const char step : steps) out.add(step == 'x');
    return out;
  };
  for (const char* fine : {"", ".", "..........", "xxxxxxxxxx..........", ".........x",
                           "x.........", ".x..x..x..", "xxx........."})
    EXPECT_FALSE(health(fine).unhealthy()) << fine;
  for (const char* bad : {"x", ".xxxxxxx", "........xx", "....................xxxxxxxxxx",
                          "xxxxxxxxxxxxxxxxxxxx", "x.x.x.x.x.", ".x"})
    EXPECT_TRUE(health(bad).unhealthy()) << bad;
  EXPECT_EQ(health("....").sentence(), "");
  EXPECT_EQ(health(".........x").sentence(), "the last step was not finite or skipped");
  EXPECT_EQ(health("...xxxxxxx").sentence(), "the last 7 steps were not finite or skipped");
  EXPECT_EQ(health("..x.......").sentence(), "1 of the last 10 steps was not finite or skipped");
}

TEST(GuardsTest, HealthSurvivesACheckpointAlsoOfEarlierVersions) {
  Guards a({100, 6.0});
  for (int i = 0; i < 12; ++i) (void)a.after_step(outcome(i % 3 == 0 ? std::nan("") : 1.0));
  Guards b({100, 6.0});
  ASSERT_TRUE(b.restore(a.to_json()).ok());
  EXPECT_EQ(b.health().recent_bad(), a.health().recent_bad());
  Guards old({100, 6.0});
  ASSERT_TRUE(old.restore("{\"nonfinite_in_a_row\":3,\"smoothed_count\":1,\"smoothed_loss\":1.0,"
                          "\"loss\":[],\"grad_norm\":[]}")
                  .ok());
  EXPECT_TRUE(old.health().unhealthy());
  EXPECT_EQ(old.health().recent_bad().size(), 3u);
}

TEST(TrainStateTest, RoundTripsAndRefusesDamage) {
  TrainState state;
  state.step = 7;
  state.micro_step = 14;
  state.epoch = 1;
  state.wall_s = 0.1;
  state.precision = "bf16-mixed";
  state.data_cursor_json = "{\"a\": [1, 2]}";
  const auto back = TrainState::from_json(state.to_json());
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(back->to_json(), state.to_json());
  EXPECT_FALSE(TrainState::from_json("{\"step\": 1}").ok());
  EXPECT_FALSE(TrainState::from_json("").ok());
  state.step = -1;
  EXPECT_FALSE(TrainState::from_json(state.to_json()).ok());
}

}  // namespace
}  // namespace aerie::train
