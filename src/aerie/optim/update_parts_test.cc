// Gradient norm and clipping, loss scaling, averaged weights.
#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "aerie/optim/ema.h"
#include "aerie/optim/grad_scaler.h"
#include "aerie/optim/gradients.h"
#include "aerie/optim/test_util.h"

namespace aerie::optim {
namespace {

const float kInf = std::numeric_limits<float>::infinity();

TEST(GradientsTest, NormIsExactForAnyNumberOfThreads) {
  const at::Tensor x = wave({300007}, 0.2, 3.0);
  const double want = std::sqrt(x.to(at::kDouble).square().sum().item<double>());
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const double one = l2_norm(x).item<double>();
  at::set_num_threads(2);
  const double two = l2_norm(x).item<double>();
  at::set_num_threads(threads);
  EXPECT_EQ(one, two);
  EXPECT_NEAR(one, want, 1e-12 * want);
  EXPECT_EQ(l2_norm(at::empty({0}, at::kFloat)).item<double>(), 0.0);
  // The way of devices, which a tensor with gaps takes as well.
  const at::Tensor gaps = wave({3000014}, 0.2, 3.0).slice(0, 0, 3000014, 2);
  const double of_gaps = std::sqrt(gaps.to(at::kDouble).square().sum().item<double>());
  EXPECT_NEAR(l2_norm(gaps).item<double>(), of_gaps, 1e-12 * of_gaps);
  // Squares of large float32 values fit.
  EXPECT_NEAR(l2_norm(at::full({4}, 1e30, at::kFloat)).item<double>(), 2e30, 1e24);
}

TEST(GradientsTest, ClipByNormFollowsTorch) {
  for (const double limit : {0.5, 1e9}) {
    at::Tensor x = wave({1000}, 0.1);
    const at::Tensor before = x.clone();
    const GradientReport report = prepare_gradients(x, {}, {limit, config::GradientClip::kNorm});
    const double norm = report.norm.item<double>();
    EXPECT_NEAR(norm, before.to(at::kDouble).norm().item<double>(), 1e-9);
    EXPECT_EQ(report.found_inf.item<float>(), 0.0f);
    const double factor = std::min(1.0, limit / (norm + 1e-6));
    EXPECT_LT(relative_error(x, before.to(at::kDouble) * factor), 2e-7);
    if (limit > 1e8) {
      EXPECT_TRUE(at::equal(x, before));
    }
  }
}

TEST(GradientsTest, ClipsByOtherNormsToo) {
  for (const double type : {1.0, 3.0, std::numeric_limits<double>::infinity()}) {
    at::Tensor x = wave({100003}, 0.1), once = x.clone();
    const at::Tensor before = x.to(at::kDouble) / 8.0;
    const ClipSettings clip{0.5, config::GradientClip::kNorm, type};
    const at::Tensor inverse = at::scalar_tensor(0.125f, at::kFloat);
    const double norm = prepare_gradients(x, inverse, clip).norm.item<double>();
    const double want = std::isinf(type)
                            ? before.abs().max().item<double>()
                            : std::pow(before.abs().pow(type).sum().item<double>(), 1.0 / type);
    EXPECT_NEAR(norm, want, 1e-9 * want) << type;
    EXPECT_LT(relative_error(x, before * std::min(1.0, 0.5 / (norm + 1e-6))), 2e-7) << type;
    const int threads = at::get_num_threads();
    at::set_num_threads(threads == 1 ? 2 : 1);
    EXPECT_EQ(prepare_gradients(once, inverse, clip).norm.item<double>(), norm);
    at::set_num_threads(threads);
  }
}

TEST(GradientsTest, ClipByValueComesAfterUnscaling) {
  at::Tensor x = at::tensor({-8.0f, -1.0f, 0.5f, 4.0f, 6.0f});
  const GradientReport report = prepare_gradients(x, at::scalar_tensor(0.25f, at::kFloat),
                                                  {1.0, config::GradientClip::kValue});
  EXPECT_TRUE(at::equal(x, at::tensor({-1.0f, -0.25f, 0.125f, 1.0f, 1.0f})));
  EXPECT_NEAR(report.norm.item<double>(), std::sqrt(64 + 1 + 0.25 + 16 + 36) / 4, 1e-12);
}

TEST(GradientsTest, UnscalesAndClipsInOnePass) {
  at::Tensor x = wave({777}, 0.4, 65536.0);
  const at::Tensor true_grads = x.to(at::kDouble) / 65536.0;
  const GradientReport report = prepare_gradients(x, at::scalar_tensor(1.0 / 65536.0, at::kFloat),
                                                  {1.0, config::GradientClip::kNorm});
  const double norm = true_grads.norm().item<double>();
  EXPECT_NEAR(report.norm.item<double>(), norm, 1e-9 * norm);
  EXPECT_LT(relative_error(x, true_grads / (norm + 1e-6)), 2e-7);
}

TEST(GradientsTest, FindsWhatIsNotFinite) {
  for (const float value : {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}) {
    for (const int64_t place : {0, 70000, 99999}) {
      at::Tensor x = at::zeros({100000}, at::kFloat);
      x[place] = value;
      EXPECT_EQ(prepare_gradients(x, {}, {}).found_inf.item<float>(), 1.0f) << value << place;
    }
  }
}

TEST(GradScalerTest, GrowsAfterGoodStepsAndBacksOff) {
  GradScaler::Settings settings;
  settings.growth_interval = 3;
  GradScaler scaler(settings, at::kCPU);
  const at::Tensor fine = at::zeros({}, at::kFloat);
  const at::Tensor inf = at::ones({}, at::kFloat);
  EXPECT_EQ(scaler.scale().item<float>(), 65536.0f);
  EXPECT_EQ(scaler.inverse().item<float>(), 1.0f / 65536.0f);
  scaler.update(fine);
  scaler.update(fine);
  EXPECT_EQ(scaler.scale().item<float>(), 65536.0f);
  EXPECT_EQ(scaler.growth_tracker().item<int>(), 2);
  scaler.update(inf);
  EXPECT_EQ(scaler.scale().item<float>(), 32768.0f);
  EXPECT_EQ(scaler.growth_tracker().item<int>(), 0);
  for (int i = 0; i < 3; ++i) scaler.update(fine);
  EXPECT_EQ(scaler.scale().item<float>(), 65536.0f);
  EXPECT_EQ(scaler.growth_tracker().item<int>(), 0);
  scaler.restore(1024.0, 2);
  scaler.update(fine);
  EXPECT_EQ(scaler.scale().item<float>(), 2048.0f);
}

TEST(GradScalerTest, DefaultsAreTorchs) {
  const GradScaler::Settings settings;
  GradScaler scaler(settings, at::kCPU);
  for (int i = 0; i < 1999; ++i) scaler.update(at::zeros({}, at::kFloat));
  EXPECT_EQ(scaler.scale().item<float>(), 65536.0f);
  scaler.update(at::zeros({}, at::kFloat));
  EXPECT_EQ(scaler.scale().item<float>(), 131072.0f);
}

TEST(GradScalerTest, FixedScaleStays) {
  GradScaler::Settings settings;
  settings.initial_scale = 1000.0;
  settings.dynamic = false;
  GradScaler scaler(settings, at::kCPU);
  scaler.update(at::ones({}, at::kFloat));
  EXPECT_EQ(scaler.scale().item<float>(), 1000.0f);
}

// The same on a device, where nothing may be read back.
TEST(GradientsGpuTest, AgreesWithTheCpu) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU";
  for (const auto algorithm : {config::GradientClip::kNorm, config::GradientClip::kValue}) {
    at::Tensor x = wave({3000017}, 0.4, 1024.0);
    at::Tensor y = x.to(at::kCUDA);
    const at::Tensor inverse = at::scalar_tensor(1.0 / 1024.0, at::kFloat);
    const GradientReport cpu = prepare_gradients(x, inverse, {0.5, algorithm});
    const GradientReport gpu = prepare_gradients(y, inverse.to(at::kCUDA), {0.5, algorithm});
    EXPECT_TRUE(gpu.norm.is_cuda());
    EXPECT_NEAR(gpu.norm.item<double>(), cpu.norm.item<double>(), 1e-9 * cpu.norm.item<double>());
    EXPECT_LT(relative_error(y, x), 2e-7);
    EXPECT_EQ(gpu.found_inf.item<float>(), 0.0f);
    y[2999999] = kInf;
    EXPECT_EQ(prepare_gradients(y, {}, {}).found_inf.item<float>(), 1.0f);
  }
  EXPECT_NEAR(l2_norm(at::full({4}, 1e30, at::kFloat).to(at::kCUDA)).item<double>(), 2e30, 1e24);
}

TEST(GradScalerGpuTest, GrowsAndBacksOff) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU";
  GradScaler::Settings settings;
  settings.growth_interval = 2;
  GradScaler scaler(settings, at::kCUDA);
  const at::Tensor fine = at::zeros({}, at::TensorOptions(at::kCUDA).dtype(at::kFloat));
  scaler.update(fine);
  scaler.update(fine);
  EXPECT_EQ(scaler.scale().item<float>(), 131072.0f);
  scaler.update(fine + 1);
  EXPECT_EQ(scaler.scale().item<float>(), 65536.0f);
  EXPECT_EQ(scaler.inverse().item<float>(), 1.0f / 65536.0f);
}

