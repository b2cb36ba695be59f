// The same step on a GPU: numbers, skipping, snapshots, memory that really runs out.
#include <cmath>
#include <limits>
#include <thread>

#include <ATen/DeviceAccelerator.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include "aerie/device/gpu.h"
#include "aerie/models/nest/engine/test_util.h"
#include "aerie/models/nest/nest_task.h"

namespace aerie::train {
namespace {

class NestGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device::driver().gpus.empty() || !device::load_torch_cuda().ok()) GTEST_SKIP() << "no GPU";
  }
  const at::Device gpu = at::Device(at::kCUDA, 0);
};

config::RunConfig exact_config() {
  config::RunConfig config = noisy_run_config();
  config.aerie.tf32 = config::Tf32::kNone;
  config.exp_manager.ema.enable = true;
  return config;
}

TEST_F(NestGpuTest, StepsAgreeWithTheCpu) {
  const config::RunConfig config = exact_config();
  auto cpu = make_core(config);
  auto device = make_core(config, gpu);
  for (uint64_t s = 0; s < 3; ++s) {
    const StepOutcome want = step(*cpu, 2 * s, 2);
    const StepOutcome got = step(*device, 2 * s, 2);
    EXPECT_NEAR(got.loss, want.loss, 1e-3);
    EXPECT_NEAR(got.grad_norm, want.grad_norm, 1e-2 * want.grad_norm);
    EXPECT_EQ(nest::masked_frames(got), nest::masked_frames(want));
    EXPECT_EQ(nest::all_frames(got), nest::all_frames(want));
    EXPECT_FALSE(got.skipped);
  }
  const auto want = cpu->evaluate(make_batch(4, 9, 99));
  const auto got = device->evaluate(make_batch(4, 9, 99, gpu));
  ASSERT_TRUE(want.ok() && got.ok()) << got.status().to_string();
  EXPECT_NEAR(got->loss, want->loss, 3e-3);
}

TEST_F(NestGpuTest, MixedPrecisionStepsAreClose) {
  config::RunConfig config = exact_config();
  auto exact = make_core(config, gpu);
  const StepOutcome want = step(*exact, 0);
  for (const auto precision : {config::Precision::kBf16Mixed, config::Precision::k16Mixed}) {
    config.trainer.precision = precision;
    auto core = make_core(config, gpu);
    if (core->scaler() != nullptr) core->scaler()->restore(256.0, 0);
    const StepOutcome got = step(*core, 0);
    EXPECT_FALSE(got.skipped);
    EXPECT_NEAR(got.loss, want.loss, 0.03 * want.loss);
    EXPECT_NEAR(got.grad_norm, want.grad_norm, 0.1 * want.grad_norm);
  }
}

TEST_F(NestGpuTest, SkippedStepChangesNothing) {
  for (const auto kind : {config::OptimizerKind::kAdamW, config::OptimizerKind::kSgd,
                          config::OptimizerKind::kNovograd}) {
    config::RunConfig config = exact_config();
    config.model.optim.kind = kind;
    config.model.optim.momentum = 0.9;
    config.trainer.precision = config::Precision::k16Mixed;
    auto core = make_core(config, gpu);
    core->scaler()->restore(256.0, 0);
    EXPECT_FALSE(step(*core, 0).skipped);
    const auto before = full_state(*core);
    core->scaler()->restore(1e30, 1);
    const StepOutcome outcome = step(*core, 1);
    EXPECT_TRUE(outcome.skipped);
    EXPECT_TRUE(std::isfinite(outcome.loss));
    EXPECT_EQ(core->scaler()->scale().item<float>(), 0.5f * 1e30f);
    EXPECT_EQ(first_difference(full_state(*core), before), "");
  }
}

TEST_F(NestGpuTest, PartsGiveTheGradientsOfTheWhole) {
  config::RunConfig config = exact_config();
  config.model.encoder.conv_norm_type = config::ConvNorm::kLayerNorm;
  at::Tensor whole;
  for (const int64_t split : {1, 3}) {
    auto core = make_core(config, gpu);
    ASSERT_TRUE(core->add(2, batches(5, 3, gpu), 2, split).ok());
    const at::Tensor grads = core->model().parameters().flat_grads().clone();
    if (split == 1) {
      whole = grads;
    } else {
      EXPECT_LT(((grads - whole).abs().max() / whole.abs().max()).item<double>(), 1e-5);
    }
  }
}

