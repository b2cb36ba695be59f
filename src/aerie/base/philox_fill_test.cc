#include "aerie/base/philox_fill.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "aerie/base/dropout.h"

namespace aerie {
namespace {

constexpr uint64_t kPosition = (uint64_t{3} << 33) | 77;

TEST(PhiloxFillTest, DrawsAreThoseOfTheStream) {
  const PhiloxKey key = philox_key(9, Purpose::kDropout);
  for (const uint64_t first : {uint64_t{0}, uint64_t{1}, uint64_t{6}, uint64_t{63}, uint64_t{8191},
                               (uint64_t{5} << 26) + 3}) {
    for (const int64_t count : {0, 1, 2, 5, 63, 64, 65, 200}) {
      std::vector<uint32_t> out(static_cast<size_t>(count) + 1, 12345u);
      philox_fill_u32(key, 4, kPosition, first, count, out.data());
      for (int64_t k = 0; k < count; ++k)
        ASSERT_EQ(out[static_cast<size_t>(k)],
                  philox_u32(key, 4, kPosition, first + static_cast<uint64_t>(k)))
            << first << " + " << k;
      EXPECT_EQ(out.back(), 12345u) << "wrote past the end";
    }
  }
}

TEST(PhiloxFillTest, KeepsWhereTheDrawReachesTheThreshold) {
  const PhiloxKey key = philox_key(1, Purpose::kDropout);
  for (const uint32_t threshold : {0u, 1u << 15, 0xffffu, 1u << 16}) {
    for (const int64_t count : {3, 64, 128, 259}) {
      std::vector<float> out(static_cast<size_t>(count) + 1, -1.0f);
      philox_fill_keep(key, 0, kPosition, 7, count, threshold, 1.25f, out.data());
      for (int64_t k = 0; k < count; ++k) {
        const uint32_t draw = dropout_draw(key, 0, kPosition, 7 + static_cast<uint64_t>(k));
        ASSERT_EQ(out[static_cast<size_t>(k)], draw >= threshold ? 1.25f : 0.0f);
      }
      EXPECT_EQ(out.back(), -1.0f);
    }
  }
}

TEST(DropoutTest, EightDecisionsOfABlock) {
  const PhiloxKey key = philox_key(3, Purpose::kDropout);
  const PhiloxBlock block = philox_block(key, 21, kPosition, 5);
  for (uint64_t k = 0; k < 8; ++k)
    EXPECT_EQ(dropout_draw(key, 21, kPosition, 40 + k),
              k % 2 == 0 ? block.v[k / 2] & 0xffffu : block.v[k / 2] >> 16);
}

TEST(DropoutTest, NeverAndAlwaysAreExactAndNothingElseIs) {
  EXPECT_EQ(dropout_threshold(0.0), 0u);
  EXPECT_EQ(dropout_threshold(1e-9), 1u);
  EXPECT_EQ(dropout_threshold(0.1), 6554u);
  EXPECT_EQ(dropout_threshold(0.5), 32768u);
  EXPECT_EQ(dropout_threshold(1.0 - 1e-9), 65535u);
  EXPECT_EQ(dropout_threshold(1.0), 65536u);
  EXPECT_EQ(dropout_scale(0.0), 1.0f);
  EXPECT_EQ(dropout_scale(0.2), 1.25f);
  EXPECT_EQ(dropout_scale(1.0), 0.0f);
}

TEST(PhiloxFillTest, NormalsAreThoseOfTheStreamToTheLastBits) {
  const PhiloxKey key = philox_key(2, Purpose::kDither);
  constexpr int64_t kCount = 200'003;
  std::vector<float> out(kCount);
  philox_fill_normals(key, 1, kPosition, 16, kCount, out.data());
  double sum = 0.0, squares = 0.0;
  int64_t different = 0;
  for (int64_t k = 0; k < kCount; ++k) {
    const float value = out[static_cast<size_t>(k)];
    const float want = philox_normal(key, 1, kPosition, 16 + static_cast<uint64_t>(k));
    ASSERT_NEAR(value, want, 2.5e-7 * std::abs(want)) << k;
    if (value != want) ++different;
    sum += value;
    squares += static_cast<double>(value) * value;
  }
  EXPECT_LT(different, kCount / 1000);
  EXPECT_NEAR(sum / kCount, 0.0, 4.0 / std::sqrt(static_cast<double>(kCount)));
  EXPECT_NEAR(squares / kCount, 1.0, 0.02);
}

}  // namespace
}  // namespace aerie