TEST(EmaGpuTest, SkipsAndCountsOnTheDevice) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU";
  for (const bool offload : {false, true}) {
    auto host = make_registry({{"a", {3, 2}}, {"b", {5}}});
    auto device = make_registry({{"a", {3, 2}}, {"b", {5}}}, {}, at::kCUDA);
    Ema want(*host, 0.9, 2, false);
    Ema got(*device, 0.9, 2, offload);
    at::NoGradGuard no_grad;
    for (int s = 0; s < 7; ++s) {
      want.begin();
      got.begin();
      host->flat_params().copy_(wave({host->flat_params().size(0)}, s));
      device->flat_params().copy_(host->flat_params());
      const at::Tensor found = at::scalar_tensor(s % 3 == 1 ? 1.0f : 0.0f, at::kFloat);
      want.update(found);
      got.update(found.to(at::kCUDA));
      EXPECT_LT(relative_error(got.flat(), want.flat()), 2e-7) << s;
      EXPECT_EQ(got.count().item<int64_t>(), want.count().item<int64_t>());
    }
    const at::Tensor weights = device->flat_params().clone();
    got.swap();
    EXPECT_LT(relative_error(device->flat_params(), want.flat()), 2e-7);
    got.swap();
    EXPECT_TRUE(at::equal(weights, device->flat_params()));
  }
}

