#include "aerie/kernels/conv/batch_norm.h"

#include <algorithm>

#include "aerie/kernels/testing/backend.h"

namespace aerie::kernels::batch_norm_test {
namespace {

using testing::Backend;
using testing::random_values;

struct Case {
  Dtype dtype;
  int batch, frames, channels;
  int counted;  // frames that count; -1: by length
  bool training, accumulate;
};

struct Outcome {
  std::vector<float> mean, rstd, running_mean, running_var, out, d_weight, d_bias;
  int64_t batches = 0;
};

// Statistics come from a convolution with one tap of weight 2 and gates of one half: x is its
// output. Backward is tested with the convolution.
Outcome run(Backend& b, const Case& c, int padded_frames) {
  const size_t width = static_cast<size_t>(c.channels);
  const size_t rows = static_cast<size_t>(c.batch * padded_frames), n = rows * width;
  std::vector<float> x(n), grad(n);
  const std::vector<float> x_tight =
      random_values(static_cast<size_t>(c.batch * c.frames) * width, 1, 2.0f, c.dtype);
  const std::vector<float> grad_tight = random_values(x_tight.size(), 2, 1.0f, c.dtype);
  std::vector<int32_t> lengths;
  for (int i = 0; i < c.batch; ++i) lengths.push_back(i == 0 ? c.frames : 1 + (i * 5) % c.frames);
  for (size_t row = 0; row < rows; ++row) {
    const size_t item = row / static_cast<size_t>(padded_frames);
    const size_t t = row % static_cast<size_t>(padded_frames);
    for (size_t k = 0; k < width; ++k) {
      if (t >= static_cast<size_t>(c.frames)) continue;
      const size_t from = (item * static_cast<size_t>(c.frames) + t) * width + k;
      x[row * width + k] = x_tight[from] + 1.0f;
      const bool counts = c.counted < 0 || t < static_cast<size_t>(c.counted);
      if (counts && static_cast<int32_t>(t) < lengths[item])
        grad[row * width + k] = grad_tight[from];
    }
  }
  GatedConv conv;
  conv.dtype = c.dtype;
  conv.batch = c.batch;
  conv.frames = padded_frames;
  conv.channels = c.channels;
  std::vector<float> gates(2 * n);
  for (size_t row = 0; row < rows; ++row)
    std::copy_n(x.begin() + static_cast<int64_t>(row * width), width,
                gates.begin() + static_cast<int64_t>(2 * row * width));
  conv.x = b.upload_as(c.dtype, gates);
  conv.lengths =
      b.upload(std::vector<int32_t>(static_cast<size_t>(c.batch), int32_t{padded_frames}));
  std::vector<float> taps(width * 9);
  for (size_t k = 0; k < width; ++k) taps[k * 9 + 4] = 2.0f;
  conv.weight = b.upload(taps);
  conv.out = b.upload_as(c.dtype, std::vector<float>(n));
  conv.statistics =
      b.scratch<float>(static_cast<size_t>(conv_parts(c.batch, padded_frames)) * 2 * width);
  conv.counted.frames = b.upload(std::vector<int32_t>{c.counted});
  if (c.counted < 0) conv.counted.lengths = b.upload(lengths);
  EXPECT_EQ(b.kernels().gated_conv(conv, nullptr), kOk);

  BatchNormForward f;
  f.dtype = c.dtype;
  f.batch = c.batch;
  f.frames = padded_frames;
  f.channels = c.channels;
  f.x = conv.out;
  f.training = c.training;
  f.statistics = conv.statistics;
  f.counted = conv.counted;
  f.running_mean = b.upload(random_values(width, 3));
  std::vector<float> variance = random_values(width, 4);
  for (float& v : variance) v = v * v + 0.1f;
  f.running_var = b.upload(variance);
  f.batches = b.upload(std::vector<int64_t>{41});
  f.mean = b.scratch<float>(width);
  f.rstd = b.scratch<float>(width);
  f.weight = b.upload(random_values(width, 5, 2.0f));
  f.bias = b.upload(random_values(width, 6));
  f.out = b.upload_as(c.dtype, std::vector<float>(n));
  EXPECT_EQ(b.kernels().batch_norm_forward(f, nullptr), kOk);

  BatchNormReduce g;
  g.dtype = c.dtype;
  g.batch = c.batch;
  g.frames = padded_frames;
  g.channels = c.channels;
  g.x = f.x;
  g.mean = f.mean;
  g.rstd = f.rstd;
  g.weight = f.weight;
  g.bias = f.bias;
  g.counted = conv.counted;
  g.grad_out = b.upload_as(c.dtype, grad);
  g.grad_weight = b.upload(random_values(width, 7));
  g.grad_bias = b.upload(random_values(width, 8));
  g.accumulate = c.accumulate;
  g.partial = b.scratch<float>(batch_norm_scratch(c.channels));
  EXPECT_EQ(b.kernels().batch_norm_reduce(g, nullptr), kOk);
  Outcome o;
  o.mean = b.download(f.mean, width);
  o.rstd = b.download(f.rstd, width);
  o.running_mean = b.download(f.running_mean, width);
  o.running_var = b.download(f.running_var, width);
  o.batches = b.download(f.batches, 1)[0];
  o.out = b.download_as(c.dtype, f.out, n);
  o.d_weight = b.download(g.grad_weight, width);
  o.d_bias = b.download(g.grad_bias, width);
  return o;
}

AERIE_KERNEL_TEST(BatchNorm, StatisticsForwardAndSumsEqualTheReference) {
  const auto reference = testing::reference_backend();
  for (const Case& c :
       {Case{Dtype::kF32, 1, 2, 8, 2, true, false}, Case{Dtype::kBF16, 2, 43, 176, 41, true, true},
        Case{Dtype::kF16, 3, 33, 264, -1, true, false},
        Case{Dtype::kF32, 2, 20, 512, 20, false, true}}) {
    SCOPED_TRACE(c.channels);
    const Outcome e = run(*reference, c, c.frames);
    const Outcome a = run(backend, c, c.frames);
    const double t = testing::tolerance(c.dtype);
    testing::expect_close(a.mean, e.mean, 1e-6, 0, "mean");
    testing::expect_close(a.rstd, e.rstd, 1e-5, 0, "rstd");
    testing::expect_close(a.running_mean, e.running_mean, 1e-6, 0, "running_mean");
    testing::expect_close(a.running_var, e.running_var, 1e-5, 0, "running_var");
    EXPECT_EQ(a.batches, e.batches);
    testing::expect_close(a.out, e.out, t, 0, "out");
    testing::expect_close(a.d_weight, e.d_weight, 1e-5, 0, "grad_weight");
    testing::expect_close(a.d_bias, e.d_bias, 1e-5, 0, "grad_bias");
  }
}

AERIE_KERNEL_TEST(BatchNorm, PaddingToMoreFramesChangesNothing) {
  const Case c{Dtype::kF32, 3, 30, 64, 29, true, false};
  const Outcome tight = run(backend, c, 30);
  const Outcome loose = run(backend, c, 48);
  testing::expect_close(loose.mean, tight.mean, 1e-6, 0, "mean");
  testing::expect_close(loose.rstd, tight.rstd, 1e-6, 0, "rstd");
  testing::expect_close(loose.running_var, tight.running_var, 1e-6, 0, "running_var");
  testing::expect_close(loose.d_weight, tight.d_weight, 1e-5, 0, "grad_weight");
  testing::expect_close(loose.d_bias, tight.d_bias, 1e-5, 0, "grad_bias");
}

}  // namespace
}  // namespace aerie::kernels::batch_norm_test
