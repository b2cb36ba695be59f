#include "aerie/kernels/norm/layer_norm.h"

#include <cmath>

#include "aerie/kernels/testing/backend.h"

namespace aerie::kernels::layer_norm_test {
namespace {

using testing::Backend;
using testing::random_values;

struct Case {
  Dtype dtype;
  int batch, frames, channels;
  double p;
  bool full;          // residual, y, bias, both outputs; otherwise the least
  bool next = false;  // a norm behind it
  testing::Packing packing = {};
  bool both = true;  // with a norm behind it: gradients of the output in both types
};

struct Outcome {
  std::vector<float> stream, normalized, out, rstd, d_residual, d_y, d_weight, d_bias, d_y_bias;
  std::vector<float> again, next_out, next_again, next_rstd, d_next_weight, d_next_bias;
  std::vector<uint8_t> keep;
};

// `normalized`: what backward gets; null: what forward put out.
Outcome run(Backend& b, const Case& c, const std::vector<float>* normalized = nullptr) {
  const size_t rows = c.packing.num_rows(c.batch, c.frames);
  const size_t width = static_cast<size_t>(c.channels), n = rows * width;
  const auto values = [&](uint64_t seed, float scale = 1.0f) {
    const size_t padded = static_cast<size_t>(c.batch * c.frames) * width;
    return c.packing.pack(random_values(padded, seed, scale), c.frames, width);
  };
  RandomState* state = b.upload(std::vector<RandomState>{testing::random_state(5, 77)});
  LayerNormForward f;
  f.dtype = c.dtype;
  f.batch = c.batch;
  f.frames = c.frames;
  f.channels = c.channels;
  f.layout = c.packing.upload(b);
  // In place, as a step does it: the sum, or what two norms in a row put out between them.
  float* stream = b.upload(values(1, 2.0f));
  f.residual = stream;
  (c.next ? f.out_float : f.sum) = stream;
  f.weight = b.upload(random_values(width, 2));
  f.bias = b.upload(random_values(width, 3));
  f.normalized = b.upload_as(c.dtype, std::vector<float>(n));
  f.rstd = b.scratch<float>(rows);
  f.out = b.upload_as(c.dtype, std::vector<float>(n));
  if (c.full) {
    f.y = b.upload_as(c.dtype, values(4));
    f.y_bias = b.upload(random_values(width, 5));
    f.dropout = dropout_at(state, 33, c.p);
    f.scale = 0.5f;
    f.keep = b.upload(std::vector<uint8_t>(n / 8));
  }
  if (c.next) {
    f.next.weight = b.upload(random_values(width, 12));
    f.next.bias = b.upload(random_values(width, 13));
    f.next.out = b.upload_as(c.dtype, std::vector<float>(n));
    f.next.mean = b.scratch<float>(rows);
    f.next.rstd = b.scratch<float>(rows);
  }
  EXPECT_EQ(b.kernels().layer_norm_forward(f, nullptr), kOk);
  LayerNormBackward g;
  g.dtype = c.dtype;
  g.batch = c.batch;
  g.frames = c.frames;
  g.channels = c.channels;
  g.layout = f.layout;
  g.normalized = normalized != nullptr ? b.upload_as(c.dtype, *normalized) : f.normalized;
  g.rstd = f.rstd;
  g.weight = f.weight;
  g.grad_out = b.upload_as(c.dtype, values(6));
  g.dropout = f.dropout;
  g.scale = f.scale;
  g.grad_residual = b.scratch<float>(n);
  g.grad_weight = b.upload(random_values(width, 8));
  g.grad_bias = b.upload(random_values(width, 9));
  g.partial = b.scratch<float>(layer_norm_scratch(c.channels));
  if (c.full) {
    g.keep = f.keep;
    if (c.next && c.both) g.grad_out_float = b.upload(values(10));
    if (!c.next) g.grad_sum = b.upload(values(7));
    g.grad_y = b.upload_as(c.dtype, std::vector<float>(n));
    g.grad_y_bias = b.upload(random_values(width, 11));
    g.accumulate = true;
  }
  if (c.full) {
    g.bias = f.bias;
    g.out = b.upload_as(c.dtype, std::vector<float>(n));
  }
  if (c.next) {
    g.bias = f.bias;
    g.next = f.next;
    g.next.out = c.full ? b.upload_as(c.dtype, std::vector<float>(n)) : nullptr;
    g.grad_next_out = b.upload_as(c.dtype, values(14));
    g.grad_next_weight = b.upload(random_values(width, 15));
    g.grad_next_bias = b.upload(random_values(width, 16));
  }
  EXPECT_EQ(b.kernels().layer_norm_backward(g, nullptr), kOk);
  Outcome o;
  if (c.next) {
    o.next_out = b.download_as(c.dtype, f.next.out, n);
    o.next_rstd = b.download(f.next.rstd, rows);
    if (c.full) o.next_again = b.download_as(c.dtype, g.next.out, n);
    o.d_next_weight = b.download(g.grad_next_weight, width);
    o.d_next_bias = b.download(g.grad_next_bias, width);
  }
  o.stream = b.download(stream, n);
  o.normalized = b.download_as(c.dtype, f.normalized, n);
  o.out = b.download_as(c.dtype, f.out, n);
  o.rstd = b.download(f.rstd, rows);
  o.d_residual = b.download(g.grad_residual, n);
  o.d_weight = b.download(g.grad_weight, width);
  o.d_bias = b.download(g.grad_bias, width);
  if (c.full) {
    o.keep = b.download(f.keep, n / 8);
    o.d_y = b.download_as(c.dtype, g.grad_y, n);
    o.d_y_bias = b.download(g.grad_y_bias, width);
    o.again = b.download_as(c.dtype, g.out, n);
  }
  return o;
}

AERIE_KERNEL_TEST(LayerNorm, ForwardAndBackwardEqualTheReference) {
  const auto reference = testing::reference_backend();
  for (const Case& c :
       {Case{Dtype::kF32, 1, 1, 8, 0.0, false}, Case{Dtype::kBF16, 2, 13, 176, 0.1, true},
        Case{Dtype::kF16, 3, 5, 512, 0.5, true}, Case{Dtype::kF32, 1, 9, 1024, 0.1, true},
        Case{Dtype::kF32, 2, 3, 2048, 1.0, true}, Case{Dtype::kBF16, 2, 13, 176, 0.1, true, true},
        Case{Dtype::kF32, 3, 11, 512, 0.1, true, true},
        Case{Dtype::kF32, 1, 2, 8, 0.0, false, true},
        Case{Dtype::kF16, 1, 9, 1024, 0.1, true, true},
        Case{Dtype::kF32, 3, 40, 64, 0.1, true, true, {{3, 40, 17}}},
        Case{Dtype::kBF16, 2, 13, 176, 0.1, true, false, {{1, 12}}},
        // As many channels as lanes have room for; several rows of a warp.
        Case{Dtype::kBF16, 2, 61, 512, 0.1, true, false, {{61, 50}}, false},
        Case{Dtype::kF16, 1, 7, 2048, 1.0, true, false, {}, false},
        Case{Dtype::kF32, 1, 540, 2048, 0.0, true, true, {}, false},
        // So many rows that a warp has two under way, the last one alone; in several turns.
        Case{Dtype::kBF16, 1, 1061, 256, 0.1, true, false, {}, false},
        Case{Dtype::kBF16, 1, 1057, 512, 0.1, true, true},
        Case{Dtype::kF16, 2, 1601, 256, 0.1, true, true, {{1600, 1601}}},
        Case{Dtype::kF16, 1, 3203, 256, 0.0, true, false, {}, false}}) {
    SCOPED_TRACE(c.channels);
    const Outcome e = run(*reference, c);
    // Values that are between two of a 16-bit type may go either way.
    const Outcome a = run(backend, c, &e.normalized);
    const double t = testing::tolerance(c.dtype);
    testing::expect_close(a.stream, e.stream, c.next ? 1e-5 : 1e-6, 0, "stream");
    testing::expect_close(a.normalized, e.normalized, t, 0, "normalized");
    testing::expect_close(a.rstd, e.rstd, 1e-5, 0, "rstd");
    testing::expect_close(a.out, e.out, t, 0, "out");
    testing::expect_close(a.d_residual, e.d_residual, 1e-5, 0, "grad_residual");
    testing::expect_close(a.d_y, e.d_y, t, 0, "grad_y");
    testing::expect_close(a.d_weight, e.d_weight, 1e-5, 0, "grad_weight");
    testing::expect_close(a.d_bias, e.d_bias, 1e-5, 0, "grad_bias");
    testing::expect_close(a.d_y_bias, e.d_y_bias, 1e-5, 0, "grad_y_bias");
    testing::expect_close(a.again, e.again, t, 0, "out again");
    testing::expect_close(a.next_again, e.next_again, t, 0, "next out again");
    testing::expect_close(a.next_out, e.next_out, t, 0, "next out");
    testing::expect_close(a.next_rstd, e.next_rstd, 1e-5, 0, "next rstd");
    testing::expect_close(a.d_next_weight, e.d_next_weight, 1e-5, 0, "next grad_weight");
    testing::expect_close(a.d_next_bias, e.d_next_bias, 1e-5, 0, "next grad_bias");
    EXPECT_EQ(a.keep, e.keep);
  }
}

// Where rows lie changes nothing in them, dropout's draws included.
AERIE_KERNEL_TEST(LayerNorm, PackedRowsAreThoseOfThePaddedBatch) {
  Case c{Dtype::kF32, 3, 11, 512, 0.3, true};
  const auto pack = [&](const std::vector<float>& x) { return c.packing.pack(x, c.frames, 512); };
  const Outcome padded = run(backend, c);
  c.packing.rows = {2, 11, 6};
  const Outcome packed = run(backend, c);
  EXPECT_EQ(packed.stream, pack(padded.stream));
  EXPECT_EQ(packed.normalized, pack(padded.normalized));
  EXPECT_EQ(packed.out, pack(padded.out));
  EXPECT_EQ(packed.d_residual, pack(padded.d_residual));
  EXPECT_EQ(packed.d_y, pack(padded.d_y));
}

// An infinite value is seen in every gradient of its row: losses are scaled until there is none.
AERIE_KERNEL_TEST(LayerNorm, InfinityReachesTheGradients) {
  constexpr int kWidth = 512;
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
    std::vector<float> x = random_values(3 * kWidth, 1);
    x[kWidth + 7] = INFINITY;
    LayerNormForward f;
    f.dtype = dtype;
    f.batch = 1;
    f.frames = 3;
    f.channels = kWidth;
    f.residual = backend.upload(x);
    f.weight = f.bias = backend.upload(random_values(kWidth, 2));
    f.normalized = backend.upload_as(dtype, std::vector<float>(x.size()));
    f.rstd = backend.scratch<float>(3);
    ASSERT_EQ(backend.kernels().layer_norm_forward(f, nullptr), kOk);
    LayerNormBackward g;
    g.dtype = f.dtype;
    g.batch = f.batch;
    g.frames = f.frames;
    g.channels = f.channels;
    g.normalized = f.normalized;
    g.rstd = f.rstd;
    g.weight = f.weight;
    g.grad_out = backend.upload_as(dtype, random_values(x.size(), 3));
    float* const grad = backend.scratch<float>(x.size());
    g.grad_residual = grad;
    g.grad_weight = backend.scratch<float>(kWidth);
    g.grad_bias = backend.scratch<float>(kWidth);
    g.partial = backend.scratch<float>(layer_norm_scratch(kWidth));
    ASSERT_EQ(backend.kernels().layer_norm_backward(g, nullptr), kOk);
    const std::vector<float> got = backend.download(grad, x.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(std::isfinite(got[i]), i / kWidth != 1) << i;
    for (const float value : backend.download(g.grad_weight, kWidth))
      EXPECT_FALSE(std::isfinite(value));
  }
}

AERIE_KERNEL_TEST(LayerNorm, RefusesWidthsItCannotDo) {
  LayerNormForward f;
  f.batch = f.frames = 1;
  for (const int channels : {0, 12, 2056}) {
    f.channels = channels;
    EXPECT_EQ(backend.kernels().layer_norm_forward(f, nullptr), kUnsupported);
  }
}

// What dropout has decided is not drawn again.
AERIE_KERNEL_TEST(LayerNorm, BackwardNeedsTheDecisions) {
  LayerNormBackward g;
  g.batch = g.frames = 1;
  g.channels = 8;
  g.dropout.threshold = 1;
  EXPECT_EQ(backend.kernels().layer_norm_backward(g, nullptr), kUnsupported);
}

}  // namespace
}  // namespace aerie::kernels::layer_norm_test
