#include "aerie/kernels/gemm/gemm.h"

#include <algorithm>

#include "aerie/kernels/testing/backend.h"

namespace aerie::kernels::gemm_test {
namespace {

using testing::Backend;
using testing::random_values;

struct Case {
  Dtype dtype, out;
  int m, n, k;
  bool transpose_a, transpose_b, bias, accumulate;
  int count = 1;
};

std::vector<float> run(Backend& b, const Case& c, bool tune = false) {
  Gemm g;
  g.dtype = c.dtype;
  g.out_dtype = c.out;
  g.m = c.m;
  g.n = c.n;
  g.k = c.k;
  g.transpose_a = c.transpose_a;
  g.transpose_b = c.transpose_b;
  g.lda = c.transpose_a ? c.m : c.k;
  g.ldb = (c.transpose_b ? c.k : c.n) + 8;
  g.ldc = c.n + 16;
  // Several products share their first operand.
  g.count = c.count;
  g.step_b = (c.transpose_b ? c.n : c.k) * g.ldb + 64;
  g.step_c = c.m * g.ldc;
  g.a = b.upload_as(c.dtype, random_values(static_cast<size_t>(c.m * c.k), 1));
  g.b = b.upload_as(c.dtype, random_values(static_cast<size_t>(c.count * g.step_b), 2));
  g.c = b.upload_as(c.out, random_values(static_cast<size_t>(c.count * g.step_c), 3));
  if (c.bias) g.bias = b.upload_as(c.out, random_values(static_cast<size_t>(c.n), 4));
  g.accumulate = c.accumulate;
  g.tune = tune;
  g.workspace_bytes = 1 << 20;
  g.workspace = b.allocate(g.workspace_bytes);
  EXPECT_EQ(b.kernels().gemm(g, nullptr), kOk);
  return b.download_as(c.out, g.c, static_cast<size_t>(c.count * g.step_c));
}

constexpr Case kCases[] = {
    {Dtype::kF32, Dtype::kF32, 24, 16, 40, false, true, true, false},
    {Dtype::kBF16, Dtype::kBF16, 24, 48, 64, false, true, true, false},
    {Dtype::kBF16, Dtype::kBF16, 40, 24, 64, false, false, false, false},
    {Dtype::kBF16, Dtype::kF32, 32, 24, 56, true, false, false, true},
    {Dtype::kF16, Dtype::kF16, 8, 16, 64, false, true, false, true},
    {Dtype::kBF16, Dtype::kBF16, 15, 16, 64, false, true, false, false, 3},
    {Dtype::kBF16, Dtype::kF32, 16, 24, 56, true, false, false, true, 2},
};

// Every element of the reference against a sum written out for that element.
TEST(GemmReferenceTest, OneElementByHand) {
  const auto b = testing::reference_backend();
  const Case c = kCases[0];
  const std::vector<float> out = run(*b, c);
  const std::vector<float> left = random_values(24 * 40, 1), right = random_values(16 * 48, 2);
  const std::vector<float> bias = random_values(16, 4);
  double sum = bias[5];
  for (size_t k = 0; k < 40; ++k)
    sum += static_cast<double>(left[3 * 40 + k]) * static_cast<double>(right[5 * 48 + k]);
  EXPECT_NEAR(out[3 * 32 + 5], sum, 1e-6);
}

TEST(GemmReferenceTest, SeveralAreTheSingleOnes) {
  const auto b = testing::reference_backend();
  Case c = {Dtype::kF32, Dtype::kF32, 5, 8, 16, false, true, false, false, 3};
  const std::vector<float> three = run(*b, c);
  c.count = 1;
  const std::vector<float> one = run(*b, c);
  EXPECT_TRUE(std::equal(one.begin(), one.end(), three.begin()));
  EXPECT_NE(three[0], three[5 * 24]);
  const std::vector<float> left = random_values(5 * 16, 1), right = random_values(3 * 256, 2);
  double sum = 0.0;
  for (size_t k = 0; k < 16; ++k)
    sum += static_cast<double>(left[2 * 16 + k]) * static_cast<double>(right[512 + 3 * 24 + k]);
  EXPECT_NEAR(three[2 * 120 + 2 * 24 + 3], sum, 1e-6);
}

TEST(GemmGpuTest, EqualsTheReference) {
  std::string reason;
  const auto backend = testing::cuda_backend(&reason);
  if (backend == nullptr) GTEST_SKIP() << reason;
  const auto reference = testing::reference_backend();
  for (const Case& c : kCases)
    testing::expect_close(run(*backend, c), run(*reference, c),
                          c.dtype == Dtype::kF32 ? 1e-5 : testing::tolerance(c.out), 0, "c");
}

// Timing must leave no trace in what is added to, and the choice must stay.
TEST(GemmGpuTest, TunedEqualsTheReference) {
  std::string reason;
  const auto backend = testing::cuda_backend(&reason);
  if (backend == nullptr) GTEST_SKIP() << reason;
  const auto reference = testing::reference_backend();
  for (Case c : kCases) {
    c.m += 8;  // shapes that no other test has planned
    const std::vector<float> first = run(*backend, c, true);
    testing::expect_close(first, run(*reference, c),
                          c.dtype == Dtype::kF32 ? 1e-5 : testing::tolerance(c.out), 0, "c");
    EXPECT_EQ(first, run(*backend, c, true));
  }
}

}  // namespace
}  // namespace aerie::kernels::gemm_test
