#include "aerie/kernels/activation/activation.h"

#include "aerie/kernels/testing/backend.h"

namespace aerie::kernels::activation_test {
namespace {

using testing::Backend;
using testing::random_values;

struct Case {
  Dtype dtype;
  int batch, frames, channels;
  double p;
  bool bias;
  testing::Packing packing = {};
};
const Case kCases[] = {{Dtype::kF32, 1, 1, 8, 0.0, false},
                       {Dtype::kBF16, 2, 13, 704, 0.1, true},
                       {Dtype::kF16, 3, 29, 256, 0.5, true},
                       {Dtype::kF32, 3, 7, 264, 0.1, true},
                       {Dtype::kBF16, 3, 13, 256, 0.1, true, {{5, 13, 1}}},
                       {Dtype::kF32, 3, 7, 264, 0.5, true, {{7, 1, 3}}}};

struct Outcome {
  std::vector<float> out, again, d_x, d_bias;
  std::vector<uint8_t> keep;
};

// `in_place`: of backward, which then gives forward's result once more, too.
Outcome run_silu(Backend& b, const Case& c, bool in_place) {
  const size_t width = static_cast<size_t>(c.channels);
  const size_t n = c.packing.num_rows(c.batch, c.frames) * width;
  const size_t padded = static_cast<size_t>(c.batch * c.frames) * width;
  const auto pack = [&](const std::vector<float>& x) { return c.packing.pack(x, c.frames, width); };
  RandomState* state = b.upload(std::vector<RandomState>{testing::random_state(6, 78)});
  SiluForward f;
  f.dtype = c.dtype;
  f.batch = c.batch;
  f.frames = c.frames;
  f.channels = c.channels;
  f.layout = c.packing.upload(b);
  f.x = b.upload_as(c.dtype, pack(random_values(padded, 1, 4.0f)));
  if (c.bias) f.bias = b.upload(random_values(width, 2));
  f.dropout = dropout_at(state, 16, c.p);
  f.keep = b.upload(std::vector<uint8_t>(n / 8));
  f.out = b.upload_as(c.dtype, std::vector<float>(n));
  EXPECT_EQ(b.kernels().silu_forward(f, nullptr), kOk);
  SiluBackward g;
  g.dtype = c.dtype;
  g.batch = c.batch;
  g.frames = c.frames;
  g.channels = c.channels;
  g.layout = f.layout;
  g.x = f.x;
  g.bias = f.bias;
  g.grad_out = b.upload_as(c.dtype, pack(random_values(padded, 3)));
  g.dropout = f.dropout;
  g.keep = f.keep;
  g.grad_x = in_place ? const_cast<void*>(g.grad_out) : b.upload_as(c.dtype, std::vector<float>(n));
  g.grad_bias = c.bias ? b.upload(random_values(width, 4)) : nullptr;
  g.accumulate = c.p > 0.2;
  if (in_place) g.out = b.upload_as(c.dtype, std::vector<float>(n));
  g.partial = b.scratch<float>(activation_scratch(c.channels));
  EXPECT_EQ(b.kernels().silu_backward(g, nullptr), kOk);
  return {b.download_as(c.dtype, f.out, n),
          in_place ? b.download_as(c.dtype, g.out, n) : std::vector<float>(),
          b.download_as(c.dtype, g.grad_x, n), b.download(g.grad_bias, c.bias ? width : 0),
          b.download(f.keep, n / 8)};
}

AERIE_KERNEL_TEST(Silu, ForwardAndBackwardEqualTheReference) {
  const auto reference = testing::reference_backend();
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.channels);
    const Outcome e = run_silu(*reference, c, false);
    for (const bool in_place : {false, true}) {
      const Outcome a = run_silu(backend, c, in_place);
      testing::expect_close(a.out, e.out, testing::tolerance(c.dtype), 0, "out");
      testing::expect_close(a.d_x, e.d_x, testing::tolerance(c.dtype), 0, "grad_x");
      testing::expect_close(a.d_bias, e.d_bias, 1e-5, 0, "grad_bias");
      EXPECT_EQ(a.keep, e.keep);
      if (in_place) {
        EXPECT_EQ(a.again, a.out);
      }
    }
  }
}

// What dropout has decided is not drawn again.
AERIE_KERNEL_TEST(Silu, BackwardNeedsTheDecisions) {
  SiluBackward g;
  g.batch = g.frames = 1;
  g.channels = 8;
  g.dropout.threshold = 1;
  EXPECT_EQ(backend.kernels().silu_backward(g, nullptr), kUnsupported);
}

// Where rows lie changes nothing in them, dropout's draws included.
AERIE_KERNEL_TEST(Silu, PackedRowsAreThoseOfThePaddedBatch) {
  Case c{Dtype::kBF16, 3, 13, 704, 0.3, false};
  const Outcome padded = run_silu(backend, c, true);
  c.packing.rows = {2, 13, 6};
  const Outcome packed = run_silu(backend, c, true);
  EXPECT_EQ(packed.out, c.packing.pack(padded.out, c.frames, 704));
  EXPECT_EQ(packed.d_x, c.packing.pack(padded.d_x, c.frames, 704));
}

}  // namespace
}  // namespace aerie::kernels::activation_test
