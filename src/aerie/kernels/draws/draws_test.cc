#include "aerie/kernels/draws/draws.h"

#include <cmath>
#include <limits>

#include "aerie/base/philox_fill.h"
#include "aerie/kernels/testing/backend.h"

namespace aerie::kernels::testing::draws_test {
namespace {

struct Shape {
  const char* what;
  int64_t items, heads, rows, columns;
  uint64_t first;
  int64_t head_stride, row_stride;
};

// Rows that begin and end at blocks of eight, ones that do not, and counters that run downwards.
const Shape kShapes[] = {
    {"activations", 3, 1, 1, 5 * 48, 0, 0, 0},
    {"odd activations", 2, 1, 1, 7 * 5, 0, 0, 0},
    {"attention", 2, 3, 4, 28, 0, 1 << 26, 1 << 13},
    {"odd attention", 2, 2, 5, 11, 0, 1 << 26, 1 << 13},
    {"positions", 1, 1, 9, 16, (4 + 8192) * 16, 0, -16},
    {"odd positions", 1, 1, 9, 12, (4 + 8192) * 12, 0, -12},
    {"positions across zero", 1, 1, 6, 7, 3 * 7, 0, -7},
    {"one value", 1, 1, 1, 1, 0, 0, 0},
};

DropoutDraws draws_of(const Shape& shape, double p) {
  DropoutDraws out;
  out.stream = {philox_key(11, Purpose::kDropout), 37, uint64_t{5} << 30, 6};
  out.threshold = dropout_threshold(p);
  out.scale = dropout_scale(p);
  out.items = shape.items;
  out.heads = shape.heads;
  out.rows = shape.rows;
  out.columns = shape.columns;
  out.first = shape.first;
  out.head_stride = shape.head_stride;
  out.row_stride = shape.row_stride;
  return out;
}

// As the host's vector units make them.
std::vector<float> host_factors(const DropoutDraws& a) {
  std::vector<float> out(static_cast<size_t>(a.items * a.heads * a.rows * a.columns));
  float* at = out.data();
  for (int64_t item = 0; item < a.items; ++item)
    for (int64_t head = 0; head < a.heads; ++head)
      for (int64_t row = 0; row < a.rows; ++row, at += a.columns)
        philox_fill_keep(a.stream.key, a.stream.epoch,
                         stream_position(a.stream, static_cast<uint64_t>(item)),
                         first_draw(a, head, row), a.columns, a.threshold, a.scale, at);
  return out;
}

template <typename T>
void expect_same_bits(const std::vector<T>& actual, const std::vector<T>& expected,
                      const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i)
    ASSERT_EQ(std::memcmp(&actual[i], &expected[i], sizeof(T)), 0) << what << ", value " << i;
}

AERIE_KERNEL_TEST(DropoutDraws, FactorsAreTheHosts) {
  for (const Shape& shape : kShapes)
    for (const double p : {0.0, 0.1, 0.5, 1.0}) {
      DropoutDraws a = draws_of(shape, p);
      const std::vector<float> expected = host_factors(a);
      float* out = backend.scratch<float>(expected.size() + 1);
      a.out = out;
      ASSERT_EQ(backend.kernels().dropout_draws(a, nullptr), kOk);
      const std::vector<float> actual = backend.download(out, expected.size() + 1);
      expect_same_bits({actual.begin(), actual.end() - 1}, expected, shape.what);
      EXPECT_TRUE(std::isnan(actual.back())) << shape.what << " wrote past the end";
    }
}

template <typename T>
void check_products(Backend& backend, Dtype dtype) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const Shape& shape : kShapes) {
    DropoutDraws a = draws_of(shape, 0.3);
    const std::vector<float> factors = host_factors(a);
    // At an odd place in memory, too.
    for (const size_t skip : {size_t{0}, size_t{1}}) {
      std::vector<float> x = random_values(skip + factors.size(), 8, 3.0f, dtype);
      x.back() = kInf;  // times 0 is no number, as everywhere in torch
      std::vector<T> expected;
      for (size_t i = 0; i < factors.size(); ++i)
        expected.push_back(from_float<T>(x[skip + i] * factors[i]));
      a.dtype = dtype;
      T* memory = static_cast<T*>(backend.upload_as(dtype, x)) + skip;
      a.x = memory;
      a.out = memory;  // in place
      ASSERT_EQ(backend.kernels().dropout_draws(a, nullptr), kOk);
      const std::vector<T> actual = backend.download(memory, factors.size());
      for (size_t i = 0; i < actual.size(); ++i) {
        const float got = to_float(actual[i]), want = to_float(expected[i]);
        if (std::isnan(want))
          EXPECT_TRUE(std::isnan(got)) << shape.what << ", value " << i;
        else
          EXPECT_EQ(std::memcmp(&got, &want, sizeof got), 0) << shape.what << ", value " << i;
      }
    }
  }
}

