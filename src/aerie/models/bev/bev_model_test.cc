#include "aerie/models/bev/bev_model.h"

#include <cmath>
#include <csignal>
#include <cstdio>
#include <limits>
#include <map>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/grid_sampler_2d.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "aerie/device/gpu.h"
#include "aerie/models/bev/metrics/map_iou.h"
#include "aerie/models/bev/net/layers.h"

namespace aerie::bev {
namespace {

// Two cameras, pictures whose sizes divide by nothing, a grid with two heights and unequal sides.
BevConfig tiny() {
  BevConfig c;
  c.image_height = 42;
  c.image_width = 58;
  c.cameras = 2;
  c.swin.embed_dims = 8;
  c.swin.depths = {1, 2, 1, 1};
  c.swin.num_heads = {1, 2, 2, 4};
  c.swin.mlp_ratio = 2;
  c.neck_channels = 12;
  c.context_channels = 5;
  c.dbound = {1, 9, 1};
  c.xbound = {-2, 10, 0.5};
  c.ybound = {-4, 4, 0.5};
  c.zbound = {-3, 3, 3};
  c.encode_width = 4;
  c.classes = {"drivable_area", "walkway"};
  return c;
}

std::unique_ptr<BevModel> make(const BevConfig& config, uint64_t seed = 3) {
  auto model = BevModel::create(config, seed);
  EXPECT_TRUE(model.ok()) << model.status().to_string();
  return std::move(model).value();
}

// The default generator of a C++ program starts anywhere.
at::Generator draws(uint64_t seed = 11) {
  return at::detail::createCPUGenerator(seed);
}

BevBatch batch_of(const BevConfig& c, int64_t samples) {
  const at::Generator generator = draws();
  const int64_t n = c.cameras;
  BevBatch batch;
  batch.images =
      at::randint(0, 256, {samples, n, 3, c.image_height, c.image_width}, generator, at::kByte);
  // Cameras that look along x, pixels of a pinhole with the centre in the middle.
  at::Tensor frame = at::zeros({samples, n, 4, 4}), camera = at::zeros({samples, n, 4, 4}),
             image = at::zeros({samples, n, 4, 4}), bev = at::zeros({samples, 4, 4});
  for (int64_t b = 0; b < samples; ++b) {
    for (int64_t i = 0; i < 4; ++i) bev[b][i][i] = 1.0f;
    for (int64_t k = 0; k < n; ++k) {
      frame[b][k][0][2] = 1.0f;
      frame[b][k][1][0] = k % 2 == 0 ? -1.0f : 1.0f;
      frame[b][k][2][1] = k % 2 == 0 ? -1.0f : 1.0f;
      frame[b][k][0][3] = 0.25f * static_cast<float>(b + k);
      frame[b][k][3][3] = 1.0f;
      camera[b][k][0][0] = camera[b][k][1][1] = 50.0f;
      camera[b][k][0][2] = 0.5f * static_cast<float>(c.image_width);
      camera[b][k][1][2] = 0.5f * static_cast<float>(c.image_height);
      camera[b][k][2][2] = camera[b][k][3][3] = 1.0f;
      for (int64_t i = 0; i < 4; ++i) image[b][k][i][i] = 1.0f;
    }
  }
  batch.matrices = {frame, camera, image, bev};
  batch.truth = at::randint(0, 2, {samples, c.num_classes(), c.map_height(), c.map_width()},
                            generator, at::kByte);
  return batch;
}

ForwardOptions training() {
  ForwardOptions options;
  options.training = true;
  return options;
}

// Refusing before allocation tells the number of parameters for nothing.
int64_t count_parameters(const BevConfig& config) {
  int64_t count = 0;
  const auto refused =
      BevModel::create(config, 0, at::kCPU, [&](const nn::ParameterRegistry& registry) {
        count = registry.num_trainable_elements();
        return cancelled("counted");
      });
  EXPECT_FALSE(refused.ok());
  return count;
}

TEST(BevModelTest, ProfilesHaveTheirNumberOfParameters) {
  EXPECT_EQ(count_parameters(profile("seed").value()), 33741563);
  EXPECT_EQ(count_parameters(profile("bf").value()), 49118566);
  EXPECT_EQ(count_parameters(profile("lss").value()), 33031017);
  EXPECT_FALSE(profile("other").ok());
}

TEST(BevModelTest, RefusesConfigurationsAndBatchesThatDoNotFit) {
  const auto message = [](const BevConfig& c) { return validate(c).to_string(); };
  BevConfig c = tiny();
  EXPECT_TRUE(validate(c).ok());
  c.swin.num_heads = {1, 2, 3, 4};
  EXPECT_NE(message(c).find("3 heads"), std::string::npos);
  c = tiny();
  c.xbound = {0, 10, 1};
  EXPECT_NE(message(c).find("multiple of 8"), std::string::npos);
  c = tiny();
  c.first_stage = 3;
  EXPECT_NE(message(c).find("first_stage"), std::string::npos);
  c = tiny();
  c.classes = {"a", "a"};
  EXPECT_FALSE(validate(c).ok());
  c = tiny();
  c.class_weights = {1.0};
  EXPECT_NE(message(c).find("class_weights"), std::string::npos);
  c = tiny();
  c.swin.drop_path_rate = 1.0;
  EXPECT_NE(message(c).find("drop_path_rate"), std::string::npos);

  const auto model = make(tiny());
  BevBatch batch = batch_of(tiny(), 1);
  batch.images = batch.images.narrow(3, 0, 40);
  EXPECT_FALSE(model->forward(batch, {}).ok());
  batch = batch_of(tiny(), 2);
  batch.matrices.intrinsics = batch.matrices.intrinsics.narrow(0, 0, 1);
  const auto refused = model->forward(batch, {});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("intrinsics"), std::string::npos);
  batch = batch_of(tiny(), 1);
  batch.matrices.intrinsics.zero_();
  EXPECT_FALSE(model->forward(batch, {}).ok());
}

// The way of a GPU, and the reference on the CPU.
TEST(BevModelTest, BothWaysToSplatAgree) {
  const BevConfig c = tiny();
  const BevBatch batch = batch_of(c, 2);
  std::vector<at::Tensor> gradients, losses;
  for (const bool tensors : {false, true}) {
    const auto model = make(c);
    model->use_tensor_splat(tensors);
    const at::Tensor logits = model->forward(batch, training()).value();
    const MapLosses loss = map_losses(c, logits, batch.truth);
    loss.total.backward();
    losses.push_back(loss.total.detach());
    gradients.push_back(model->parameters().flat_grads().clone());
  }
  EXPECT_NEAR(losses[0].item<double>(), losses[1].item<double>(), 1e-6);
  const double size = gradients[0].abs().max().item<double>();
  EXPECT_GT(size, 1e-3);
  EXPECT_LT((gradients[0] - gradients[1]).abs().max().item<double>(), 1e-5 * size);
}

// Cells and their order as tensor operations make them are those of the host, to the bit.
void expect_plans_of_the_host(at::Device device) {
  BevConfig floored = tiny();
  floored.rounding = VoxelRounding::kFloor;
  BevConfig seed = profile("seed").value();
  seed.swin.depths = {1, 1, 1, 1};
  seed.swin.embed_dims = 24;
  const at::Generator generator = draws(5);
  for (const BevConfig& c : {tiny(), floored, seed}) {
    BevBatch batch = batch_of(c, 2);
    // Turned, scaled and shifted a little, so that points fall anywhere; the last camera sees none.
    ViewMatrices& m = batch.matrices;
    for (at::Tensor* t : {&m.camera_to_lidar, &m.intrinsics, &m.bev_augmentation}) {
      const at::Tensor noise = at::rand(t->sizes(), generator, at::kFloat);
      t->narrow(-2, 0, 3).add_((noise - 0.5).mul(0.1).narrow(-2, 0, 3));
    }
    m.camera_to_lidar[1][-1][0][3] = 3e38f;
    const auto host = make(c)->plan(batch);
    ASSERT_TRUE(host.ok()) << host.status().to_string();
    const auto model = BevModel::create(c, 3, device);
    ASSERT_TRUE(model.ok()) << model.status().to_string();
    (*model)->use_tensor_splat(true);
    const auto made = (*model)->plan(batch);
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    const SplatPlan &a = **host, &b = **made;
    const auto values = [](const at::Tensor& t) {
      const at::Tensor whole = t.to(at::kCPU).contiguous();
      const int64_t* first = whole.const_data_ptr<int64_t>();
      return std::vector<int64_t>(first, first + whole.numel());
    };
    EXPECT_EQ(values(at::where(b.kept > 0, b.cell_of_point, -1)),
              std::vector<int64_t>(a.cell.begin(), a.cell.end()));
    const auto kept = static_cast<int64_t>(a.index.points.size());
    EXPECT_EQ(values(b.points.narrow(0, 0, kept)),
              std::vector<int64_t>(a.index.points.begin(), a.index.points.end()));
    std::vector<int64_t> counts;
    for (size_t i = 0; i + 1 < a.index.begin.size(); ++i)
      counts.push_back(a.index.begin[i + 1] - a.index.begin[i]);
    EXPECT_EQ(values(b.counts), counts);
    EXPECT_GT(a.index.points.size(), a.cell.size() / 10);
    EXPECT_LT(a.index.points.size(), a.cell.size());
  }
}

TEST(BevModelTest, PlansOfADeviceAreThoseOfTheHost) {
  expect_plans_of_the_host(at::kCPU);
}

TEST(BevModelGpuTest, PlansOfADeviceAreThoseOfTheHost) {
  if (device::driver().gpus.empty() || !device::load_torch_cuda().ok()) GTEST_SKIP() << "no GPU";
  expect_plans_of_the_host(at::Device(at::kCUDA, 0));
}

// What tests on a device rely on, whatever stands for one (tests/fake_gpu).
TEST(BevModelGpuTest, DevicesKeepTheirMemoryAndSayWhatDoesNotRepeat) {
  if (device::driver().gpus.empty() || !device::load_torch_cuda().ok()) GTEST_SKIP() << "no GPU";
  const at::TensorOptions there(at::Device(at::kCUDA, 0));
  const at::Tensor x = at::arange(16, there.dtype(at::kFloat)).view({1, 1, 4, 4});
  EXPECT_EXIT(std::printf("%f", static_cast<double>(*x.const_data_ptr<float>())),
              ::testing::KilledBySignal(SIGSEGV), "");
  EXPECT_THROW(x + at::ones({4}), c10::Error);
  EXPECT_EQ((x + 1).sum().item<float>(), 136.0f);
  const at::Tensor wide = at::upsample_bilinear2d(x.clone().requires_grad_(true), {8, 8}, false);
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  EXPECT_THROW(wide.sum().backward(), c10::Error);
  context.setDeterministicAlgorithms(false, /*warn_only=*/false);
}

// ATen's kernels add up in any order on a GPU, ours are matrix products: the same numbers.
TEST(BevModelTest, ResamplingIsAtens) {
  const auto compare = [](const at::Tensor& mine, const at::Tensor& x, const at::Tensor& theirs,
                          const at::Tensor& y, double tolerance) {
    ASSERT_EQ(mine.sizes(), theirs.sizes());
    EXPECT_LT((mine - theirs).abs().max().item<double>(), tolerance);
    const at::Tensor weights = at::arange(mine.numel(), mine.options()).cos().view(mine.sizes());
    (mine * weights).sum().backward();
    (theirs * weights).sum().backward();
    EXPECT_GT(y.grad().abs().max().item<double>(), 0.1);
    EXPECT_LT((x.grad() - y.grad()).abs().max().item<double>(), tolerance);
  };
  const auto input = [](const std::vector<int64_t>& sizes, at::ScalarType dtype) {
    const int64_t count = sizes[0] * sizes[1] * sizes[2] * sizes[3];
    const at::Tensor x = at::arange(count, at::kDouble).sin().to(dtype).view(sizes).clone();
    return std::pair{x.clone().requires_grad_(true), x.clone().requires_grad_(true)};
  };
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    const double tolerance = dtype == at::kDouble ? 1e-12 : 2e-5;
    const std::vector<std::vector<int64_t>> sizes = {
        {5, 7, 10, 14}, {5, 7, 9, 12}, {6, 3, 6, 3}, {1, 4, 5, 8}, {8, 9, 3, 4}};
    for (const bool corners : {true, false})
      for (const auto& s : sizes) {
        const auto [x, y] = input({2, 3, s[0], s[1]}, dtype);
        compare(BilinearResize(corners).forward(x, s[2], s[3]), x,
                at::upsample_bilinear2d(y, {s[2], s[3]}, corners), y, tolerance);
      }
    // From a grid to a map that reaches beyond it, as grid_sample with zeros.
    const Bound from_x = {-4.0, 4.0, 0.5}, from_y = {-3.0, 3.0, 0.5};
    const Bound to_x = {-5.0, 4.4, 0.2}, to_y = {-2.5, 3.5, 0.75};
    const auto [x, y] = input({2, 3, 16, 12}, dtype);
    const auto axis = [&](const Bound& from, const Bound& to, int64_t count) {
      const at::Tensor centre =
          to.low + (at::arange(count, at::kDouble) + 0.5) * to.step;  // metres
      return ((centre - from.low) / (from.high - from.low) * 2.0 - 1.0).to(dtype);
    };
    const at::Tensor rows = axis(from_x, to_x, 47), columns = axis(from_y, to_y, 8);
    const at::Tensor grid =
        at::stack({columns.view({1, 8}).expand({47, 8}), rows.view({47, 1}).expand({47, 8})}, -1)
            .unsqueeze(0)
            .expand({2, 47, 8, 2});
    compare(grid_to_map(from_x, 16, to_x, from_y, 12, to_y).forward(x), x,
            at::grid_sampler_2d(y, grid, /*bilinear*/ 0, /*zeros*/ 0, /*align_corners=*/false), y,
            tolerance);
  }
}

