#include <cmath>

#include <gtest/gtest.h>

#include "aerie/train/guards.h"
#include "aerie/train/train_state.h"

namespace aerie::train {
namespace {

StepOutcome outcome(double loss, double grad_norm = 1.0) {
  StepOutcome out;
  out.loss = loss;
  out.grad_norm = grad_norm;
  return out;
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
