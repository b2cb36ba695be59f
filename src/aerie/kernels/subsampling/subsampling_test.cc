#include "aerie/kernels/subsampling/subsampling.h"

#include "aerie/kernels/testing/backend.h"

namespace aerie::kernels::subsampling_test {
namespace {

using testing::Backend;
using testing::random_values;

struct Case {
  Dtype dtype;
  int batch, frames, bins, channels;
  std::vector<int32_t> lengths;
  bool accumulate;
};
const Case kCases[] = {{Dtype::kF32, 1, 1, 4, 8, {1}, false},
                       {Dtype::kBF16, 3, 24, 20, 16, {24, 17, 1}, true},
                       {Dtype::kF16, 2, 19, 13, 8, {18, 0}, false},
                       {Dtype::kF32, 1, 40, 80, 264, {33}, true},
                       {Dtype::kBF16, 2, 42, 80, 24, {42, 23}, false},
                       {Dtype::kF16, 1, 13, 77, 136, {12}, true},
                       {Dtype::kBF16, 1, 21, 88, 24, {21}, false}};
// Many items, most of them empty; and more frames than blocks take at a time: they go on to the
// next ones, of the same item and of others.
Case many_items() {
  Case c{Dtype::kBF16, 404, 7, 9, 8, {}, true};
  for (int i = 0; i < c.batch; ++i) c.lengths.push_back(i % 396 > 8 ? 0 : i % 8);
  return c;
}
Case many_frames() {
  Case c{Dtype::kBF16, 22, 242, 5, 8, {}, false};
  for (int i = 0; i < c.batch; ++i) c.lengths.push_back(i % 9 == 5 ? 0 : 242 - i);
  return c;
}

size_t area(int frames, int bins, int channels) {
  return static_cast<size_t>(frames) * static_cast<size_t>(bins) * static_cast<size_t>(channels);
}

struct Outcome {
  std::vector<float> out, d_x, d_weight0, d_bias0, d_weight1, d_bias1;
};

void compare(const Outcome& a, const Outcome& e, Dtype dtype) {
  const double t = testing::tolerance(dtype);
  testing::expect_close(a.out, e.out, t, 0, "out");
  testing::expect_close(a.d_x, e.d_x, t, 0, "grad_x");
  testing::expect_close(a.d_weight0, e.d_weight0, 2e-5, 0, "grad_weight0");
  testing::expect_close(a.d_bias0, e.d_bias0, 2e-5, 0, "grad_bias0");
  testing::expect_close(a.d_weight1, e.d_weight1, 2e-5, 0, "grad_weight1");
  testing::expect_close(a.d_bias1, e.d_bias1, 2e-5, 0, "grad_bias1");
}

Outcome run_first(Backend& b, const Case& c) {
  const size_t width = static_cast<size_t>(c.channels);
  const size_t n = static_cast<size_t>(c.batch) *
                   area(strided(strided(c.frames)), strided(strided(c.bins)), c.channels);
  SubsampleFirst f;
  f.dtype = c.dtype;
  f.batch = c.batch;
  f.frames = c.frames;
  f.bins = c.bins;
  f.channels = c.channels;
  f.x = b.upload(random_values(static_cast<size_t>(c.batch) * area(c.frames, c.bins, 1), 1));
  f.lengths = b.upload(c.lengths);
  f.weight0 = b.upload(random_values(width * 9, 2));
  f.bias0 = b.upload(random_values(width, 3));
  f.weight1 = b.upload(random_values(width * 9, 4));
  f.bias1 = b.upload(random_values(width, 5));
  f.out = b.upload_as(c.dtype, std::vector<float>(n, 9.0f));
  EXPECT_EQ(b.kernels().subsample_first(f, nullptr), kOk);
  SubsampleFirstBackward g;
  g.forward = f;
  g.grad_out = b.upload_as(c.dtype, random_values(n, 6));
  g.grad_weight0 = b.upload(random_values(width * 9, 7));
  g.grad_bias0 = b.upload(random_values(width, 8));
  g.grad_weight1 = b.upload(random_values(width * 9, 9));
  g.grad_bias1 = b.upload(random_values(width, 10));
  g.accumulate = c.accumulate;
  g.partial = b.scratch<float>(subsample_scratch(c.channels));
  EXPECT_EQ(b.kernels().subsample_first_backward(g, nullptr), kOk);
  return {b.download_as(c.dtype, f.out, n),      {},
          b.download(g.grad_weight0, width * 9), b.download(g.grad_bias0, width),
          b.download(g.grad_weight1, width * 9), b.download(g.grad_bias1, width)};
}

AERIE_KERNEL_TEST(SubsampleFirst, ForwardAndBackwardEqualTheReference) {
  const auto reference = testing::reference_backend();
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.frames);
    compare(run_first(backend, c), run_first(*reference, c), c.dtype);
  }
  for (const Case& c : {many_items(), many_frames()}) {
    SCOPED_TRACE(c.frames);
    compare(run_first(backend, c), run_first(*reference, c), c.dtype);
  }
}

