#include "aerie/models/bev/config/bev_tuning.h"

#include <gtest/gtest.h>

#include "aerie/base/strings.h"
#include "aerie/base/testing/paths.h"
#include "aerie/config/dialects/mm/mm_args.h"

namespace aerie::bev::bev_tuning_test {
namespace {

using advisor::TuneKnob;
using advisor::TuneSpace;

Result<LoadedBevConfig> load_with(std::vector<std::string> args) {
  args.insert(args.begin(), config_dir("/baseline/lss_swin_nuscenes.py"));
  AERIE_ASSIGN_OR_RETURN(const auto parsed, config::mm::parse_mm_args(args));
  BevLoadOptions options;
  options.num_gpus = 1;
  return load_bev_config(Env::real(), parsed, options);
}

const TuneKnob* find_knob(const TuneSpace& space, const std::string& end) {
  for (const TuneKnob& one : space.knobs)
    if (ends_with(one.key, end)) return &one;
  return nullptr;
}

TEST(BevTuningTest, OffersTheFamilysSettings) {
  const auto loaded = load_with({});
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  const TuneSpace space = bev_tune_space(*loaded, {true, true, 16});
  EXPECT_EQ(space.batch.start, loaded->run.data.train_ds.batch_size);
  EXPECT_EQ(space.batch.changes(6), std::vector<std::string>{"model.train_ds.batch_size=6"});
  for (const char* key : {"decode", "prefetch_factor", "precision", "activation_checkpointing"})
    EXPECT_NE(find_knob(space, key), nullptr) << key;
  EXPECT_EQ(find_knob(bev_tune_space(*loaded, {false, false, 2}), "precision"), nullptr);
}

TEST(BevTuningTest, TakesAutoFromMmKeys) {
  for (const char* key : {"data.samples_per_gpu", "data.train_dataloader.samples_per_gpu"}) {
    const auto loaded = load_with({"--cfg-options", str_cat(key, "=auto")});
    ASSERT_TRUE(loaded.ok()) << key << loaded.status().to_string();
    EXPECT_TRUE(loaded->run.data.train_ds.auto_batch_size) << key;
    EXPECT_TRUE(bev_tune_space(*loaded, {}).batch.automatic) << key;
    EXPECT_FALSE(loaded->run.data.validation_ds->auto_batch_size);
  }
  EXPECT_FALSE(load_with({"--cfg-options", "data.samples_per_gpu=many"}).ok());
  EXPECT_FALSE(load_with({"--cfg-options", "data.val_dataloader.samples_per_gpu=auto"}).ok());
}

TEST(BevTuningTest, SetsTheBatchUnderTheNameThatTheFileHas) {
  const std::string file = config_dir("/baseline/lss_swin_nuscenes.py");
  const std::vector<std::string> change{"model.train_ds.batch_size=6"};
  for (const char* key : {"data.samples_per_gpu", "data.train_dataloader.samples_per_gpu"}) {
    const std::vector<std::string> args{file, "--cfg-options", str_cat(key, "=auto")};
    const auto changed = with_batch(Env::real(), args, change);
    ASSERT_TRUE(changed.ok()) << changed.status().to_string();
    EXPECT_EQ(changed->back(), str_cat("--", key, "=6"));
  }
  const std::vector<std::string> own{config_dir("/baseline/lss_swin_quickstart.yaml"),
                                     "--cfg-options", "model.train_ds.batch_size=auto"};
  const auto changed = with_batch(Env::real(), own, change);
  ASSERT_TRUE(changed.ok()) << changed.status().to_string();
  EXPECT_EQ(changed->back(), "--model.train_ds.batch_size=6");
  EXPECT_FALSE(with_batch(Env::real(), {"/nowhere.py"}, change).ok());
}

TEST(BevTuningTest, ARateThatTheConfigurationScalesIsLeftAlone) {
  const auto loaded = load_with(
      {"--cfg-options", "optimizer.lr_scaling.rule=sqrt", "optimizer.lr_scaling.base_batch=4"});
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  EXPECT_NE(bev_tune_space(*loaded, {}).rate.scaled_by_config.find("square-root"),
            std::string::npos);
}

}  // namespace
}  // namespace aerie::bev::bev_tuning_test
