// The files under configs/nest: all load, and differ from the stock one as they say.
#include <filesystem>

#include <gtest/gtest.h>

#include "aerie/base/strings.h"
#include "aerie/base/testing/paths.h"
#include "aerie/config/schema/config_text.h"
#include "aerie/config/schema/devices.h"
#include "aerie/models/nest/config/test_util.h"

namespace aerie::config {
namespace {

Checked shipped(const std::string& suffix) {
  ValidateOptions options;
  options.num_gpus = 1;
  return check_file(str_cat(config_dir("/nest/nest_fast-conformer"), suffix, ".yaml"), options);
}

TEST(ShippedConfigsTest, AllValidate) {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(config_dir("/nest"))) {
    if (entry.path().extension() != ".yaml") continue;
    const Checked checked = check_file(entry.path().string());
    EXPECT_TRUE(checked.ok()) << entry.path() << "\n" << checked.errors();
    for (const Finding& finding : checked.findings.warnings())
      EXPECT_TRUE(starts_with(finding.message, "Missing mandatory value")) << finding.to_string();
    ++count;
  }
  EXPECT_GE(count, 13u);
}

// Eleven of them say `devices: -1` and were refused where a machine had two GPUs.
TEST(ShippedConfigsTest, AllTrainOnAMachineWithSeveralGpus) {
  ValidateOptions options;
  options.for_training = true;
  options.num_gpus = 2;
  size_t several = 0;
  for (const auto& entry : std::filesystem::directory_iterator(config_dir("/nest"))) {
    if (entry.path().extension() != ".yaml") continue;
    const Checked checked = check_file(entry.path().string(), options);
    for (const Finding& finding : checked.findings.errors())
      EXPECT_TRUE(starts_with(finding.message, "Missing mandatory value")) << finding.to_string();
    const auto plan = plan_devices(checked.run.trainer, options.num_gpus);
    several += plan.ok() && plan->world_size == 2 ? 1 : 0;
  }
  EXPECT_GE(several, 11u);
}

TEST(ShippedConfigsTest, PresetsHaveTheirValues) {
  const RunConfig baseline = shipped("_baseline").run;
  EXPECT_EQ(baseline.model.train_ds.batch_size, 2);
  EXPECT_EQ(baseline.model.train_ds.num_workers, 0);
  EXPECT_FALSE(baseline.model.train_ds.persistent_workers);
  EXPECT_FALSE(baseline.model.train_ds.prefetch_factor.has_value());
  EXPECT_TRUE(baseline.model.train_ds.pin_memory);
  EXPECT_EQ(baseline.trainer.precision, Precision::k32);
  EXPECT_EQ(baseline.trainer.log_every_n_steps, 10);
  EXPECT_TRUE(baseline.trainer.val_check_interval.is_fraction);
  EXPECT_EQ(baseline.trainer.val_check_interval.fraction, 1.0);

  const RunConfig fast = shipped("_fast").run;
  EXPECT_EQ(fast.model.train_ds.batch_size, 8);
  EXPECT_EQ(fast.trainer.precision, Precision::k16Mixed);
  EXPECT_EQ(fast.trainer.log_every_n_steps, 50);
  EXPECT_TRUE(fast.model.train_ds.drop_last);
  EXPECT_EQ(fast.model.train_ds.num_workers, 8);
  EXPECT_TRUE(fast.model.train_ds.persistent_workers);
  EXPECT_EQ(fast.model.train_ds.prefetch_factor, 4);
  EXPECT_TRUE(fast.model.train_ds.pin_memory);

  const RunConfig ddp = shipped("_ddp_example").run;
  EXPECT_EQ(ddp.trainer.devices.kind, DevicesConfig::Kind::kAll);
  EXPECT_EQ(ddp.trainer.strategy.name, "ddp");
  EXPECT_TRUE(ddp.trainer.strategy.gradient_as_bucket_view);
  EXPECT_FALSE(ddp.trainer.strategy.static_graph);
  EXPECT_TRUE(ddp.trainer.sync_batchnorm);
  EXPECT_EQ(ddp.trainer.precision, Precision::kBf16Mixed);
  EXPECT_EQ(ddp.model.train_ds.batch_size, 16);
  EXPECT_EQ(ddp.model.train_ds.num_workers, 8);

  EXPECT_EQ(shipped("_windows").run.model.train_ds.num_workers, 0);
  EXPECT_EQ(shipped("_24gb").run.model.train_ds.batch_size, 16);
  EXPECT_EQ(shipped("_8gb").run.model.train_ds.batch_size, 8);
  EXPECT_GT(shipped("_8gb").run.trainer.accumulate_grad_batches, 1);
}

TEST(ShippedConfigsTest, SizesHaveTheirShapes) {
  struct Size {
    const char* suffix;
    int64_t d_model, layers, heads, kernel;
    bool bias;
    double weight_decay;
  };
  const Size kSizes[] = {{"_s", 176, 16, 4, 9, true, 0.0},
                         {"_m", 256, 16, 4, 9, true, 1e-3},
                         {"_l", 512, 17, 8, 9, true, 1e-3},
                         {"_xl", 1024, 24, 8, 9, false, 1e-3},
                         {"_xxl", 1024, 42, 8, 5, false, 1e-3}};
  for (const Size& size : kSizes) {
    SCOPED_TRACE(size.suffix);
    const RunConfig run = shipped(size.suffix).run;
    EXPECT_EQ(run.model.encoder.d_model, size.d_model);
    EXPECT_EQ(run.model.encoder.n_layers, size.layers);
    EXPECT_EQ(run.model.encoder.n_heads, size.heads);
    EXPECT_EQ(run.model.encoder.conv_kernel_size, size.kernel);
    EXPECT_EQ(run.model.encoder.use_bias, size.bias);
    EXPECT_EQ(run.model.encoder.xscaling, size.bias);
    EXPECT_EQ(run.model.optim.weight_decay, size.weight_decay);
  }
}

TEST(ShippedConfigsTest, SizeLIsTheStockFile) {
  const auto found = config_differences(shipped("").resolved, shipped("_l").resolved);
  EXPECT_TRUE(found.empty());
}

}  // namespace
}  // namespace aerie::config
