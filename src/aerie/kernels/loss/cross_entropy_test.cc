#include "aerie/kernels/loss/cross_entropy.h"

#include "aerie/kernels/testing/backend.h"

namespace aerie::kernels::cross_entropy_test {
namespace {

using testing::Backend;

struct Case {
  Dtype dtype;
  int capacity, classes, books, rows;
  bool bias, backward;
  int divisor = 0;
};

struct Outcome {
  float loss = 0.0f;
  std::vector<float> logits;
};

Outcome run(Backend& b, const Case& c) {
  const size_t width = static_cast<size_t>(c.classes * c.books);
  const size_t n = static_cast<size_t>(c.capacity) * width;
  CrossEntropy a;
  a.dtype = c.dtype;
  a.capacity = c.capacity;
  a.classes = c.classes;
  a.books = c.books;
  a.logits = b.upload_as(c.dtype, testing::random_values(n, 1, 8.0f));
  if (c.bias) a.bias = b.upload(testing::random_values(width, 2));
  std::vector<int32_t> tokens;
  for (int i = 0; i < c.capacity * c.books; ++i) tokens.push_back(i * 37 % c.classes);
  tokens[0] = c.classes - 1;
  a.tokens = b.upload(tokens);
  a.num_rows = b.upload(std::vector<int32_t>{c.rows});
  if (c.divisor > 0) a.divisor = b.upload(std::vector<int32_t>{c.divisor});
  a.loss_scale = b.upload(std::vector<float>{256.0f});
  a.weight = 0.5f;
  a.backward = c.backward;
  a.row_loss = b.scratch<float>(static_cast<size_t>(c.capacity * c.books));
  a.loss = b.scratch<float>(1);
  EXPECT_EQ(b.kernels().cross_entropy(a, nullptr), kOk);
  return {b.download(a.loss, 1)[0], b.download_as(c.dtype, a.logits, n)};
}

AERIE_KERNEL_TEST(CrossEntropy, LossAndGradientEqualTheReference) {
  const auto reference = testing::reference_backend();
  for (const Case& c :
       {Case{Dtype::kF32, 5, 64, 1, 3, true, true}, Case{Dtype::kBF16, 4, 8192, 1, 4, true, true},
        Case{Dtype::kF16, 3, 2056, 1, 2, false, true},
        Case{Dtype::kBF16, 2, 16384, 1, 1, false, true},
        Case{Dtype::kF32, 4, 100, 3, 3, true, true}, Case{Dtype::kF32, 3, 513, 1, 2, true, true},
        Case{Dtype::kBF16, 3, 64, 1, 2, true, false}, Case{Dtype::kF32, 3, 64, 2, 0, false, true},
        Case{Dtype::kF32, 5, 64, 1, 3, true, true, 11},
        Case{Dtype::kF32, 4, 100, 3, 3, true, true, 7}}) {
    SCOPED_TRACE(c.classes);
    const Outcome e = run(*reference, c);
    const Outcome a = run(backend, c);
    EXPECT_NEAR(a.loss, e.loss, 2e-6 * std::abs(e.loss));
    testing::expect_close(a.logits, e.logits, testing::tolerance(c.dtype), 0, "gradient");
  }
}

AERIE_KERNEL_TEST(CrossEntropy, RowsThatAreZeroAlreadyAreLeftAlone) {
  for (const int books : {1, 2}) {
    CrossEntropy a;
    a.capacity = 3;
    a.classes = 16;
    a.books = books;
    const size_t n = static_cast<size_t>(16 * books);
    float* logits = backend.upload(std::vector<float>(3 * n, 7.0f));
    a.logits = logits;
    a.tokens = backend.upload(std::vector<int32_t>(static_cast<size_t>(3 * books), 1));
    a.num_rows = backend.upload(std::vector<int32_t>{1});
    a.rest_is_zero = true;
    a.row_loss = backend.scratch<float>(static_cast<size_t>(3 * books));
    a.loss = backend.scratch<float>(1);
    ASSERT_EQ(backend.kernels().cross_entropy(a, nullptr), kOk);
    const std::vector<float> out = backend.download(logits, 3 * n);
    EXPECT_LT(out[0], 1.0f);
    for (size_t i = n; i < 3 * n; ++i) EXPECT_EQ(out[i], 7.0f);
  }
}

AERIE_KERNEL_TEST(CrossEntropy, NoRowsGiveZeroOrNan) {
  CrossEntropy a;
  a.capacity = 1;
  a.classes = 8;
  a.logits = backend.upload(std::vector<float>(8, 1.0f));
  a.tokens = backend.upload(std::vector<int32_t>{0});
  a.num_rows = backend.upload(std::vector<int32_t>{0});
  a.row_loss = backend.scratch<float>(1);
  a.loss = backend.scratch<float>(1);
  ASSERT_EQ(backend.kernels().cross_entropy(a, nullptr), kOk);
  EXPECT_EQ(backend.download(a.loss, 1)[0], 0.0f);
  a.nan_when_empty = true;
  ASSERT_EQ(backend.kernels().cross_entropy(a, nullptr), kOk);
  EXPECT_TRUE(std::isnan(backend.download(a.loss, 1)[0]));
}

}  // namespace
}  // namespace aerie::kernels::cross_entropy_test
