// The flat optimizer against the one it stands in for, on the host.
#include "aerie/train/graph/flat_optimizer.h"

#include <limits>
#include <memory>
#include <string>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "aerie/kernels/kernel_table.h"

namespace aerie::train {
namespace {

struct Trial {
  explicit Trial(bool flat) {
    for (const auto& [name, values] : {std::pair<std::string, int64_t>{"0.weight", 5000},
                                       {"0.bias", 13},
                                       {"1.weight", 9000},
                                       {"1.bias", 7}}) {
      nn::ParamInfo info;
      info.name = name;
      info.shape = {values};
      registry.add(std::move(info));
    }
    registry.materialize(at::kCPU);
    at::NoGradGuard no_grad;
    for (const int64_t index : registry.trainable()) registry.tensor(index).copy_(wave(index, 0.0));
    config::OptimConfig config;
    config.kind = config::OptimizerKind::kAdamW;
    config.betas = {0.9, 0.98};
    config.weight_decay = 1e-2;
    auto made = optim::Optimizer::create(registry, config, {}, {"bias"});
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    optimizer = std::move(made).value();
    if (!flat) return;
    auto ring = UploadRing::create(*stream, [](size_t bytes) {
      return std::shared_ptr<uint8_t>(new uint8_t[bytes], [](uint8_t* block) { delete[] block; });
    });
    EXPECT_TRUE(ring.ok());
    uploads = std::move(ring).value();
    const FlatOptimizer::Of of{registry, *optimizer, nullptr, {}, kClip};
    ours = std::make_unique<FlatOptimizer>(
        of,
        make_flat_parts(registry, 2, [](const nn::ParamInfo& info) { return info.name[0] - '0'; }),
        *stream, *uploads);
    refresh();
  }

  void refresh() {
    const auto refreshed = ours->refresh(nullptr, {}, kernels::Dtype::kF32, &control, &bad_loss);
    EXPECT_TRUE(refreshed.ok()) << refreshed.status().to_string();
  }

  at::Tensor wave(int64_t index, double phase) const {
    const int64_t values = registry.entries()[static_cast<size_t>(index)].numel;
    return (at::arange(values, at::kDouble) * 1.3 + phase + static_cast<double>(index))
        .sin()
        .to(at::kFloat);
  }
  void set_grads(double phase) {
    at::NoGradGuard no_grad;
    registry.zero_grad();
    for (const int64_t index : registry.trainable())
      registry.grad(index).copy_(wave(index, phase) * (1.0 + phase));
  }
  // Part by part or at once; with sums of squares that are known already or without.
  void step(double phase, bool by_parts, bool known) {
    set_grads(phase);
    const float* grads = registry.flat_grads().const_data_ptr<float>();
    const nn::ParamInfo& info = registry.entries()[2];
    double squares = 0.0;
    for (int64_t i = 0; i < info.numel; ++i) {
      const double value = grads[info.flat_offset + i];
      squares += value * value;
    }
    const std::vector<double> rates(optimizer->groups().size(), 1e-2);
    const FlatOptimizer::Squared of = {
        {grads + info.flat_offset, static_cast<size_t>((info.numel + 7) / 8 * 8)}};
    EXPECT_TRUE(ours->decide(rates, std::nullopt, {&squares, known ? size_t{1} : size_t{0}},
                             known ? of : FlatOptimizer::Squared{})
                    .ok());
    if (!by_parts) {
      EXPECT_TRUE(ours->update().ok());
      return;
    }
    for (int part = 0; part < ours->parts().size(); ++part) {
      const uint32_t no = 0, yes = 1;
      EXPECT_EQ(ours->update_part(part, &no, 4, nullptr), kernels::kOk);
      EXPECT_EQ(ours->update_part(part, &yes, 4, nullptr), kernels::kOk);
    }
  }

  static constexpr optim::ClipSettings kClip{0.5, config::GradientClip::kNorm};
  nn::ParameterRegistry registry;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<device::Stream> stream = device::host_stream(kernels::kReferenceKernels);
  std::unique_ptr<UploadRing> uploads;
  std::unique_ptr<FlatOptimizer> ours;
  kernels::AdamwControl control{};
  float bad_loss = 0.0f;
};

TEST(FlatOptimizerTest, IsTheOptimizerItStandsInFor) {
  Trial reference(false);
  for (const bool by_parts : {false, true})
    for (const bool known : {false, true}) {
      Trial plain(false), flat(true);
      for (int i = 0; i < 4; ++i) {
        const double phase = 0.3 * i;
        plain.set_grads(phase);
        const optim::GradientReport report =
            optim::prepare_gradients(plain.registry.flat_grads(), {}, Trial::kClip);
        plain.optimizer->step(std::vector<double>(plain.optimizer->groups().size(), 1e-2),
                              report.found_inf, std::vector<uint8_t>(4, 1));
        flat.step(phase, by_parts, known);
        EXPECT_NEAR(flat.control.norm, report.norm.item<double>(),
                    1e-9 * report.norm.item<double>());
        const at::Tensor want = plain.registry.flat_params(), got = flat.registry.flat_params();
        EXPECT_LT((got - want).abs().max().item<double>(), 1e-6);
        if (i == 1) {
          // Counts go out and come back.
          flat.ours->write_counts();
          EXPECT_TRUE(flat.optimizer->step_counts().equal(plain.optimizer->step_counts()));
          flat.refresh();
        }
      }
      flat.ours->write_counts();
      EXPECT_TRUE(flat.optimizer->step_counts().equal(plain.optimizer->step_counts()));
      EXPECT_GT((flat.registry.flat_params() - reference.registry.flat_params())
                    .abs()
                    .max()
                    .item<double>(),
                1e-3);
    }
}

TEST(FlatOptimizerTest, SkipsAStepThatIsNotFinite) {
  Trial flat(true);
  const at::Tensor before = flat.registry.flat_params().clone();
  flat.bad_loss = std::numeric_limits<float>::infinity();
  flat.step(0.1, false, false);
  EXPECT_EQ(flat.control.skip, 1u);
  EXPECT_TRUE(flat.registry.flat_params().equal(before));
  flat.bad_loss = 0.0f;
  flat.step(0.1, false, false);
  EXPECT_EQ(flat.control.skip, 0u);
  EXPECT_FALSE(flat.registry.flat_params().equal(before));
}

}  // namespace
}  // namespace aerie::train
