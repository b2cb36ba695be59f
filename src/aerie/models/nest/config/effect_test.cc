#include "aerie/config/schema/effect.h"

#include <gtest/gtest.h>

#include "aerie/base/strings.h"
#include "aerie/base/testing/paths.h"
#include "aerie/models/nest/config/nest_schema.h"
#include "aerie/models/nest/config/test_util.h"

namespace aerie::config {
namespace {

std::map<std::string, IdleKey> idle_in(const std::vector<std::pair<std::string, Value>>& changes,
                                       int num_gpus = 1) {
  return keys_without_effect(nest_schema(), check_stock(changes).resolved, num_gpus);
}

TEST(EffectTest, NamesWhatOneDeviceMakesIdle) {
  const auto idle = idle_in({{"model.train_ds.persistent_workers", Value(true)}});
  for (const char* key : {"trainer.strategy", "trainer.sync_batchnorm"}) {
    ASSERT_TRUE(idle.contains(key)) << key;
    EXPECT_EQ(idle.at(key).why, "one device");
    EXPECT_FALSE(idle.at(key).at_default);
  }
  ASSERT_TRUE(idle.contains("model.train_ds.persistent_workers"));
  EXPECT_FALSE(idle.contains("trainer.max_steps"));
  EXPECT_FALSE(idle.contains("model.train_ds.batch_size"));
  EXPECT_FALSE(idle.contains("trainer.devices"));
}

TEST(EffectTest, EveryOptionOfTheStrategyIsNamed) {
  const Checked ddp = check_file(config_dir("/nest/nest_fast-conformer_ddp_example.yaml"));
  const auto idle = keys_without_effect(nest_schema(), ddp.resolved, 1);
  for (const char* key : {"trainer.strategy._target_", "trainer.strategy.gradient_as_bucket_view",
                          "trainer.strategy.static_graph", "trainer.sync_batchnorm"})
    EXPECT_TRUE(idle.contains(key)) << key;
}

TEST(EffectTest, AKeyIsJudgedByTheOthers) {
  EXPECT_TRUE(idle_in({}).contains("model.train_ds.shuffle_n"));
  EXPECT_FALSE(
      idle_in({{"model.train_ds.is_tarred", Value(true)}}).contains("model.train_ds.shuffle_n"));
  EXPECT_TRUE(idle_in({}).contains("model.train_ds.concat_sampling_temperature"));
  EXPECT_FALSE(idle_in({{"model.train_ds.is_concat", Value(true)}})
                   .contains("model.train_ds.concat_sampling_temperature"));
  EXPECT_TRUE(idle_in({}, 0).contains("model.train_ds.pin_memory"));
  EXPECT_FALSE(idle_in({}, 1).contains("model.train_ds.pin_memory"));
  const std::pair<std::string, Value> decay{"exp_manager.ema.decay", Value(0.9)};
  EXPECT_TRUE(idle_in({decay}).contains("exp_manager.ema.decay"));
  EXPECT_FALSE(
      idle_in({decay, {"exp_manager.ema.enable", Value(true)}}).contains("exp_manager.ema.decay"));
  const std::pair<std::string, Value> patience{
      "exp_manager.early_stopping_callback_params.patience", Value(3)};
  EXPECT_TRUE(idle_in({patience}).contains(patience.first));
  EXPECT_FALSE(idle_in({patience, {"exp_manager.create_early_stopping_callback", Value(true)}})
                   .contains(patience.first));
}

TEST(EffectTest, TheSentenceLeavesOutDefaultsAndGroupsReasons) {
  std::map<std::string, IdleKey> keys;
  EXPECT_EQ(idle_keys_sentence(keys), "");
  keys["a"] = {"one device", false};
  keys["b"] = {"other", false};
  keys["c"] = {"one device", false};
  keys["d"] = {"one device", true};
  EXPECT_EQ(idle_keys_sentence(keys), "a, c (one device); b (other)");
}

// Whatever the table says of a key, a run says why it is idle.
TEST(EffectTest, EveryReasonHasWords) {
  for (const KeySpec* key : nest_schema().all_keys()) {
    if (key->status == KeyStatus::kNoEffect) {
      EXPECT_FALSE(key->help.empty()) << key->path;
    }
    if (key->status == KeyStatus::kLater) {
      EXPECT_FALSE(key->note.empty()) << key->path;
    }
  }
}

}  // namespace
}  // namespace aerie::config
