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
