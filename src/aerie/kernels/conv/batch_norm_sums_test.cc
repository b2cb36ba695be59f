#include "aerie/kernels/conv/batch_norm_sums.h"

#include "aerie/kernels/conv/batch_norm.h"
#include "aerie/kernels/testing/backend.h"

namespace aerie::kernels::batch_norm_sums_test {
namespace {

using testing::Backend;
using testing::random_values;

struct Outcome {
  std::vector<double> sums;
  std::vector<float> mean, variance, running_mean, running_var, share;
  int64_t batches = 0;
  std::vector<double> gradient_sums;
  std::vector<float> partial;
};

// `counted`: frames that count; -1: by length. `ranks`: that bring the same.
Outcome run(Backend& b, int batch, int frames, int channels, int counted, double ranks) {
  const size_t width = static_cast<size_t>(channels);
  std::vector<float> parts =
      random_values(static_cast<size_t>(conv_parts(batch, frames)) * 2 * width, 1);
  for (size_t i = 0; i < parts.size(); ++i)
    if (i / width % 2 == 1) parts[i] *= 40.0f * parts[i];  // squared deviations
  std::vector<int32_t> lengths;
  for (int i = 0; i < batch; ++i) lengths.push_back(i == 0 ? frames : 1 + i * 37 % frames);
  BatchNormSums s;
  s.batch = batch;
  s.frames = frames;
  s.channels = channels;
  s.statistics = b.upload(parts);
  s.counted.frames = b.upload(std::vector<int32_t>{counted});
  if (counted < 0) s.counted.lengths = b.upload(lengths);
  s.sums = b.scratch<double>(batch_norm_sums_size(channels));
  EXPECT_EQ(b.kernels().batch_norm_sums(s, nullptr), kOk);
  Outcome o;
  o.sums = b.download(s.sums, batch_norm_sums_size(channels));

  std::vector<double> all = o.sums;
  for (size_t i = 0; i < static_cast<size_t>(batch_norm_exchanged(channels)); ++i) all[i] *= ranks;
  BatchNormFromSums f;
  f.channels = channels;
  f.sums = b.upload(all);
  f.running_mean = b.upload(random_values(width, 3));
  f.running_var = b.upload(random_values(width, 4));
  f.batches = b.upload(std::vector<int64_t>{41});
  f.mean = b.scratch<float>(width);
  f.variance = b.scratch<float>(width);
  f.share = b.scratch<float>(1);
  EXPECT_EQ(b.kernels().batch_norm_from_sums(f, nullptr), kOk);
  o.mean = b.download(f.mean, width);
  o.variance = b.download(f.variance, width);
  o.running_mean = b.download(f.running_mean, width);
  o.running_var = b.download(f.running_var, width);
  o.batches = b.download(f.batches, 1)[0];
  o.share = b.download(f.share, 1);

  BatchNormGradientSums g;
  g.rows = batch * frames;
  g.channels = channels;
  const size_t values = static_cast<size_t>(batch_norm_parts(g.rows)) * 2 * width;
  g.partial = b.upload(random_values(values, 5));
  g.sums = b.scratch<double>(2 * width);
  EXPECT_EQ(b.kernels().batch_norm_gradient_sums(g, nullptr), kOk);
  o.gradient_sums = b.download(g.sums, 2 * width);
  BatchNormGradientFromSums back;
  back.rows = g.rows;
  back.channels = channels;
  back.sums = g.sums;
  back.share = f.share;
  back.partial = b.scratch<float>(batch_norm_scratch(channels));
  EXPECT_EQ(b.kernels().batch_norm_gradient_from_sums(back, nullptr), kOk);
  o.partial = b.download(back.partial, values);
  return o;
}

std::vector<float> narrow(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

AERIE_KERNEL_TEST(BatchNormSums, EqualTheReference) {
  const auto reference = testing::reference_backend();
  struct Case {
    int batch, frames, channels, counted;
  };
  for (const Case& c :
       {Case{1, 2, 8, 2}, Case{2, 143, 176, 141}, Case{3, 300, 264, -1}, Case{1, 5, 8, 1}}) {
    SCOPED_TRACE(c.channels);
    const Outcome e = run(*reference, c.batch, c.frames, c.channels, c.counted, 3.0);
    const Outcome a = run(backend, c.batch, c.frames, c.channels, c.counted, 3.0);
    testing::expect_close(narrow(a.sums), narrow(e.sums), 1e-6, 0, "sums");
    EXPECT_EQ(a.sums[a.sums.size() - 2], a.sums.back());
    testing::expect_close(a.mean, e.mean, 1e-6, 0, "mean");
    testing::expect_close(a.variance, e.variance, 1e-6, 1e-7, "variance");
    testing::expect_close(a.running_mean, e.running_mean, 1e-6, 0, "running_mean");
    testing::expect_close(a.running_var, e.running_var, 1e-6, 0, "running_var");
    EXPECT_EQ(a.batches, 42);
    EXPECT_NEAR(a.share[0], 1.0 / 3.0, 1e-6);
    testing::expect_close(narrow(a.gradient_sums), narrow(e.gradient_sums), 1e-6, 0, "gradients");
    testing::expect_close(a.partial, e.partial, 1e-6, 0, "partial");
  }
}

// Without other ranks they are the statistics that batch_norm_forward makes itself.
AERIE_KERNEL_TEST(BatchNormSums, OfOneRankAreItsStatistics) {
  constexpr int kBatch = 2, kFrames = 130, kChannels = 16;
  const Outcome sums = run(backend, kBatch, kFrames, kChannels, 120, 1.0);
  EXPECT_EQ(sums.sums.back(), 240.0);
  EXPECT_EQ(sums.share[0], 1.0f);
  std::vector<float> parts =
      random_values(static_cast<size_t>(conv_parts(kBatch, kFrames)) * 2 * kChannels, 1);
  for (size_t i = 0; i < parts.size(); ++i)
    if (i / kChannels % 2 == 1) parts[i] *= 40.0f * parts[i];
  BatchNormForward f;
  f.batch = kBatch;
  f.frames = kFrames;
  f.channels = kChannels;
  f.x = backend.upload(std::vector<float>(kBatch * kFrames * kChannels));
  f.statistics = backend.upload(parts);
  f.counted.frames = backend.upload(std::vector<int32_t>{120});
  f.running_mean = backend.upload(random_values(kChannels, 3));
  f.running_var = backend.upload(random_values(kChannels, 4));
  f.batches = backend.upload(std::vector<int64_t>{0});
  f.mean = backend.scratch<float>(kChannels);
  f.rstd = backend.scratch<float>(kChannels);
  f.weight = backend.upload(std::vector<float>(kChannels, 1.0f));
  f.bias = f.weight;
  f.out = backend.scratch<float>(kBatch * kFrames * kChannels);
  ASSERT_EQ(backend.kernels().batch_norm_forward(f, nullptr), kOk);
  testing::expect_close(sums.mean, backend.download(f.mean, kChannels), 1e-5, 0, "mean");
  std::vector<float> rstd;
  for (const float v : sums.variance) rstd.push_back(1.0f / std::sqrt(v + f.eps));
  testing::expect_close(rstd, backend.download(f.rstd, kChannels), 1e-5, 0, "rstd");
  testing::expect_close(sums.running_mean, backend.download(f.running_mean, kChannels), 1e-5, 0,
                        "running_mean");
  testing::expect_close(sums.running_var, backend.download(f.running_var, kChannels), 1e-5, 0,
                        "running_var");
}

}  // namespace
}  // namespace aerie::kernels::batch_norm_sums_test