TEST(BevModelTest, GradientsAreFiniteDifferences) {
  BevConfig c = tiny();
  c.swin.depths = {1, 1, 1, 1};
  c.swin.drop_path_rate = 0.0;
  const auto model = make(c);
  nn::ParameterRegistry& registry = model->parameters();
  registry.materialize(at::kCPU, at::kDouble);
  const BevBatch batch = batch_of(c, 2);
  const auto loss = [&] {
    return map_losses(c, model->forward(batch, training()).value(), batch.truth).total;
  };
  loss().backward();
  const at::NoGradGuard no_grad;
  for (const char* name : {"encoders.camera.backbone.patch_embed.projection.weight",
                           "encoders.camera.backbone.stages.1.blocks.0.attn.w_msa.qkv.weight",
                           "encoders.camera.backbone.stages.0.downsample.reduction.weight",
                           "encoders.camera.neck.lateral_convs.0.conv.weight",
                           "encoders.camera.vtransform.depthnet.weight", "bevencode.conv1.weight",
                           "bevencode.up2.4.bias"}) {
    const int64_t entry = registry.find(name);
    ASSERT_GE(entry, 0) << name;
    double* value = registry.tensor(entry).data_ptr<double>() + 1;
    const double gradient = registry.grad(entry).flatten()[1].item<double>();
    // A rectifier may change sides within a step, which its width decides and not the gradient: the
    // closest of three widths counts.
    const double kept = *value;
    double closest = 0.0, difference = std::numeric_limits<double>::infinity();
    for (const double h : {1e-5, 1e-6, 1e-7}) {
      *value = kept + h;
      const double above = loss().item<double>();
      *value = kept - h;
      const double below = loss().item<double>();
      const double slope = (above - below) / (2 * h);
      if (std::abs(slope - gradient) >= difference) continue;
      difference = std::abs(slope - gradient);
      closest = slope;
    }
    *value = kept;
    EXPECT_NEAR(gradient, closest, 1e-6 * (1.0 + std::abs(gradient))) << name;
  }
}

