// Every policy against what mmcv 1.7.1 set (tests/golden/make_mm_fixtures.py).
#include "aerie/optim/mm_schedule.h"

#include <cmath>
#include <fstream>
#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/base/testing/paths.h"

namespace aerie::optim {
namespace {

using nlohmann::json;

MmPolicyConfig config_of(const std::string& policy, const json& arguments, bool momentum) {
  static const std::map<std::string, MmPolicy> kPolicies = {
      {"fixed", MmPolicy::kFixed},
      {"step", MmPolicy::kStep},
      {"exp", MmPolicy::kExp},
      {"inv", MmPolicy::kInv},
      {"poly", MmPolicy::kPoly},
      {"CosineAnnealing", MmPolicy::kCosineAnnealing},
      {"FlatCosineAnnealing", MmPolicy::kFlatCosineAnnealing},
      {"CosineRestart", MmPolicy::kCosineRestart},
      {"LinearAnnealing", MmPolicy::kLinearAnnealing},
      {"cyclic", MmPolicy::kCyclic},
      {"OneCycle", MmPolicy::kOneCycle}};
  MmPolicyConfig c;
  c.policy = kPolicies.at(policy);
  // The default of mmcv's hooks, which a runner of iterations changes.
  c.by_epoch = policy != "cyclic" && policy != "OneCycle";
  const std::string noun = momentum ? "momentum" : "lr";
  for (const auto& [key, value] : arguments.items()) {
    if (key == "by_epoch")
      c.by_epoch = value;
    else if (key == "warmup")
      c.warmup = value == "linear"     ? MmWarmup::kLinear
                 : value == "constant" ? MmWarmup::kConstant
                                       : MmWarmup::kExp;
    else if (key == "warmup_iters")
      c.warmup_iters = value;
    else if (key == "warmup_ratio")
      c.warmup_ratio = value;
    else if (key == "warmup_by_epoch")
      c.warmup_by_epoch = value;
    else if (key == "power")
      c.power = value;
    else if (key == "min_" + noun)
      c.min_value = value;
    else if (key == "min_" + noun + "_ratio")
      c.min_ratio = value;
    else if (key == "gamma")
      c.gamma = value;
    else if (key == "step") {
      c.step_is_interval = value.is_number();
      if (c.step_is_interval)
        c.step = {value.get<int64_t>()};
      else
        c.step = value.get<std::vector<int64_t>>();
    } else if (key == "start_percent")
      c.start_percent = value;
    else if (key == "periods")
      c.periods = value.get<std::vector<int64_t>>();
    else if (key == "restart_weights")
      c.restart_weights = value.get<std::vector<double>>();
    else if (key == "target_ratio")
      c.target_ratio = value.is_number()
                           ? std::array{value.get<double>(), value.get<double>() / 1e5}
                           : std::array{value[0].get<double>(), value[1].get<double>()};
    else if (key == "cyclic_times")
      c.cyclic_times = value;
    else if (key == "step_ratio_up")
      c.step_ratio_up = value;
    else if (key == "anneal_strategy")
      c.anneal = value == "cos" ? MmAnneal::kCos : MmAnneal::kLinear;
    else if (key == "max_lr")
      c.max_lr = {value.get<double>()};
    else if (key == "total_steps")
      c.total_steps = value;
    else if (key == "pct_start")
      c.pct_start = value;
    else if (key == "div_factor")
      c.div_factor = value;
    else if (key == "final_div_factor")
      c.final_div_factor = value;
    else if (key == "three_phase")
      c.three_phase = value;
    else if (key == "base_momentum")
      c.base_momentum = value;
    else if (key == "max_momentum")
      c.max_momentum = value;
    else
      ADD_FAILURE() << "unknown argument " << key;
  }
  return c;
}

TEST(MmScheduleTest, PoliciesAreMmcvs) {
  std::ifstream file(test_data("/mm/schedules.json"));
  const json cases = json::parse(file);
  ASSERT_GE(cases.size(), 25u);
  for (const json& one : cases) {
    const bool momentum = one["kind"] == "momentum";
    SCOPED_TRACE(one["kind"].get<std::string>() + " " + one["policy"].get<std::string>() + " " +
                 one["arguments"].dump());
    const MmPolicyConfig config = config_of(one["policy"], one["arguments"], momentum);
    const MmRunLength length{one["max_iters"], one["epoch_iters"], std::nullopt};
    const auto made = MmSchedule::make(momentum ? MmPolicyConfig() : config,
                                       momentum ? std::optional(config) : std::nullopt,
                                       one["base_rates"].get<std::vector<double>>(), 0.9, length);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    ASSERT_GE(one["values"].size(), 10u);
    for (const json& point : one["values"]) {
      const int64_t iteration = point[0];
      const std::vector<double> expected = point[1];
      for (size_t group = 0; group < expected.size(); ++group) {
        const double got =
            momentum ? made->momentum_at(iteration).value() : made->at(iteration)[group];
        EXPECT_NEAR(got, expected[group], 1e-14 * std::abs(expected[group])) << iteration;
      }
    }
    // What would follow the end is a number too.
    for (const int64_t after : {1000, 1001, 5000}) {
      EXPECT_TRUE(std::isfinite(made->at(after)[0]));
      if (momentum) {
        EXPECT_TRUE(std::isfinite(*made->momentum_at(after)));
      }
    }
  }
}

TEST(MmScheduleTest, WrongValuesNameTheirKey) {
  const auto error = [](const MmPolicyConfig& c) {
    return MmSchedule::make(c, std::nullopt, {0.1}, 0.9, {100, 10, {}}).status().to_string();
  };
  MmPolicyConfig c;
  c.warmup = MmWarmup::kLinear;
  EXPECT_NE(error(c).find("warmup_iters"), std::string::npos);
  c = {};
  c.policy = MmPolicy::kStep;
  EXPECT_NE(error(c).find("step"), std::string::npos);
  c.policy = MmPolicy::kCosineAnnealing;
  EXPECT_NE(error(c).find("least value"), std::string::npos);
  c.policy = MmPolicy::kCyclic;
  c.cyclic_times = 101;
  EXPECT_NE(error(c).find("cyclic_times"), std::string::npos);
  c = {};
  c.policy = MmPolicy::kOneCycle;
  c.max_lr = {1.0};
  c.total_steps = 50;
  EXPECT_NE(error(c).find("total_steps"), std::string::npos);
  EXPECT_FALSE(MmSchedule::make({}, std::nullopt, {0.1}, 0.9, {0, 10, {}}).ok());
  // The warm-up of momentum divides: mmcv's own default makes beta1 of 0.9 a 1.
  c = {};
  c.warmup = MmWarmup::kConstant;
  c.warmup_iters = 5;
  c.warmup_ratio = 0.9;
  EXPECT_NE(MmSchedule::make({}, c, {0.1}, 0.9, {100, 10, {}})
                .status()
                .to_string()
                .find("momentum would begin at 1"),
            std::string::npos);
  EXPECT_TRUE(MmSchedule::make({}, c, {0.1}, 0.85, {100, 10, {}}).ok());
}

}  // namespace
}  // namespace aerie::optim