class EmaTest : public ::testing::Test {
 protected:
  EmaTest()
      : registry(make_registry(
            {{"a", {3, 2}}, {"frozen", {4}, false}, {"b", {5}}, {"stat", {2}, false, true}})) {
    fill(*registry, 0.7);
  }
  void move(double phase) {
    at::NoGradGuard no_grad;
    registry->flat_params().copy_(wave({registry->flat_params().size(0)}, phase));
  }
  std::unique_ptr<nn::ParameterRegistry> registry;
};

TEST_F(EmaTest, AveragesEveryNthStep) {
  for (const bool mask : {false, true}) {
    Ema ema(*registry, 0.9, 2, false);
    ema.always_mask(mask);
    EXPECT_FALSE(ema.started());
    move(0.0);
    ema.begin();
    at::Tensor want = registry->flat_params().to(at::kDouble).clone();
    for (int s = 0; s < 5; ++s) {
      move(1.0 + s);
      ema.begin();  // has an effect once only
      ema.update(at::zeros({}, at::kFloat));
      if (s % 2 == 0) want = 0.9 * want + 0.1 * registry->flat_params().to(at::kDouble);
      EXPECT_LT(relative_error(ema.flat(), want), 1e-6) << s;
    }
    EXPECT_EQ(ema.count().item<int64_t>(), 5);
  }
}

TEST_F(EmaTest, SkippedStepsDoNotCount) {
  for (const bool mask : {false, true}) {
    Ema ema(*registry, 0.5, 2, false);
    ema.always_mask(mask);
    ema.begin();
    ema.update();  // the first step is averaged
    const at::Tensor before = ema.flat().clone();
    move(5.0);
    ema.update(at::ones({}, at::kFloat));
    EXPECT_EQ(ema.count().item<int64_t>(), 1);
    ema.update(at::zeros({}, at::kFloat));  // the second is not
    EXPECT_TRUE(at::equal(before, ema.flat()));
    ema.update(at::zeros({}, at::kFloat));
    EXPECT_FALSE(at::equal(before, ema.flat()));
    move(0.0);
  }
}

TEST_F(EmaTest, SwapExchangesWeightsExactly) {
  Ema ema(*registry, 0.5, 1, true);
  ema.swap();  // nothing yet
  EXPECT_FALSE(ema.swapped());
  ema.begin();
  move(2.0);
  ema.update();
  const at::Tensor weights = registry->flat_params().clone();
  const at::Tensor average = ema.flat().clone();
  ASSERT_FALSE(at::equal(weights, average));
  ema.swap();
  EXPECT_TRUE(ema.swapped());
  EXPECT_TRUE(at::equal(registry->flat_params(), average));
  EXPECT_TRUE(at::equal((*registry)["a"].flatten(), average.slice(0, 0, 6)));
  ema.swap();
  EXPECT_TRUE(at::equal(registry->flat_params(), weights));
  EXPECT_TRUE(at::equal(ema.flat(), average));
}

TEST_F(EmaTest, StateHoldsAllParametersAndNoBuffers) {
  Ema ema(*registry, 0.5, 1, false);
  ema.begin();
  const std::vector<NamedState> state = ema.state();
  ASSERT_EQ(state.size(), 3u);
  EXPECT_EQ(state[0].name, "a");
  EXPECT_EQ(state[1].name, "frozen");
  EXPECT_EQ(state[2].name, "b");
  for (const NamedState& one : state)
    EXPECT_TRUE(at::equal(one.tensor, (*registry)[one.name])) << one.name;
}

}  // namespace
}  // namespace aerie::optim
