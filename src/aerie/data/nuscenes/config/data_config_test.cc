#include <gtest/gtest.h>

#include "aerie/config/yaml.h"
#include "aerie/data/nuscenes/config/data_schema.h"
#include "aerie/data/nuscenes/map/map_expansion.h"

namespace aerie::nuscenes {
namespace {

Result<StandaloneConfig> read(const std::string& yaml) {
  auto tree = config::parse_yaml(yaml, "bev.yaml");
  EXPECT_TRUE(tree.ok()) << tree.status().to_string();
  return read_data_nodes(*tree);
}

StandaloneConfig good(const std::string& yaml) {
  auto out = read(yaml);
  EXPECT_TRUE(out.ok()) << out.status().to_string();
  return out.ok() ? *out : StandaloneConfig{};
}

TEST(NuscenesConfigTest, TheOptimizedPresetIsRead) {
  const StandaloneConfig got = good(R"(
name: lss_swin_nuscenes_optimized
trainer: {devices: [0], max_steps: 200000}
model:
  profile: seed
  classes: [drivable_area, ped_crossing, walkway, stop_line, carpark_area, divider]
  train_ds: {root: data/nuscenes, version: v1.0-trainval, split: train, batch_size: 6, num_workers: 12,
             pin_memory: true, persistent_workers: true, prefetch_factor: 4, decode: auto}
  validation_ds: {split: val, batch_size: 1}
  metrics: [mIoU]
)");
  const DataConfig& train = got.data.train_ds;
  EXPECT_EQ(train.root, "data/nuscenes");
  EXPECT_EQ(train.batch_size, 6);
  EXPECT_EQ(train.num_workers, 12);
  EXPECT_EQ(train.prefetch_factor, 4);
  EXPECT_TRUE(train.persistent_workers && train.shuffle && train.drop_last);
  EXPECT_EQ(train.image.size, (std::array<int64_t, 2>{128, 352}));
  EXPECT_EQ(train.gt.classes.size(), 6u);
  EXPECT_TRUE(train.augments_images() && train.augments_bev());
  // Where the data is need not be said twice; what training does with it is not inherited.
  ASSERT_TRUE(got.data.validation_ds);
  const DataConfig& val = *got.data.validation_ds;
  EXPECT_EQ(val.root, "data/nuscenes");
  EXPECT_EQ(val.version, "v1.0-trainval");
  EXPECT_EQ(val.split_name(), "val");
  EXPECT_EQ(val.gt.classes, train.gt.classes);
  EXPECT_FALSE(val.shuffle || val.drop_last || val.augments_images() || val.augments_bev());
  EXPECT_EQ(val.num_workers, DataConfig::kAutoWorkers);
  EXPECT_FALSE(got.data.test_ds);
}

// Whatever can be drawn can be asked for.
TEST(NuscenesConfigTest, EveryLayerIsAClass) {
  std::vector<std::string> names = {"divider", "drivable_area*"};
  for (int i = 0; i < kNumMapLayers; ++i) names.emplace_back(name_of(static_cast<MapLayer>(i)));
  for (const std::string& name : names) {
    const StandaloneConfig got =
        good("model: {train_ds: {root: d, gt: {classes: ['" + name + "']}}}");
    EXPECT_EQ(got.data.train_ds.gt.classes, std::vector<std::string>{name});
  }
}

TEST(NuscenesConfigTest, ProfilesGiveTheDefaults) {
  const StandaloneConfig bf = good("model: {profile: bf, train_ds: {data_root: d}}");
  EXPECT_EQ(bf.data.train_ds.root, "d");
  EXPECT_EQ(bf.data.train_ds.sampler.type, SamplerType::kCbgs);
  EXPECT_EQ(bf.data.train_ds.image.size, (std::array<int64_t, 2>{256, 704}));
  const StandaloneConfig lss =
      good("model: {profile: lss, train_ds: {root: d}, validation_ds: {}, test_ds: {split: val}}");
  EXPECT_EQ(lss.data.train_ds.num_cameras, 5);
  EXPECT_EQ(lss.data.validation_ds->num_cameras, 0);
  EXPECT_EQ(lss.data.test_ds->split_name(), "val");
  EXPECT_EQ(lss.data.train_ds.gt.task, GtTaskChoice::kVehicle);
  EXPECT_FALSE(lss.data.train_ds.augments_bev());
  const StandaloneConfig own = good(
      "model: {profile: lss, train_ds: {root: d, bev: {augment: true}, cameras: [CAM_BACK], "
      "gt: {task: map}, splits: {train: a.txt, mine: b.txt}}}");
  EXPECT_TRUE(own.data.train_ds.augments_bev());
  EXPECT_EQ(own.data.train_ds.cameras, std::vector<std::string>{"CAM_BACK"});
  EXPECT_EQ(own.data.train_ds.num_cameras, 0);
  EXPECT_EQ(own.data.train_ds.splits.at("mine"), "b.txt");
}

TEST(NuscenesConfigTest, WrongKeysAndCombinationsAreRefusedWithAReason) {
  const auto refused = [](const std::string& train, const std::string& text,
                          const std::string& node = "train_ds") {
    const auto result = read("model: {" + node + ": {root: d, " + train + "}}");
    ASSERT_FALSE(result.ok()) << train;
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(result.status().to_string().find(text), std::string::npos)
        << train << ": " << result.status().to_string();
  };
  refused("batch_siz: 3", "did you mean 'model.train_ds.batch_size'?");
  refused("gt: {compt: exact}", "did you mean 'model.train_ds.gt.compat'?");
  refused("batch_size: 0", "out of range");
  refused("num_workers: 0, prefetch_factor: 2",
          "prefetch_factor: must be null when num_workers is 0");
  refused("num_workers: 0, persistent_workers: true", "must be false when num_workers is 0");
  refused("num_workers: many", "expected one of auto");
  refused("num_workers: -1", "out of range");
  refused("decode: gpu", "'gpu' is refused");
  refused("decode: fast", "unknown value 'fast'");
  refused("decode: scaled", "evaluation always decodes exactly", "validation_ds");
  refused("sampler: {type: cbgs}", "an evaluation counts each once", "test_ds");
  refused("sampler: {repeat: 2}", "counts each sample once", "validation_ds");
  refused("sampler: {repeat: 0}", "out of range");
  refused("cameras: 5", "training only", "validation_ds");
  refused("cameras: 7", "out of range");
  refused("cameras: [CAM_FRNT]", "did you mean 'CAM_FRONT'?");
  refused("cameras: [CAM_BACK, CAM_BACK]", "twice");
  refused("cameras: []", "empty");
  refused("version: v1.0-test, split: train", "'train' is not in v1.0-test");
  refused("version: v1.0-mini", "'test' is not in v1.0-mini", "test_ds");
  refused("data_root: e", "both mean the same");
  refused("image: {resize_lim: [0.5, 0.4]}", "begins with 0.5, above 0.4");
  refused("image: {size: [128]}", "has 1 values, not 2");
  refused("image: {size: [0, 352]}", "out of range");
  refused("image: {bot_pct_lim: [0, 1]}", "out of range");
  refused("gt: {xbound: [-50, 50, 0.3]}", "no whole number of cells");
  refused("gt: {xbound: [50, -50, 0.5]}", "goes from 50 to -50");
  refused("gt: {xbound: [-50, 50, 0.001]}", "cells, more than 4096");
  refused("gt: {classes: [walkways]}", "did you mean 'walkway'?");
  refused("gt: {task: car, classes: [walkway]}", "belong to the map");
  refused("gt: {classes: [traffic_light]}", "there is no class 'traffic_light'");
  refused("max_bad_fraction: 2", "out of range");
  // An own split may be called anything.
  EXPECT_TRUE(read("model: {train_ds: {root: d, version: v1.0-test, split: mine, splits: {mine: "
                   "f.txt}}}")
                  .ok());
  EXPECT_FALSE(read("model: {profile: bev, train_ds: {root: d}}").ok());
  EXPECT_FALSE(read("model: {train_ds: 3}").ok());
  EXPECT_FALSE(read("model: {train_ds: {root: d}}\naerie: {data: {memory_budget: 3}}").ok());
  EXPECT_EQ(good("model: {train_ds: {root: d}}\naerie: {data: {memory_budget_gib: 3}}")
                .aerie.data.memory_budget_gib,
            3.0);
}

}  // namespace
}  // namespace aerie::nuscenes
