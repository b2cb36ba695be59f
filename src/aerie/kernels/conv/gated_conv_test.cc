// The convolution with what stands before it (gates) and behind it (BatchNorm), forward and
// backward.
#include "aerie/kernels/conv/gated_conv.h"

#include <algorithm>

#include "aerie/kernels/conv/batch_norm.h"
#include "aerie/kernels/testing/backend.h"

namespace aerie::kernels::gated_conv_test {
namespace {

using testing::Backend;
using testing::random_values;

struct Case {
  Dtype dtype;
  int batch, frames, channels, kernel, left;
  int counted;  // frames that count in the statistics; -1: by length
  bool bias, accumulate;
  testing::Packing packing = {};
};

// Long and short items, more than a device works on at once: strips are long.
Case many_items() {
  Case c{Dtype::kF16, 32, 190, 512, 9, 3, 188, true, true};
  for (int i = 0; i < c.batch; ++i) c.packing.rows.push_back(i % 8 == 0 ? 190 - i : 1 + i);
  return c;
}

struct Outcome {
  std::vector<float> out, statistics, totals, normed, again, d_x;
  std::vector<float> d_weight, d_bias, d_gate_bias, d_norm_weight, d_norm_bias;
};

Outcome run(Backend& b, const Case& c, bool later) {
  const size_t width = static_cast<size_t>(c.channels), taps = static_cast<size_t>(c.kernel);
  const size_t n = c.packing.num_rows(c.batch, c.frames) * width;
  const auto values = [&](uint64_t seed, float scale, size_t channels) {
    const size_t padded = static_cast<size_t>(c.batch * c.frames) * channels;
    return c.packing.pack(random_values(padded, seed, scale), c.frames, channels);
  };
  const size_t parts = static_cast<size_t>(conv_parts(c.batch, c.frames));
  std::vector<int32_t> lengths;
  for (int i = 0; i < c.batch; ++i) lengths.push_back(i == 0 ? c.frames : 1 + (i * 7) % c.frames);
  for (size_t i = 0; i < c.packing.rows.size(); ++i)
    lengths[i] = std::min(lengths[i], std::max(0, c.packing.rows[i] - c.left));
  GatedConv f;
  f.dtype = c.dtype;
  f.batch = c.batch;
  f.frames = c.frames;
  f.channels = c.channels;
  f.layout = c.packing.upload(b);
  f.kernel = c.kernel;
  f.left = c.left;
  f.x = b.upload_as(c.dtype, values(1, 2.0f, 2 * width));
  if (c.bias) f.gate_bias = b.upload(random_values(2 * width, 10));
  f.lengths = b.upload(lengths);
  f.weight = b.upload(random_values(width * taps, 2));
  if (c.bias) f.bias = b.upload(random_values(width, 3));
  f.out = b.upload_as(c.dtype, std::vector<float>(n));
  f.statistics = b.scratch<float>(parts * 2 * width);
  f.counted.frames = b.upload(std::vector<int32_t>{c.counted});
  if (c.counted < 0) f.counted.lengths = f.lengths;
  EXPECT_EQ(b.kernels().gated_conv(f, nullptr), kOk);
  Outcome o;
  o.out = b.download_as(c.dtype, f.out, n);
  o.statistics = b.download(f.statistics, parts * 2 * width);
  // The same input for backward on every back end.
  const std::vector<float> conv = values(11, 2.0f, width);
  f.out = b.upload_as(c.dtype, conv);

  BatchNormForward bn;
  bn.dtype = c.dtype;
  bn.batch = c.batch;
  bn.frames = c.frames;
  bn.channels = c.channels;
  bn.layout = f.layout;
  bn.x = f.out;
  bn.training = false;
  bn.running_mean = b.upload(random_values(width, 12, 0.1f));
  std::vector<float> variance = random_values(width, 13, 0.3f);
  for (float& value : variance) value += 0.9f;
  bn.running_var = b.upload(variance);
  bn.mean = b.scratch<float>(width);
  bn.rstd = b.scratch<float>(width);
  bn.weight = b.upload(random_values(width, 14, 2.0f));
  bn.bias = b.upload(random_values(width, 15));
  bn.out = b.upload_as(c.dtype, std::vector<float>(n));
  EXPECT_EQ(b.kernels().batch_norm_forward(bn, nullptr), kOk);
  BatchNormReduce r;
  r.dtype = c.dtype;
  r.batch = c.batch;
  r.frames = c.frames;
  r.channels = c.channels;
  r.layout = f.layout;
  r.x = f.out;
  r.mean = bn.mean;
  r.rstd = bn.rstd;
  r.weight = bn.weight;
  r.bias = bn.bias;
  r.counted = f.counted;
  r.grad_out = b.upload_as(c.dtype, values(4, 1.0f, width));
  if (c.bias) r.out = b.upload_as(c.dtype, std::vector<float>(n));
  r.grad_weight = b.upload(random_values(width, 16));
  r.grad_bias = b.upload(random_values(width, 17));
  r.accumulate = c.accumulate;
  r.partial = b.scratch<float>(batch_norm_scratch(c.channels));
  PartialSums list;
  if (later) r.deferred = &list;
  EXPECT_EQ(b.kernels().batch_norm_reduce(r, nullptr), kOk);
  GatedConvBackward g;
  g.forward = f;
  g.mean = bn.mean;
  g.rstd = bn.rstd;
  g.norm_weight = bn.weight;
  g.norm_bias = bn.bias;
  g.norm_partial = r.partial;
  g.grad_out = r.grad_out;
  g.grad_x = b.upload_as(c.dtype, std::vector<float>(2 * n, 9.0f));
  g.grad_weight = b.upload(random_values(width * taps, 5));
  g.grad_bias = c.bias ? b.upload(random_values(width, 6)) : nullptr;
  g.grad_gate_bias = c.bias ? b.upload(random_values(2 * width, 7)) : nullptr;
  g.accumulate = c.accumulate;
  g.partial = b.scratch<float>(gated_conv_scratch(c.batch, c.frames, c.channels, c.kernel));
  if (later) g.deferred = &list;
  EXPECT_EQ(b.kernels().gated_conv_backward(g, nullptr), kOk);
  EXPECT_EQ(b.kernels().add_partials(list, nullptr), kOk);
  const size_t norm_parts = static_cast<size_t>(batch_norm_parts(static_cast<int>(n / width)));
  const std::vector<float> partial = b.download(r.partial, norm_parts * 2 * width);
  o.totals.resize(2 * width);
  for (size_t i = 0; i < partial.size(); ++i) o.totals[i % (2 * width)] += partial[i];
  o.normed = b.download_as(c.dtype, bn.out, n);
  if (c.bias) o.again = b.download_as(c.dtype, r.out, n);
  o.d_x = b.download_as(c.dtype, g.grad_x, 2 * n);
  o.d_weight = b.download(g.grad_weight, width * taps);
  o.d_bias = b.download(g.grad_bias, c.bias ? width : 0);
  o.d_gate_bias = b.download(g.grad_gate_bias, c.bias ? 2 * width : 0);
  o.d_norm_weight = b.download(r.grad_weight, width);
  o.d_norm_bias = b.download(r.grad_bias, width);
  return o;
}

AERIE_KERNEL_TEST(GatedConv, ForwardAndBackwardEqualTheReference) {
  const auto reference = testing::reference_backend();
  for (const Case& c :
       {Case{Dtype::kF32, 1, 1, 8, 9, 4, 1, true, false},
        Case{Dtype::kBF16, 2, 47, 176, 9, 4, 41, true, true},
        Case{Dtype::kF16, 3, 99, 72, 9, 8, -1, true, false},
        Case{Dtype::kF32, 2, 53, 136, 5, 2, 100, false, true},
        Case{Dtype::kBF16, 1, 16, 64, 5, 0, 3, true, false},
        // Known channels; all parts of BatchNorm's sums.
        Case{Dtype::kBF16, 1, 100, 512, 9, 4, 97, true, false},
        Case{Dtype::kF16, 5, 206, 8, 9, 4, 206, true, true},
        // Items with rows of their own number.
        Case{Dtype::kF32, 3, 53, 136, 9, 4, 50, true, true, {{20, 53, 5}}},
        Case{Dtype::kBF16, 4, 206, 512, 9, 4, 206, true, false, {{206, 105, 1, 16}}},
        Case{Dtype::kF16, 3, 99, 72, 9, 8, -1, true, false, {{99, 30, 9}}},
        // More than a device works on at once: long strips.
        Case{Dtype::kBF16, 28, 105, 512, 9, 4, 100, true, false}, many_items(),
        Case{Dtype::kF32, 2, 110, 8, 5, 0, 109, false, true, {{100, 1}}}}) {
    SCOPED_TRACE(c.channels);
    const Outcome e = run(*reference, c, false);
    const Outcome a = run(backend, c, c.accumulate);
    const double t = testing::tolerance(c.dtype);
    testing::expect_close(a.out, e.out, t, 0, "out");
    // A value on the edge between two 16-bit numbers may fall to either side.
    testing::expect_close(a.statistics, e.statistics, c.dtype == Dtype::kF32 ? 1e-5 : 1e-3, 0,
                          "statistics");
    testing::expect_close(a.normed, e.normed, t, 0, "normed");
    if (c.bias) testing::expect_close(a.again, e.normed, t, 0, "normed again");
    testing::expect_close(a.totals, e.totals, 1e-5, 1e-5, "totals");
    testing::expect_close(a.d_x, e.d_x, t, 1e-6, "grad_x");
    testing::expect_close(a.d_weight, e.d_weight, 2e-5, 1e-6, "grad_weight");
    testing::expect_close(a.d_bias, e.d_bias, 2e-5, 2e-5, "grad_bias");
    testing::expect_close(a.d_gate_bias, e.d_gate_bias, 2e-5, 1e-6, "grad_gate_bias");
    testing::expect_close(a.d_norm_weight, e.d_norm_weight, 1e-5, 0, "grad_norm_weight");
    testing::expect_close(a.d_norm_bias, e.d_norm_bias, 1e-5, 0, "grad_norm_bias");
  }
}

AERIE_KERNEL_TEST(GatedConv, RefusesWhatItDoesNotCover) {
  GatedConv f;
  f.batch = f.frames = 1;
  f.channels = 8;
  f.kernel = 31;
  EXPECT_EQ(backend.kernels().gated_conv(f, nullptr), kUnsupported);
  f.kernel = 9;
  f.channels = 12;
  EXPECT_EQ(backend.kernels().gated_conv(f, nullptr), kUnsupported);
}

}  // namespace
}  // namespace aerie::kernels::gated_conv_test
