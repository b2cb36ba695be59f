#include "aerie/kernels/quantizer/quantize.h"

#include "aerie/kernels/testing/backend.h"

namespace aerie::kernels::quantize_test {
namespace {

using testing::Backend;

std::vector<double> unit_codes(int books, int classes, int dim) {
  const size_t width = static_cast<size_t>(dim);
  const std::vector<float> raw =
      testing::random_values(static_cast<size_t>(books * classes) * width, 9);
  std::vector<double> out(raw.begin(), raw.end());
  for (size_t row = 0; row < out.size() / width; ++row) {
    double squares = 0.0;
    for (size_t d = 0; d < width; ++d) squares += out[row * width + d] * out[row * width + d];
    for (size_t d = 0; d < width; ++d) out[row * width + d] /= std::sqrt(squares);
  }
  return out;
}

std::vector<int32_t> run(Backend& b, const Quantize& shape, const std::vector<float>& features,
                         const std::vector<int32_t>& rows, const std::vector<double>& codes) {
  Quantize a = shape;
  a.features = b.upload(features);
  a.rows = b.upload(rows);
  a.projection =
      b.upload(testing::random_values(static_cast<size_t>(a.books * a.dim * a.inputs), 2, 0.1f));
  a.codebooks = b.upload(codes);
  a.codebooks_float = b.upload(std::vector<float>(codes.begin(), codes.end()));
  const size_t count = static_cast<size_t>(a.capacity * a.books);
  a.tokens = b.scratch<int32_t>(count);
  a.scratch = b.scratch<float>(quantize_scratch(a.capacity, a.books, a.classes, a.dim));
  EXPECT_EQ(b.kernels().quantize(a, nullptr), kOk);
  return b.download(a.tokens, count);
}

AERIE_KERNEL_TEST(Quantize, TokensEqualTheReference) {
  const auto reference = testing::reference_backend();
  for (const int books : {1, 3}) {
    Quantize a;
    a.inputs = 640;
    a.books = books;
    a.classes = 300;
    a.dim = 16;
    const std::vector<float> features = testing::random_values(640 * 13, 1, 3.0f);
    const std::vector<double> codes = unit_codes(books, a.classes, a.dim);
    a.capacity = 13;
    EXPECT_EQ(run(backend, a, features, {}, codes), run(*reference, a, features, {}, codes));
    a.capacity = 6;
    const std::vector<int32_t> rows = {12, 0, 7, 7, -1, -1};
    EXPECT_EQ(run(backend, a, features, rows, codes), run(*reference, a, features, rows, codes));
  }
}

// A vector of zeros is as far from every code; the caller says which one the model takes.
AERIE_KERNEL_TEST(Quantize, SilenceTakesTheTokensItIsGiven) {
  Quantize a;
  a.inputs = 64;
  a.books = 2;
  a.classes = 300;
  a.dim = 40;
  a.capacity = 3;
  a.silent_tokens = backend.upload(std::vector<int32_t>{17, 299});
  std::vector<float> features = testing::random_values(64 * 3, 4);
  std::fill(features.begin() + 64, features.begin() + 128, 0.0f);
  const std::vector<double> codes = unit_codes(2, a.classes, a.dim);
  const std::vector<int32_t> tokens = run(backend, a, features, {}, codes);
  EXPECT_EQ(tokens[2], 17);
  EXPECT_EQ(tokens[3], 299);
  a.silent_tokens = nullptr;
  const std::vector<int32_t> others = run(backend, a, features, {}, codes);
  for (const size_t i : {0, 1, 4, 5}) EXPECT_EQ(tokens[i], others[i]);
}

// Every code has a twin that differs by less than float32 can see: the nearer one must win, and of
// two equal ones the first.
AERIE_KERNEL_TEST(Quantize, CloseCallsAreDecidedInDouble) {
  const auto reference = testing::reference_backend();
  Quantize a;
  a.inputs = 64;
  a.classes = 512;
  a.dim = 8;
  a.capacity = 24;
  std::vector<double> codes = unit_codes(1, a.classes, a.dim);
  for (size_t i = 0; i < 256 * 8; ++i)
    codes[256 * 8 + i] = codes[i] + (i / 8 % 3 == 0 ? 0.0 : i / 8 % 3 == 1 ? 1e-9 : -1e-9);
  const std::vector<float> features = testing::random_values(64 * 24, 4);
  const std::vector<int32_t> tokens = run(backend, a, features, {}, codes);
  EXPECT_EQ(tokens, run(*reference, a, features, {}, codes));
  bool twin = false;
  for (const int32_t token : tokens) twin = twin || token >= 256;
  EXPECT_TRUE(twin);
}

// More vectors than one block takes, several tiles of codes with a ragged last one, odd sizes, and
// blocks of which nothing is wanted.
AERIE_KERNEL_TEST(Quantize, ManyVectorsAndOddSizes) {
  const auto reference = testing::reference_backend();
  struct Case {
    int inputs, books, classes, dim, capacity;
  };
  for (const Case& c :
       {Case{37, 2, 1, 4, 5}, Case{50, 1, 700, 12, 150}, Case{33, 3, 130, 64, 70}}) {
    Quantize a;
    a.inputs = c.inputs;
    a.books = c.books;
    a.classes = c.classes;
    a.dim = c.dim;
    a.capacity = c.capacity;
    const std::vector<float> features =
        testing::random_values(static_cast<size_t>(c.inputs * c.capacity), 6, 2.0f);
    const std::vector<double> codes = unit_codes(c.books, c.classes, c.dim);
    std::vector<int32_t> rows(static_cast<size_t>(c.capacity), -1);
    for (int i = 0; i < c.capacity; ++i)
      if (i % 3 != 1 && (i < 64 || i >= 128)) rows[static_cast<size_t>(i)] = c.capacity - 1 - i;
    EXPECT_EQ(run(backend, a, features, rows, codes), run(*reference, a, features, rows, codes));
  }
}

// All codes are close calls for a vector of zeros. The first ten are a little too long; of the
// others, equally far, the first one wins.
AERIE_KERNEL_TEST(Quantize, SilenceIsDecidedInDouble) {
  const auto reference = testing::reference_backend();
  Quantize a;
  a.inputs = 32;
  a.classes = 300;
  a.dim = 16;
  a.capacity = 3;
  const std::vector<float> features(32 * 3, 0.0f);
  std::vector<double> codes(300 * 16, 0.0);
  for (size_t c = 0; c < 300; ++c) codes[c * 16 + c % 16] = c < 10 ? 1.0 + 1e-9 : 1.0;
  const std::vector<int32_t> tokens = run(backend, a, features, {}, codes);
  EXPECT_EQ(tokens, (std::vector<int32_t>{10, 10, 10}));
  EXPECT_EQ(tokens, run(*reference, a, features, {}, codes));
}

}  // namespace
}  // namespace aerie::kernels::quantize_test
