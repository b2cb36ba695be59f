#include "aerie/train/cadence.h"

#include <gtest/gtest.h>

namespace aerie::train {
namespace {

config::TrainerConfig trainer() {
  config::TrainerConfig out;
  out.max_epochs = -1;
  return out;
}

// Micro-batches of the first `batches` after which validation runs.
std::vector<int64_t> validations(const Cadence& cadence, int64_t batches) {
  std::vector<int64_t> out;
  Position position;
  for (int64_t i = 1; i <= batches; ++i) {
    ++position.batch;
    ++position.total_batch;
    if (cadence.validate_after(position)) out.push_back(i);
    if (position.batch == cadence.batches_per_epoch()) {
      position.batch = 0;
      ++position.epoch;
    }
  }
  return out;
}

using Steps = std::vector<int64_t>;

TEST(CadenceTest, IntegerIntervalRestartsEveryEpoch) {
  auto config = trainer();
  config.val_check_interval = {false, 0.0, 4};
  const auto cadence = Cadence::make(config, 10, true);
  ASSERT_TRUE(cadence.ok());
  EXPECT_EQ(validations(*cadence, 30), (Steps{4, 8, 14, 18, 24, 28}));
}

TEST(CadenceTest, FractionIsTruncatedAndAtLeastOne) {
  auto config = trainer();
  config.val_check_interval = {true, 0.25, 0};
  EXPECT_EQ(validations(*Cadence::make(config, 10, true), 10), (Steps{2, 4, 6, 8, 10}));
  for (const double share : {0.01, 0.0}) {
    config.val_check_interval = {true, share, 0};
    EXPECT_EQ(validations(*Cadence::make(config, 10, true), 3), (Steps{1, 2, 3}));
  }
  config.val_check_interval = {true, 1.0, 0};
  EXPECT_EQ(validations(*Cadence::make(config, 10, true), 20), (Steps{10, 20}));
}

TEST(CadenceTest, NullEpochIntervalCountsGlobally) {
  auto config = trainer();
  config.check_val_every_n_epoch = std::nullopt;
  config.val_check_interval = {false, 0.0, 7};
  EXPECT_EQ(validations(*Cadence::make(config, 5, true, {.compat = true}), 21), (Steps{7, 14, 21}));
}

TEST(CadenceTest, IntervalBeyondAnEpochCountsAcrossEpochsAndSaysSo) {
  auto config = trainer();
  config.val_check_interval = {false, 0.0, 12};
  const auto cadence = Cadence::make(config, 5, true);
  ASSERT_TRUE(cadence.ok());
  EXPECT_EQ(validations(*cadence, 24), (Steps{12, 24}));
  EXPECT_NE(cadence->note().find("12"), std::string::npos);
  const auto compat = Cadence::make(config, 5, true, {.compat = true});
  ASSERT_FALSE(compat.ok());
  EXPECT_EQ(compat.status().code(), StatusCode::kInvalidArgument);
}

TEST(CadenceTest, ValidatesOnlyInEveryNthEpoch) {
  auto config = trainer();
  config.check_val_every_n_epoch = 3;
  EXPECT_EQ(validations(*Cadence::make(config, 4, true), 24), (Steps{12, 24}));
}

TEST(CadenceTest, NoValidationWithoutASetOrWithAZeroLimit) {
  auto config = trainer();
  EXPECT_TRUE(validations(*Cadence::make(config, 4, false), 20).empty());
  config.limit_val_batches = {false, 0.0, 0};
  EXPECT_TRUE(validations(*Cadence::make(config, 4, true), 20).empty());
}

TEST(CadenceTest, LastWindowOfAnEpochIsShorter) {
  auto config = trainer();
  config.accumulate_grad_batches = 4;
  const auto cadence = Cadence::make(config, 10, false);
  EXPECT_EQ(cadence->steps_per_epoch(), 3);
  EXPECT_EQ(cadence->next_window({0, 0, 0, 0}), 4);
  EXPECT_EQ(cadence->next_window({1, 0, 4, 4}), 4);
  EXPECT_EQ(cadence->next_window({2, 0, 8, 8}), 2);
}

TEST(CadenceTest, StopsAtStepsOrEpochsWhicheverComesFirst) {
  auto config = trainer();
  config.max_steps = 7;
  config.max_epochs = 2;
  const auto cadence = Cadence::make(config, 5, false);
  EXPECT_EQ(cadence->planned_steps(), 7);
  EXPECT_FALSE(cadence->finished({6, 1, 1, 6}));
  EXPECT_TRUE(cadence->finished({7, 1, 2, 7}));
  EXPECT_TRUE(cadence->finished({6, 2, 0, 10}));
  config.max_steps = -1;
  config.max_epochs = std::nullopt;  // Lightning: 1000 epochs
  EXPECT_EQ(Cadence::make(config, 5, false)->planned_steps(), 5000);
}

TEST(CadenceTest, LimitsBatches) {
  auto config = trainer();
  config.limit_train_batches = {true, 0.5, 0};
  EXPECT_EQ(Cadence::make(config, 9, false)->batches_per_epoch(), 4);
  config.limit_train_batches = {false, 0.0, 3};
  EXPECT_EQ(Cadence::make(config, 9, false)->batches_per_epoch(), 3);
  config.overfit_batches = {false, 0.0, 2};
  EXPECT_EQ(Cadence::make(config, 9, false)->batches_per_epoch(), 2);
  config.fast_dev_run = 1;
  EXPECT_EQ(Cadence::make(config, 9, true)->planned_steps(), 1);
  EXPECT_FALSE(Cadence::make(trainer(), 0, false).ok());
}

TEST(CadenceTest, LogsEveryNSteps) {
  auto config = trainer();
  config.log_every_n_steps = 10;
  const auto cadence = Cadence::make(config, 5, false);
  EXPECT_FALSE(cadence->log_after_step(9));
  EXPECT_TRUE(cadence->log_after_step(10));
}

}  // namespace
}  // namespace aerie::train
