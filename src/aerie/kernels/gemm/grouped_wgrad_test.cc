#include "aerie/kernels/gemm/grouped_wgrad.h"

#include "aerie/kernels/testing/backend.h"

namespace aerie::kernels::grouped_wgrad_test {
namespace {

using testing::Backend;
using testing::random_values;

struct Shape {
  int outputs, inputs, stride;
};
struct Case {
  Dtype dtype;
  int rows;
  bool accumulate;
  std::vector<Shape> shapes;
};

struct Outcome {
  int code = kOk;
  std::vector<std::vector<float>> out;
  std::vector<double> squares;  // of each product
};

size_t size(int n) {
  return static_cast<size_t>(n);
}

Outcome run(Backend& b, const Case& c, int share = 1) {
  GroupedWgrad w;
  w.share = share;
  w.dtype = c.dtype;
  w.k = c.rows;
  w.accumulate = c.accumulate;
  for (const Shape& shape : c.shapes) {
    const uint64_t seed = static_cast<uint64_t>(w.count) * 3;
    WgradProblem& p = w.problems[w.count++];
    p.m = shape.outputs;
    p.n = shape.inputs;
    p.grad_stride = shape.stride;
    p.grad = b.upload_as(c.dtype, random_values(size(c.rows) * size(shape.stride), seed));
    p.in = b.upload_as(c.dtype, random_values(size(c.rows) * size(shape.inputs), seed + 1));
    p.out = b.upload(random_values(size(shape.outputs) * size(shape.inputs), seed + 2));
    p.square_partials = b.scratch<double>(wgrad_square_partials(shape.outputs, shape.inputs));
  }
  w.workspace_bytes = 1 << 20;
  w.workspace = b.allocate(w.workspace_bytes);
  Outcome out;
  out.code = b.kernels().weight_gradients(w, nullptr);
  for (int i = 0; i < w.count; ++i) {
    const WgradProblem& p = w.problems[i];
    out.out.push_back(b.download(p.out, size(p.m) * size(p.n)));
    double sum = 0.0;
    for (const double part : b.download(p.square_partials, wgrad_square_partials(p.m, p.n)))
      sum += part;
    out.squares.push_back(sum);
  }
  return out;
}

TEST(GroupedWgradReferenceTest, OneElementByHand) {
  const auto b = testing::reference_backend();
  for (const bool accumulate : {false, true}) {
    const Outcome a = run(*b, {Dtype::kF32, 5, accumulate, {{3, 4, 7}, {2, 3, 2}}});
    EXPECT_EQ(a.code, kOk);
    const std::vector<float> grad = random_values(5 * 2, 3), in = random_values(5 * 3, 4);
    double sum = accumulate ? random_values(2 * 3, 5)[1 * 3 + 2] : 0.0f;
    for (size_t r = 0; r < 5; ++r)
      sum += static_cast<double>(grad[r * 2 + 1]) * static_cast<double>(in[r * 3 + 2]);
    EXPECT_NEAR(a.out[1][1 * 3 + 2], sum, 1e-6);
    double squares = 0.0;
    for (const float value : a.out[1]) squares += static_cast<double>(value) * value;
    EXPECT_DOUBLE_EQ(a.squares[1], squares);
  }
}

const Case kCases[] = {
    {Dtype::kBF16, 1, false, {{128, 128, 128}}},
    {Dtype::kF16, 17, true, {{256, 128, 384}, {128, 256, 128}}},
    {Dtype::kBF16, 200, true, {{128, 128, 128}, {128, 384, 256}, {256, 128, 256}}},
    {Dtype::kF16, 512, false, {{128, 256, 136}, {256, 128, 256}}},
    // More tiles than a device has multiprocessors.
    {Dtype::kBF16, 72, false, {{1536, 1024, 1536}, {512, 2048, 520}, {128, 128, 128}}},
    // And alone.
    {Dtype::kBF16, 40, true, {{128, 128, 128}, {2048, 1280, 2048}, {256, 128, 264}}},
};

// The kernel's source on the CPU, also where it has one tile after the other.
TEST(GroupedWgradTest, EmulatedEqualTheReference) {
  testing::for_each_order([](Backend& backend) {
    for (const Case& c : kCases) {
      if (c.shapes[0].outputs > 1000 || c.shapes.back().stride == 264)
        continue;  // hundreds of tiles
      const Outcome e = run(*testing::reference_backend(), c), a = run(backend, c, 2);
      ASSERT_EQ(a.code, kOk);
      for (size_t i = 0; i < e.out.size(); ++i) {
        testing::expect_close(a.out[i], e.out[i], 2e-6, 0, "out");
        EXPECT_NEAR(a.squares[i], e.squares[i], 1e-5 * e.squares[i]);
      }
    }
  });
}

TEST(GroupedWgradGpuTest, EqualTheReference) {
  std::string reason;
  for (const Case& c : kCases) {
    const auto backend = testing::cuda_backend(&reason);
    if (backend == nullptr) GTEST_SKIP() << reason;
    const Outcome a = run(*backend, c);
    if (a.code == kUnsupported) GTEST_SKIP() << "not compute capability 9.0";
    ASSERT_EQ(a.code, kOk);
    const Outcome e = run(*testing::reference_backend(), c);
    for (size_t i = 0; i < e.out.size(); ++i) {
      testing::expect_close(a.out[i], e.out[i], 2e-6, 0, "out");
      EXPECT_NEAR(a.squares[i], e.squares[i], 1e-5 * e.squares[i]);
    }
    EXPECT_EQ(run(*backend, c).out, a.out);  // bitwise
    // On few multiprocessors, nothing is left to gemm.
    const Outcome few = run(*backend, c, 4);
    ASSERT_EQ(few.code, kOk);
    for (size_t i = 0; i < e.out.size(); ++i) {
      testing::expect_close(few.out[i], e.out[i], 2e-6, 0, "out");
      EXPECT_NEAR(few.squares[i], e.squares[i], 1e-5 * e.squares[i]);
    }
  }
}

TEST(GroupedWgradGpuTest, RefusesWhatItDoesNotCover) {
  std::string reason;
  const Case cases[] = {{Dtype::kF32, 8, false, {{128, 128, 128}}},
                        {Dtype::kBF16, 8, false, {{128, 128, 128}, {64, 128, 64}}},
                        {Dtype::kBF16, 8, false, {{128, 64, 128}}},
                        {Dtype::kBF16, 8, false, {{128, 128, 130}}}};
  for (const Case& c : cases) {
    const auto backend = testing::cuda_backend(&reason);
    if (backend == nullptr) GTEST_SKIP() << reason;
    const Outcome a = run(*backend, c);
    EXPECT_EQ(a.code, kUnsupported);
    // And has not begun.
    for (size_t i = 0; i < a.out.size(); ++i)
      EXPECT_EQ(a.out[i], random_values(a.out[i].size(), i * 3 + 2));
  }
}

}  // namespace
}  // namespace aerie::kernels::grouped_wgrad_test