// To page-locked memory, and to ordinary memory where none is reserved.
TEST_F(NestGpuTest, DeterministicRunResumesBitForBitWhileSnapshotIsRead) {
  config::RunConfig config = exact_config();
  config.trainer.deterministic = config::Deterministic::kYes;
  for (const bool reserved : {true, false}) {
    auto straight = make_core(config, gpu);
    auto memory = std::make_shared<SnapshotMemory>();
    if (reserved) memory->reserve(gpu, snapshot_bytes(straight->flat_state()));
    for (uint64_t s = 0; s < 3; ++s) step(*straight, s);
    const auto at_snapshot = full_state(*straight);
    auto snapshot = take_snapshot(straight->flat_state(), memory, {});
    ASSERT_TRUE(snapshot.ok()) << snapshot.status().to_string();
    std::unique_ptr<MemorySource> source;
    std::thread reader([&] { source = std::make_unique<MemorySource>(**snapshot); });
    for (uint64_t s = 3; s < 6; ++s) step(*straight, s);
    reader.join();
    auto resumed = make_core(config, gpu);
    auto restored = read_state(resumed->flat_state(), *source);
    ASSERT_TRUE(restored.ok()) << restored.status().to_string();
    ASSERT_TRUE(restored->write(resumed->flat_state()).ok());
    EXPECT_EQ(first_difference(full_state(*resumed), at_snapshot), "");
    for (uint64_t s = 3; s < 6; ++s) step(*resumed, s);
    EXPECT_EQ(first_difference(full_state(*resumed), full_state(*straight)), "");
  }
  config.trainer.deterministic = config::Deterministic::kNo;
  make_core(config, gpu);  // puts the process-wide switches back
}

// Nobody has read the first when the second is taken: each keeps its own state.
TEST_F(NestGpuTest, SnapshotsThatWaitKeepTheirOwnState) {
  auto core = make_core(exact_config(), gpu);
  auto memory = std::make_shared<SnapshotMemory>();
  memory->reserve(gpu, snapshot_bytes(core->flat_state()));
  std::vector<std::unique_ptr<StateSnapshot>> snapshots;
  std::vector<decltype(full_state(*core))> states;
  for (uint64_t s = 0; s < 3; ++s) {
    step(*core, s);
    states.push_back(full_state(*core));
    auto snapshot = take_snapshot(core->flat_state(), memory, {});
    ASSERT_TRUE(snapshot.ok()) << snapshot.status().to_string();
    snapshots.push_back(std::move(snapshot).value());
  }
  step(*core, 3);
  snapshots[1].reset();  // superseded by the one behind it
  for (const size_t i : {2, 0}) {
    MemorySource source(*snapshots[i]);
    auto restored = make_core(exact_config(), gpu);
    auto read = read_state(restored->flat_state(), source);
    ASSERT_TRUE(read.ok() && read->write(restored->flat_state()).ok());
    EXPECT_EQ(first_difference(full_state(*restored), states[i]), "") << i;
  }
}

TEST_F(NestGpuTest, RealOutOfMemoryIsReportedAndUndone) {
  // Rows of 60 MiB whose step does not fit into what the ballast leaves; workspaces of cuBLAS do.
  constexpr int64_t kWide = 640;
  constexpr size_t kRoom = size_t{192} << 20;
  config::RunConfig config = exact_config();
  auto core = make_core(config, gpu);
  step(*core, 0);
  ASSERT_TRUE(core->add(1, batches(3, 1, gpu), 3, 1).ok());
  const auto before = full_state(*core);
  const at::Tensor grads = core->model().parameters().flat_grads().clone();
  const auto wide = [&](int64_t i) -> Result<nest::NestBatch> {
    return make_batch(kWide, 2 + static_cast<uint64_t>(i), 17, gpu);
  };
  {
    at::accelerator::emptyCache();
    const auto [free_bytes, total_bytes] = at::accelerator::getMemoryInfo(0);
    ASSERT_GT(free_bytes, size_t{1} << 30);
    const at::Tensor ballast = at::empty({static_cast<int64_t>(free_bytes - kRoom)},
                                         at::TensorOptions(gpu).dtype(at::kByte));
    const Status status = core->add(2, wide, 3, 1);
    EXPECT_EQ(status.code(), StatusCode::kOutOfMemory) << status.to_string();
    EXPECT_EQ(first_difference(full_state(*core), before), "");
    EXPECT_TRUE(at::equal(grads, core->model().parameters().flat_grads()));
    // Smaller parts fit, and so does evaluation, which cuts by itself.
    const Status parts = core->add(2, wide, 3, kWide);
    EXPECT_TRUE(parts.ok()) << parts.to_string();
    const auto eval = core->evaluate(make_batch(kWide, 50, 17, gpu));
    EXPECT_TRUE(eval.ok()) << eval.status().to_string();
  }
  auto outcome = core->finish(std::vector<double>{1e-3});
  ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(outcome->micro_losses.size(), 3u);
  EXPECT_FALSE(outcome->skipped);
}

}  // namespace
}  // namespace aerie::train