AERIE_KERNEL_TEST(DropoutDraws, ProductsAreRoundedOnce) {
  check_products<float>(backend, Dtype::kF32);
  check_products<Bf16>(backend, Dtype::kBF16);
  check_products<Half>(backend, Dtype::kF16);
}

AERIE_KERNEL_TEST(NormalDraws, AreTheHostsToTheBit) {
  for (const int64_t samples : {1, 5, 64, 1021}) {
    NormalDraws a;
    a.stream = {philox_key(5, Purpose::kDither), 1, uint64_t{9} << 35, 2};
    a.items = 3;
    a.samples = samples;
    const auto count = static_cast<size_t>(a.items * samples);
    a.out = backend.scratch<float>(count + 1);
    ASSERT_EQ(backend.kernels().normal_draws(a, nullptr), kOk);
    const std::vector<float> actual = backend.download(a.out, count + 1);
    std::vector<float> expected(count);
    for (int64_t item = 0; item < a.items; ++item)
      philox_fill_normals(a.stream.key, a.stream.epoch,
                          stream_position(a.stream, static_cast<uint64_t>(item)), 0, samples,
                          expected.data() + item * samples);
    expect_same_bits({actual.begin(), actual.end() - 1}, expected, "normals");
    EXPECT_TRUE(std::isnan(actual.back())) << "wrote past the end";
  }
}

AERIE_KERNEL_TEST(UniformDraws, AreTheHostsToTheBit) {
  for (const int64_t count : {1, 6, 4096, 70001}) {
    UniformDraws a;
    a.key = philox_key(7, Purpose::kWeightInit);
    a.position = 0xfedcba9876543210ull;
    a.bound = 0.0441941738;
    a.count = count;
    a.out = backend.scratch<float>(static_cast<size_t>(count) + 1);
    ASSERT_EQ(backend.kernels().uniform_draws(a, nullptr), kOk);
    const std::vector<float> actual = backend.download(a.out, static_cast<size_t>(count) + 1);
    std::vector<uint32_t> draws(static_cast<size_t>(count));
    philox_fill_u32(a.key, 0, a.position, 0, count, draws.data());
    std::vector<float> expected;
    for (const uint32_t draw : draws) {
      const double u = (draw + 0.5) * 2.3283064365386963e-10;
      expected.push_back(static_cast<float>(a.bound * (2.0 * u - 1.0)));
    }
    expect_same_bits({actual.begin(), actual.end() - 1}, expected, "uniform values");
    EXPECT_TRUE(std::isnan(actual.back())) << "wrote past the end";
  }
}

// Many enough that the rare roundings of logarithm and sine are among them.
TEST(NormalDrawsGpuTest, MillionsAreTheHostsToTheBit) {
  std::string reason;
  const auto backend = cuda_backend(&reason);
  if (backend == nullptr) GTEST_SKIP() << reason;
  NormalDraws a;
  a.stream = {philox_key(77, Purpose::kDither), 0, 123456, 0};
  a.items = 16;
  a.samples = 1'000'003;
  const auto count = static_cast<size_t>(a.items * a.samples);
  a.out = backend->scratch<float>(count);
  ASSERT_EQ(backend->kernels().normal_draws(a, nullptr), kOk);
  std::vector<float> expected(count);
  ASSERT_EQ(reference::normal_draws(
                [&] {
                  NormalDraws host = a;
                  host.out = expected.data();
                  return host;
                }(),
                nullptr),
            kOk);
  expect_same_bits(backend->download(a.out, count), expected, "normals");
}

}  // namespace
}  // namespace aerie::kernels::testing::draws_test
