#include "aerie/kernels/philox/philox_fill.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "aerie/device/gpu.h"

namespace aerie::kernels {
namespace {

struct Case {
  uint64_t seed;
  uint32_t epoch;
  uint64_t position;
  size_t n;
};

const Case kCases[] = {
    {0, 0, 0, 1}, {1234, 3, 7, 4}, {~0ull, ~0u, ~0ull, 1021}, {42, 1, 1ull << 40, 1 << 20}};

TEST(PhiloxFillTest, ReferenceEqualsTheSequentialStream) {
  for (const Case& c : kCases) {
    std::vector<uint32_t> out(c.n);
    philox_fill_u32_ref(out.data(), c.n, philox_key(c.seed, Purpose::kTest), c.epoch, c.position);
    RandomStream stream(c.seed, Purpose::kTest, c.epoch, c.position);
    for (size_t i = 0; i < c.n; ++i) ASSERT_EQ(out[i], stream.next_u32()) << i;
  }
}

TEST(PhiloxFillTest, NormalsEqualTheSequentialStream) {
  std::vector<float> out(1001);
  philox_fill_normal_ref(out.data(), out.size(), philox_key(5, Purpose::kDither), 0, 9);
  RandomStream stream(5, Purpose::kDither, 0, 9);
  for (size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], stream.normal()) << i;
}

TEST(PhiloxFillGpuTest, IntegersAgreeBitwiseWithTheReference) {
  const auto module = device::gpu_module();
  if (!module.ok()) GTEST_SKIP() << module.status().to_string();
  for (const Case& c : kCases) {
    const PhiloxKey key = philox_key(c.seed, Purpose::kTest);
    std::vector<uint32_t> expected(c.n), actual(c.n);
    philox_fill_u32_ref(expected.data(), c.n, key, c.epoch, c.position);
    const Status status = (*module)->philox_u32(key, c.epoch, c.position, actual);
    ASSERT_TRUE(status.ok()) << status.to_string();
    ASSERT_EQ(actual, expected);
  }
}

TEST(PhiloxFillGpuTest, NormalsAgreeToOneMillionth) {
  const auto module = device::gpu_module();
  if (!module.ok()) GTEST_SKIP() << module.status().to_string();
  for (const Case& c : kCases) {
    const PhiloxKey key = philox_key(c.seed, Purpose::kTest);
    std::vector<float> expected(c.n), actual(c.n);
    philox_fill_normal_ref(expected.data(), c.n, key, c.epoch, c.position);
    const Status status = (*module)->philox_normal(key, c.epoch, c.position, actual);
    ASSERT_TRUE(status.ok()) << status.to_string();
    for (size_t i = 0; i < c.n; ++i) ASSERT_NEAR(actual[i], expected[i], 1e-6) << i;
  }
}

}  // namespace
}  // namespace aerie::kernels
