#include "aerie/optim/schedule.h"

#include <fstream>
#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/base/testing/paths.h"

namespace aerie::optim {
namespace {

using config::ScheduleKind;
using Json = nlohmann::json;

const std::map<std::string, ScheduleKind> kKinds{
    {"WarmupPolicy", ScheduleKind::kWarmupPolicy},
    {"WarmupHoldPolicy", ScheduleKind::kWarmupHoldPolicy},
    {"SquareAnnealing", ScheduleKind::kSquareAnnealing},
    {"SquareRootAnnealing", ScheduleKind::kSquareRootAnnealing},
    {"CosineAnnealing", ScheduleKind::kCosineAnnealing},
    {"NoamAnnealing", ScheduleKind::kNoamAnnealing},
    {"NoamHoldAnnealing", ScheduleKind::kNoamHoldAnnealing},
    {"WarmupHoldAnnealOneMinusSquareRoot", ScheduleKind::kWarmupHoldAnnealOneMinusSquareRoot},
    {"WarmupHoldAnnealLinear", ScheduleKind::kWarmupHoldAnnealLinear},
    {"WarmupAnnealing", ScheduleKind::kWarmupAnnealing},
    {"InverseSquareRootAnnealing", ScheduleKind::kInverseSquareRootAnnealing},
    {"T5InverseSquareRootAnnealing", ScheduleKind::kT5InverseSquareRootAnnealing},
    {"PolynomialDecayAnnealing", ScheduleKind::kPolynomialDecayAnnealing},
    {"PolynomialHoldDecayAnnealing", ScheduleKind::kPolynomialHoldDecayAnnealing},
    {"StepLR", ScheduleKind::kStepLR},
    {"ExponentialLR", ScheduleKind::kExponentialLR},
    {"ReduceLROnPlateau", ScheduleKind::kReduceLROnPlateau},
    {"CyclicLR", ScheduleKind::kCyclicLR},
};

config::SchedulerConfig from_json(const Json& sched) {
  config::SchedulerConfig out;
  out.name = sched["name"];
  out.kind = kKinds.at(out.name);
  const auto number = [&](const char* key, auto& field) {
    if (sched.contains(key) && !sched[key].is_null())
      field = sched[key].get<std::decay_t<decltype(field)>>();
  };
  const auto optional_int = [&](const char* key, std::optional<int64_t>& field) {
    if (sched.contains(key) && !sched[key].is_null()) field = sched[key].get<int64_t>();
  };
  const auto optional_real = [&](const char* key, std::optional<double>& field) {
    if (sched.contains(key) && !sched[key].is_null()) field = sched[key].get<double>();
  };
  // Defaults that depend on the schedule; the configuration resolves them before they get here.
  if (out.kind == ScheduleKind::kSquareAnnealing) out.min_lr = 1e-5;
  if (out.kind == ScheduleKind::kCyclicLR) out.gamma = 1.0;
  optional_int("warmup_steps", out.warmup_steps);
  optional_real("warmup_ratio", out.warmup_ratio);
  optional_int("hold_steps", out.hold_steps);
  optional_real("hold_ratio", out.hold_ratio);
  optional_int("constant_steps", out.constant_steps);
  optional_real("constant_ratio", out.constant_ratio);
  optional_int("step_size_down", out.step_size_down);
  number("min_lr", out.min_lr);
  number("d_model", out.d_model);
  number("decay_rate", out.decay_rate);
  number("power", out.power);
  number("cycle", out.cycle);
  number("step_size", out.step_size);
  number("gamma", out.gamma);
  number("mode", out.mode);
  number("factor", out.factor);
  number("patience", out.patience);
  number("threshold", out.threshold);
  number("cooldown", out.cooldown);
  number("base_lr", out.base_lr);
  number("max_lr", out.max_lr);
  number("step_size_up", out.step_size_up);
  number("cycle_momentum", out.cycle_momentum);
  number("base_momentum", out.base_momentum);
  number("max_momentum", out.max_momentum);
  if (sched.contains("threshold_mode")) out.threshold_rel = sched["threshold_mode"] == "rel";
  return out;
}

TEST(ScheduleTest, EqualsNeMosTables) {
  std::ifstream file(test_data("/fixtures/schedules.json"));
  const Json table = Json::parse(file);
  int rows = 0, refused = 0;
  for (const Json& row : table["schedules"]) {
    const std::string name = row["name"];
    const Json& sched = row["sched"];
    // Unknown names and keys are the configuration's business; so is max_steps -1, which means no
    // schedule at all.
    if (!kKinds.contains(name) || sched.contains("bogus_key") ||
        (row.contains("scheduler") && row["scheduler"].is_null()))
      continue;
    SCOPED_TRACE(sched.dump());
    const std::optional<int64_t> max_steps =
        sched.contains("max_steps") && !sched["max_steps"].is_null()
            ? std::optional(sched["max_steps"].get<int64_t>())
            : std::nullopt;
    auto schedule =
        Schedule::make(from_json(sched), row["lr"].get<std::vector<double>>(), max_steps);
    if (row.contains("error")) {
      EXPECT_FALSE(schedule.ok());
      ++refused;
      continue;
    }
    ASSERT_TRUE(schedule.ok()) << schedule.status().to_string();
    const bool per_epoch = row["interval"] == "epoch";
    for (size_t i = 0; i < row["steps"].size(); ++i) {
      const int64_t step = row["steps"][i];
      const std::vector<double> expected = row["values"][i];
      const std::vector<double> actual = schedule->at(per_epoch ? 0 : step);
      ASSERT_EQ(actual.size(), expected.size());
      for (size_t group = 0; group < expected.size(); ++group)
        EXPECT_NEAR(actual[group], expected[group], 1e-12 + 1e-9 * std::abs(expected[group]))
            << "step " << step;
      const std::optional<double> momentum = schedule->momentum_at(step);
      ASSERT_EQ(momentum.has_value(), row.contains("momentum"));
      if (momentum) {
        EXPECT_NEAR(*momentum, row["momentum"][i].get<double>(), 1e-12);
      }
      if (per_epoch && i + 1 < row["steps"].size()) {
        std::optional<double> metric;
        if (row.contains("metrics")) metric = row["metrics"][i].get<double>();
        // Through a checkpoint between any two epochs.
        auto copy =
            Schedule::make(from_json(sched), row["lr"].get<std::vector<double>>(), max_steps);
        ASSERT_TRUE(copy->restore(schedule->state_json()).ok());
        copy->after_epoch(metric);
        *schedule = *copy;
      }
    }
    ++rows;
  }
  EXPECT_GT(rows, 80);
  EXPECT_GT(refused, 5);
}

TEST(ScheduleTest, ConstantWithoutAConfig) {
  const auto schedule = Schedule::make(std::nullopt, {0.1, 0.2}, std::nullopt);
  ASSERT_TRUE(schedule.ok());
  EXPECT_EQ(schedule->at(12345), (std::vector<double>{0.1, 0.2}));
}

TEST(ScheduleTest, RefusesDamagedState) {
  auto schedule = Schedule::make(std::nullopt, {0.1}, std::nullopt);
  for (const char* text : {"", "[]", "{}", "{\"epochs\":\"a\"}"})
    EXPECT_FALSE(schedule->restore(text).ok());
  EXPECT_TRUE(schedule->restore(schedule->state_json()).ok());
}

}  // namespace
}  // namespace aerie::optim