// Draws are for pictures: how samples are put into batches does not matter.
TEST(BevModelTest, StochasticDepthDependsOnTheItemAlone) {
  nn::ForwardContext ctx;
  ctx.training = true;
  ctx.random.seed = 5;
  ctx.random.micro_step = 7;
  const at::Tensor x = at::ones({4000, 1, 1, 2});
  const std::vector<double> rates(4, 0.25);
  const auto dropped = [&](const at::Tensor& from, uint32_t site) {
    ctx.path_factors = path_factors(ctx.random, rates, from.size(0)).to(at::kFloat);
    return drop_path(ctx, from, 0.25, site);
  };
  const at::Tensor all = dropped(x, 3);
  const double kept = (all > 0).to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(kept, 0.75, 0.03);
  EXPECT_NEAR(all.max().item<double>(), 1.0 / 0.75, 1e-6);
  ctx.random.first_item = 1000;
  EXPECT_TRUE(dropped(x.narrow(0, 0, 50), 3).equal(all.narrow(0, 1000, 50)));
  ctx.random.first_item = 0;
  EXPECT_FALSE(dropped(x, 2).equal(all));
  ctx.training = false;
  EXPECT_TRUE(dropped(x, 3).equal(x));
}

TEST(BevModelTest, WeightsStartAsTheRulesSay) {
  const auto model = make(tiny());
  const nn::ParameterRegistry& p = model->parameters();
  const std::string swin = "encoders.camera.backbone.stages.3.blocks.0.";
  EXPECT_NEAR(p[swin + "attn.w_msa.qkv.weight"].std().item<double>(), 0.02, 1e-3);
  EXPECT_NEAR(p[swin + "attn.w_msa.relative_position_bias_table"].std().item<double>(), 0.02, 2e-3);
  EXPECT_EQ(p[swin + "attn.w_msa.qkv.bias"].abs().max().item<double>(), 0.0);
  const double fan_out = std::sqrt(2.0 / (12 * 9));
  EXPECT_NEAR(p["encoders.camera.neck.fpn_convs.0.conv.weight"].std().item<double>(), fan_out,
              0.1 * fan_out);
  EXPECT_EQ(p["bevencode.layer2.1.bn2.weight"].abs().max().item<double>(), 0.0);
  EXPECT_EQ(p["bevencode.layer2.1.bn1.weight"].min().item<double>(), 1.0);
  EXPECT_LE(p["bevencode.conv1.weight"].abs().max().item<double>(), 1.0 / std::sqrt(10 * 49));
  // Another seed, other weights; the same seed, the same.
  EXPECT_TRUE(make(tiny())->parameters().flat_params().equal(p.flat_params()));
  EXPECT_FALSE(make(tiny(), 4)->parameters().flat_params().equal(p.flat_params()));
}

