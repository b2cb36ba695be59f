// A tiny model through the whole engine: trains, validates, saves, goes on, reports.
#include <gtest/gtest.h>

#include "aerie/base/env.h"
#include "aerie/base/strings.h"
#include "aerie/base/temp_dir.h"
#include "aerie/data/nuscenes/test_root.h"
#include "aerie/metrics/metrics_log.h"
#include "aerie/models/bev/run/bev_family.h"

namespace aerie::bev {
namespace {

const models::Families& families() {
  static const models::Families all{{&bev_family()}, {&mm_dialect()}};
  return all;
}

class BevRunTest : public testing::Test {
 protected:
  BevRunTest() {
    const std::string text = str_cat(R"(
name: tiny
trainer:
  accelerator: cpu
  max_steps: 10
  accumulate_grad_batches: 2
  gradient_clip_val: 35
  val_check_interval: 4
  check_val_every_n_epoch: null
  log_every_n_steps: 2
  num_sanity_val_steps: 0
exp_manager:
  resume_if_exists: true
  resume_ignore_no_checkpoint: true
  checkpoint_callback_params: {monitor: mIoU, mode: max}
aerie: {seed: 3, step_unit: micro, pictures: 2}
model:
  profile: seed
  classes: [drivable_area, walkway]
  encoders:
    camera:
      backbone: {embed_dims: 8, depths: [1, 1, 1, 1], num_heads: [1, 2, 2, 4], mlp_ratio: 2}
      neck: {out_channels: 12}
      vtransform: {out_channels: 6, xbound: [-48, 48, 2], ybound: [-48, 48, 2], dbound: [1, 33, 4]}
  decoder: {backbone: {width: 4}}
  train_ds:
    root: )",
                                     root_.path(""), R"(
    cache_dir: )",
                                     dir_.file("cache"), R"(
    batch_size: 2
    num_workers: 0
    image: {size: [32, 88], resize_lim: [0.5, 0.7]}
  validation_ds: {num_workers: 0}
  optim:
    name: adamw
    lr: 2e-3
    sched: {name: step, step: [8]}
)");
    EXPECT_TRUE(Env::real().write_file(dir_.file("tiny.yaml"), text).ok());
  }
  Result<train::RunResult> train(const std::string& name, std::vector<std::string> options = {}) {
    std::vector<std::string> args = {dir_.file("tiny.yaml"), "--work-dir", dir_.file(name)};
    if (!options.empty()) args.push_back("--cfg-options");
    args.insert(args.end(), options.begin(), options.end());
    AERIE_ASSIGN_OR_RETURN(const models::Opened opened,
                           models::open_configuration(families(), args));
    train::RunOptions run;
    run.command = "bev_run_test";
    run.env = &Env::real();
    run.quiet = true;
    return models::train(opened, run);
  }
  std::vector<metrics::Record> records(const train::RunResult& result, metrics::RecordKind kind) {
    std::vector<metrics::Record> out;
    const auto file = metrics::read_metrics(Env::real(), result.run_dir + "/metrics.jsonl");
    if (file.ok())
      for (const metrics::Record& record : file->records)
        if (record.kind() == kind) out.push_back(record);
    return out;
  }
  static std::string weights_of(const train::RunResult& result) {
    const auto bytes =
        Env::real().read_file(result.last_checkpoint + "/model.safetensors", 64 << 20);
    return bytes.ok() ? *bytes : bytes.status().to_string();
  }

  nuscenes::TestRoot root_;
  TempDir dir_;
};

TEST_F(BevRunTest, TrainsValidatesSavesAndReports) {
  const auto result = train("whole");
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  EXPECT_EQ(result->step, 10);
  EXPECT_TRUE(result->healthy) << result->health;
  std::vector<int64_t> steps;
  for (const metrics::Record& record : records(*result, metrics::RecordKind::kVal)) {
    steps.push_back(record.step());
    double mean = -1.0, half = -1.0, drivable = -1.0, walkway = -1.0, loss = 0.0;
    ASSERT_TRUE(record.number("mIoU", &mean) && record.number("mIoU@0.50", &half) &&
                record.number("map/drivable_area/iou@max", &drivable) &&
                record.number("map/walkway/iou@max", &walkway) && record.number("val_loss", &loss));
    EXPECT_NEAR(mean, 0.5 * (drivable + walkway), 1e-9);
    EXPECT_LE(half, mean);
    EXPECT_GT(loss, 0.0);
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{4, 8}));
  const auto steps_of_training = records(*result, metrics::RecordKind::kTrain);
  ASSERT_FALSE(steps_of_training.empty());
  double value = 0.0;
  for (const char* name : {"loss", "loss/map/walkway/focal", "samples_per_s"})
    EXPECT_TRUE(steps_of_training.back().number(name, &value)) << name;
  EXPECT_NE(result->best_checkpoint.find("mIoU="), std::string::npos) << result->best_checkpoint;
  const auto page = Env::real().read_file(result->report, 8 << 20);
  ASSERT_TRUE(page.ok());
  for (const char* text : {"Intersection over union", "samples per second", "nuScenes folder"})
    EXPECT_NE(page->find(text), std::string::npos) << text;

  // Two samples at every validation, the same ones, in the folder and in the page.
  const auto names = [&](const std::string& folder) {
    std::vector<std::string> out;
    if (const auto files = Env::real().list_dir(result->run_dir + "/pictures/" + folder);
        files.ok())
      for (const DirEntry& file : *files) out.push_back(file.name);
    return out;
  };
  EXPECT_EQ(names("step_4").size(), 2u);
  EXPECT_EQ(names("step_4"), names("step_8"));
  size_t shown = 0;
  for (size_t at = 0; (at = page->find("data:image/jpeg;base64,", at)) != std::string::npos; ++at)
    ++shown;
  EXPECT_EQ(shown, 4u);  // of the first and of the latest validation

  // And the weights of one run start another.
  const auto next = train("next", {"load_from=" + result->last_checkpoint, "trainer.max_steps=2",
                                   "trainer.limit_val_batches=0"});
  ASSERT_TRUE(next.ok()) << next.status().to_string();
}

TEST_F(BevRunTest, AResumedRunIsTheRunThatWasNotStopped) {
  const auto whole = train("whole");
  ASSERT_TRUE(whole.ok()) << whole.status().to_string();
  const auto half = train("parts", {"trainer.max_steps=6"});
  ASSERT_TRUE(half.ok()) << half.status().to_string();
  EXPECT_NE(weights_of(*half), weights_of(*whole));
  const auto rest = train("parts");
  ASSERT_TRUE(rest.ok()) << rest.status().to_string();
  EXPECT_EQ(rest->step, 10);
  EXPECT_EQ(weights_of(*rest), weights_of(*whole));
}

TEST_F(BevRunTest, MistakesAreNamed) {
  const auto key = train("a", {"model.optim.lrr=1"});
  ASSERT_FALSE(key.ok());
  EXPECT_NE(key.status().to_string().find("lrr"), std::string::npos) << key.status().to_string();
  const auto root = train("b", {"model.train_ds.root=/nowhere/at/all"});
  ASSERT_FALSE(root.ok());
  EXPECT_NE(root.status().to_string().find("/nowhere/at/all"), std::string::npos);
  const auto weights = train("c", {"load_from=/nowhere/weights.pth"});
  ASSERT_FALSE(weights.ok());
  EXPECT_NE(weights.status().to_string().find("/nowhere/weights.pth"), std::string::npos)
      << weights.status().to_string();
  const auto fast = train("d", {"aerie.engine=fast"});
  EXPECT_FALSE(fast.ok());
}

}  // namespace
}  // namespace aerie::bev