Outcome run_next(Backend& b, const Case& c) {
  const size_t width = static_cast<size_t>(c.channels), items = static_cast<size_t>(c.batch);
  const size_t n = items * area(c.frames, c.bins, c.channels);
  const size_t m = items * area(strided(c.frames), strided(c.bins), c.channels);
  SubsampleNext f;
  f.dtype = c.dtype;
  f.batch = c.batch;
  f.frames = c.frames;
  f.bins = c.bins;
  f.channels = c.channels;
  f.x = b.upload_as(c.dtype, random_values(n, 1));
  f.bias0 = b.upload(random_values(width, 2));
  f.lengths = b.upload(c.lengths);
  f.weight1 = b.upload(random_values(width * 9, 3));
  f.bias1 = b.upload(random_values(width, 4));
  f.out = b.upload_as(c.dtype, std::vector<float>(m, 9.0f));
  EXPECT_EQ(b.kernels().subsample_next(f, nullptr), kOk);
  SubsampleNextBackward g;
  g.forward = f;
  g.grad_out = b.upload_as(c.dtype, random_values(m, 5));
  g.grad_x = b.upload_as(c.dtype, std::vector<float>(n, 9.0f));
  g.grad_bias0 = b.upload(random_values(width, 6));
  g.grad_weight1 = b.upload(random_values(width * 9, 7));
  g.grad_bias1 = b.upload(random_values(width, 8));
  g.accumulate = c.accumulate;
  g.partial = b.scratch<float>(subsample_scratch(c.channels));
  EXPECT_EQ(b.kernels().subsample_next_backward(g, nullptr), kOk);
  return {b.download_as(c.dtype, f.out, m),
          b.download_as(c.dtype, g.grad_x, n),
          {},
          b.download(g.grad_bias0, width),
          b.download(g.grad_weight1, width * 9),
          b.download(g.grad_bias1, width)};
}

AERIE_KERNEL_TEST(SubsampleNext, ForwardAndBackwardEqualTheReference) {
  const auto reference = testing::reference_backend();
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.frames);
    compare(run_next(backend, c), run_next(*reference, c), c.dtype);
  }
}

Outcome run_relu(Backend& b, const Case& c) {
  const size_t width = static_cast<size_t>(c.channels);
  const size_t n = static_cast<size_t>(c.batch) * area(c.frames, c.bins, c.channels);
  Relu f;
  f.dtype = c.dtype;
  f.batch = c.batch;
  f.frames = c.frames;
  f.bins = c.bins;
  f.channels = c.channels;
  f.x = b.upload_as(c.dtype, random_values(n, 1));
  f.bias = b.upload(random_values(width, 2));
  f.lengths = b.upload(c.lengths);
  f.out = b.upload_as(c.dtype, std::vector<float>(n, 9.0f));
  EXPECT_EQ(b.kernels().relu(f, nullptr), kOk);
  Relu g = f;
  g.grad_out = b.upload_as(c.dtype, random_values(n, 3));
  g.grad_x = const_cast<void*>(g.grad_out);
  g.grad_bias = b.upload(random_values(width, 4));
  g.accumulate = c.accumulate;
  g.partial = b.scratch<float>(subsample_scratch(c.channels));
  EXPECT_EQ(b.kernels().relu(g, nullptr), kOk);
  return {b.download_as(c.dtype, f.out, n),
          b.download_as(c.dtype, g.grad_x, n),
          {},
          b.download(g.grad_bias, width),
          {},
          {}};
}

AERIE_KERNEL_TEST(Relu, ForwardAndBackwardEqualTheReference) {
  const auto reference = testing::reference_backend();
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.frames);
    compare(run_relu(backend, c), run_relu(*reference, c), c.dtype);
  }
}

}  // namespace
}  // namespace aerie::kernels::subsampling_test