TEST(BevModelTest, CountsOfTensorsEqualTheMetric) {
  const at::Tensor probability = at::rand({2, 3, 8, 4}, draws(1));
  probability[0][0][0] = 0.35f;  // on a threshold
  probability[0][1][0] = 0.65f;
  const at::Tensor truth = at::randint(0, 2, {2, 3, 8, 4}, draws(2), at::kByte);
  const at::Tensor counts = map_counts(probability, truth);
  MapIou metric(3);
  metric.update({probability.const_data_ptr<float>(), 192}, {truth.const_data_ptr<uint8_t>(), 192},
                2);
  for (int64_t k = 0; k < 3; ++k)
    for (int64_t t = 0; t < 7; ++t) {
      const MapIou::Count& want = metric.counts()[static_cast<size_t>(k)][static_cast<size_t>(t)];
      EXPECT_EQ(counts[0][k][t].item<int64_t>(), want.true_positive);
      EXPECT_EQ(counts[1][k][t].item<int64_t>(), want.false_positive);
      EXPECT_EQ(counts[2][k][t].item<int64_t>(), want.false_negative);
    }
}

TEST(BevModelTest, CountsOfSignsLeaveZeroOut) {
  // Logit 0 is probability 0.5, which reaches its threshold; Lift-Splat-Shoot wants more than 0.
  const at::Tensor logits = at::zeros({2, 2, 1, 3});
  logits[0][0][0][0] = 1.0f;
  logits[1][0][0][1] = 1e-9f;
  logits[1][1][0][2] = -1e-9f;
  const at::Tensor truth = at::zeros({2, 2, 1, 3}, at::kByte);
  truth[0][0][0][0] = 1;
  truth[0][0][0][2] = 1;
  truth[1][1][0][2] = 1;
  const at::Tensor counts = sign_counts(logits, truth);
  EXPECT_EQ(counts[0][0].item<int64_t>(), 1);
  EXPECT_EQ(counts[1][0].item<int64_t>(), 3);
  EXPECT_EQ(counts[0][1].item<int64_t>(), 0);
  EXPECT_EQ(counts[1][1].item<int64_t>(), 1);
}

