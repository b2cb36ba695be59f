#include "aerie/kernels/splat/splat.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "aerie/base/philox.h"

namespace aerie::kernels {
namespace {

// Two samples of two cameras and two height levels; a third of the points dropped.
struct Toy {
  SplatShape shape{2, 4, 6, 5, 3, 4, 3, 2};
  std::vector<int32_t> cell;
  std::vector<double> logits, context, weights;  // weights: of the loss, shaped as pooled

  Toy() {
    RandomStream random(7, Purpose::kTest, 0, 0);
    const int64_t of_sample = shape.cells() / shape.batch;
    for (int64_t i = 0; i < shape.points(); ++i) {
      const int64_t sample = i / (shape.points() / shape.batch);
      const bool kept = random.uniform() > 0.3;
      cell.push_back(
          kept ? static_cast<int32_t>(sample * of_sample + static_cast<int64_t>(random.below(
                                                               static_cast<uint64_t>(of_sample))))
               : -1);
    }
    logits.resize(static_cast<size_t>(shape.points()));
    context.resize(static_cast<size_t>(shape.images * shape.pixels * shape.channels));
    weights.resize(static_cast<size_t>(shape.cells() * shape.channels));
    for (auto* values : {&logits, &context, &weights})
      for (double& value : *values) value = random.uniform(-1.0, 1.0);
  }

  // Channels first, as a convolution leaves them.
  SplatInputs<double> inputs() const {
    SplatInputs<double> in;
    in.shape = shape;
    in.cell = cell.data();
    in.depth_logits = logits.data();
    in.logits_strides = {shape.depths * shape.pixels, shape.pixels, 1};
    in.context = context.data();
    in.context_strides = {shape.channels * shape.pixels, shape.pixels, 1};
    return in;
  }
  std::vector<double> pooled(std::vector<double>* depth = nullptr) const {
    std::vector<double> d(logits.size()), out(weights.size());
    reference::splat_forward(inputs(), splat_index(shape, cell.data()), d.data(), out.data());
    if (depth) *depth = d;
    return out;
  }
  double loss() const {
    const std::vector<double> out = pooled();
    return std::inner_product(out.begin(), out.end(), weights.begin(), 0.0);
  }
};

TEST(SplatTest, GradientsAreFiniteDifferences) {
  Toy toy;
  std::vector<double> depth;
  toy.pooled(&depth);
  std::vector<double> d_logits(toy.logits.size()), d_context(toy.context.size());
  reference::splat_backward(toy.inputs(), depth.data(), toy.weights.data(), d_logits.data(),
                            d_context.data());
  const auto check = [&](std::vector<double>& values, const std::vector<double>& gradients) {
    for (size_t i = 0; i < values.size(); ++i) {
      const double kept = values[i], h = 1e-5;
      values[i] = kept + h;
      const double above = toy.loss();
      values[i] = kept - h;
      const double below = toy.loss();
      values[i] = kept;
      ASSERT_NEAR(gradients[i], (above - below) / (2 * h), 1e-8) << i;
    }
  };
  check(toy.logits, d_logits);
  check(toy.context, d_context);
}

// With ones as context, what arrives on the map is the depth of the kept points.
TEST(SplatTest, ConservesTheMassOfKeptPoints) {
  Toy toy;
  std::fill(toy.context.begin(), toy.context.end(), 1.0);
  std::vector<double> depth;
  const std::vector<double> out = toy.pooled(&depth);
  double kept = 0.0;
  for (size_t i = 0; i < depth.size(); ++i)
    if (toy.cell[i] >= 0) kept += depth[i];
  const double sum = std::accumulate(out.begin(), out.end(), 0.0);
  EXPECT_GT(kept, 1.0);
  EXPECT_NEAR(sum, kept * static_cast<double>(toy.shape.channels), 1e-10 * sum);
}

TEST(SplatTest, HeightLevelsAreBlocksOfChannels) {
  SplatShape shape{1, 1, 1, 1, 2, 2, 3, 2};
  const int32_t cell = static_cast<int32_t>((1 * shape.nx + 1) * shape.ny + 2);  // z 1, x 1, y 2
  const float logit = 0.3f, context[2] = {5.0f, 7.0f};
  SplatInputs<float> in;
  in.shape = shape;
  in.cell = &cell;
  in.depth_logits = &logit;
  in.logits_strides = {1, 1, 1};
  in.context = context;
  in.context_strides = {2, 1, 2};
  float depth = 0.0f;
  std::vector<float> out(static_cast<size_t>(shape.cells() * shape.channels), -1.0f);
  reference::splat_forward(in, splat_index(shape, &cell), &depth, out.data());
  EXPECT_EQ(depth, 1.0f);
  for (int64_t channel = 0; channel < 4; ++channel)
    for (int64_t x = 0; x < 2; ++x)
      for (int64_t y = 0; y < 3; ++y) {
        const bool hit = channel >= 2 && x == 1 && y == 2;
        EXPECT_EQ(out[static_cast<size_t>((channel * 2 + x) * 3 + y)],
                  hit ? context[channel - 2] : 0.0f);
      }
}

TEST(SplatTest, ChannelsLastGivesTheSame) {
  Toy toy;
  const SplatShape& s = toy.shape;
  std::vector<double> logits(toy.logits.size()), context(toy.context.size());
  for (int64_t i = 0; i < s.images; ++i)
    for (int64_t p = 0; p < s.pixels; ++p) {
      for (int64_t k = 0; k < s.depths; ++k)
        logits[static_cast<size_t>((i * s.pixels + p) * s.depths + k)] =
            toy.logits[static_cast<size_t>((i * s.depths + k) * s.pixels + p)];
      for (int64_t c = 0; c < s.channels; ++c)
        context[static_cast<size_t>((i * s.pixels + p) * s.channels + c)] =
            toy.context[static_cast<size_t>((i * s.channels + c) * s.pixels + p)];
    }
  SplatInputs<double> in = toy.inputs();
  in.depth_logits = logits.data();
  in.logits_strides = {s.depths * s.pixels, 1, s.depths};
  in.context = context.data();
  in.context_strides = {s.channels * s.pixels, 1, s.channels};
  std::vector<double> depth(logits.size()), out(toy.weights.size());
  reference::splat_forward(in, splat_index(s, toy.cell.data()), depth.data(), out.data());
  EXPECT_EQ(out, toy.pooled());
}

TEST(SplatTest, AllPointsDroppedGiveZeros) {
  Toy toy;
  std::fill(toy.cell.begin(), toy.cell.end(), -1);
  std::vector<double> depth;
  for (double value : toy.pooled(&depth)) EXPECT_EQ(value, 0.0);
  std::vector<double> d_logits(toy.logits.size(), 1.0), d_context(toy.context.size(), 1.0);
  reference::splat_backward(toy.inputs(), depth.data(), toy.weights.data(), d_logits.data(),
                            d_context.data());
  for (double value : d_logits) EXPECT_EQ(value, 0.0);
  for (double value : d_context) EXPECT_EQ(value, 0.0);
}

}  // namespace
}  // namespace aerie::kernels
