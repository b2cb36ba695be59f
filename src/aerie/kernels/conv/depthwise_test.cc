#include "aerie/kernels/conv/depthwise.h"

#include "aerie/kernels/testing/backend.h"

namespace aerie::kernels {
namespace {

using testing::Backend;
using testing::random_values;

struct Case {
  Dtype dtype;
  int batch, frames, channels, kernel, left;
  int counted;  // frames that count in the statistics; -1: by length
  bool bias, accumulate;
};

struct Outcome {
  std::vector<float> out, statistics, d_x, d_weight, d_bias;
};

Outcome run(Backend& b, const Case& c) {
  const size_t width = static_cast<size_t>(c.channels), taps = static_cast<size_t>(c.kernel);
  const size_t n = static_cast<size_t>(c.batch * c.frames) * width;
  const size_t parts = static_cast<size_t>(depthwise_strips(c.batch, c.frames));
  DepthwiseForward f;
  f.dtype = c.dtype;
  f.batch = c.batch;
  f.frames = c.frames;
  f.channels = c.channels;
  f.kernel = c.kernel;
  f.left = c.left;
  f.x = b.upload_as(c.dtype, random_values(n, 1));
  f.weight = b.upload(random_values(width * taps, 2));
  if (c.bias) f.bias = b.upload(random_values(width, 3));
  f.out = b.upload_as(c.dtype, std::vector<float>(n));
  f.statistics = b.scratch<float>(parts * 2 * width);
  f.counted.frames = b.upload(std::vector<int32_t>{c.counted});
  if (c.counted < 0) {
    std::vector<int32_t> lengths;
    for (int i = 0; i < c.batch; ++i) lengths.push_back(i == 0 ? c.frames : 1 + (i * 7) % c.frames);
    f.counted.lengths = b.upload(lengths);
  }
  EXPECT_EQ(b.kernels().depthwise_forward(f, nullptr), kOk);
  DepthwiseBackward g;
  g.dtype = c.dtype;
  g.batch = c.batch;
  g.frames = c.frames;
  g.channels = c.channels;
  g.kernel = c.kernel;
  g.left = c.left;
  g.x = f.x;
  g.weight = f.weight;
  g.grad_out = b.upload_as(c.dtype, random_values(n, 4));
  g.grad_x = b.upload_as(c.dtype, std::vector<float>(n));
  g.grad_weight = b.upload(random_values(width * taps, 5));
  g.grad_bias = c.bias ? b.upload(random_values(width, 6)) : nullptr;
  g.accumulate = c.accumulate;
  g.partial = b.scratch<float>(depthwise_scratch(c.channels, c.kernel));
  EXPECT_EQ(b.kernels().depthwise_backward(g, nullptr), kOk);
  return {b.download_as(c.dtype, f.out, n), b.download(f.statistics, parts * 2 * width),
          b.download_as(c.dtype, g.grad_x, n), b.download(g.grad_weight, width * taps),
          b.download(g.grad_bias, c.bias ? width : 0)};
}

AERIE_KERNEL_TEST(Depthwise, ForwardAndBackwardEqualTheReference) {
  const auto reference = testing::reference_backend();
  for (const Case& c : {Case{Dtype::kFloat, 1, 1, 8, 9, 4, 1, true, false},
                        Case{Dtype::kBf16, 2, 47, 176, 9, 4, 41, true, true},
                        Case{Dtype::kHalf, 3, 33, 512, 9, 8, -1, true, false},
                        Case{Dtype::kFloat, 2, 20, 264, 5, 2, 100, false, true},
                        Case{Dtype::kBf16, 1, 16, 64, 5, 0, 3, true, false}}) {
    SCOPED_TRACE(c.channels);
    const Outcome e = run(*reference, c);
    const Outcome a = run(backend, c);
    const double t = testing::tolerance(c.dtype);
    testing::expect_close(a.out, e.out, t, 0, "out");
    // A value on the edge between two 16-bit numbers may fall to either side.
    testing::expect_close(a.statistics, e.statistics, c.dtype == Dtype::kFloat ? 1e-5 : 1e-3, 0,
                          "statistics");
    testing::expect_close(a.d_x, e.d_x, t, 0, "grad_x");
    testing::expect_close(a.d_weight, e.d_weight, 1e-5, 0, "grad_weight");
    testing::expect_close(a.d_bias, e.d_bias, 1e-5, 0, "grad_bias");
  }
}

AERIE_KERNEL_TEST(Depthwise, RefusesWhatItDoesNotCover) {
  DepthwiseForward f;
  f.batch = f.frames = 1;
  f.channels = 8;
  f.kernel = 31;
  EXPECT_EQ(backend.kernels().depthwise_forward(f, nullptr), kUnsupported);
  f.kernel = 9;
  f.channels = 12;
  EXPECT_EQ(backend.kernels().depthwise_forward(f, nullptr), kUnsupported);
}

}  // namespace
}  // namespace aerie::kernels