TEST(BevModelTest, LossesAddUpOverClasses) {
  BevConfig c = tiny();
  const at::Tensor logits = at::rand({2, 2, 4, 4}, draws(1)) * 4 - 2;
  const at::Tensor truth = at::randint(0, 2, {2, 2, 4, 4}, draws(2), at::kByte);
  const auto plain = [&](const BevConfig& config) { return map_losses(config, logits, truth); };
  const MapLosses focal = plain(c);
  ASSERT_EQ(focal.parts.size(), 3u);
  EXPECT_EQ(focal.parts[1].first, "loss/map/walkway/focal");
  c.class_weights = {2.0, 0.5};
  EXPECT_NEAR(
      plain(c).total.item<double>(),
      2.0 * focal.parts[0].second.item<double>() + 0.5 * focal.parts[1].second.item<double>(),
      1e-6);
  c = tiny();
  c.loss = MapLoss::kVehicle;
  const at::Tensor y = truth.to(at::kFloat), p = at::sigmoid(logits);
  const at::Tensor by_hand = -(y * p.log() * 2.13 + (1 - y) * (1 - p).log()).mean();
  EXPECT_NEAR(plain(c).total.item<double>(), by_hand.item<double>(), 1e-5);
}

}  // namespace
}  // namespace aerie::bev
