#include "aerie/base/philox.h"

#include <cmath>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace aerie {
namespace {

void expect_block(const PhiloxBlock& block, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  EXPECT_EQ(block.v[0], a);
  EXPECT_EQ(block.v[1], b);
  EXPECT_EQ(block.v[2], c);
  EXPECT_EQ(block.v[3], d);
}

// The known-answer vectors that the authors of Philox publish.
TEST(PhiloxTest, MatchesThePublishedVectors) {
  expect_block(philox4x32(0, 0, 0, 0, {0, 0}), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8);
  const uint32_t ones = 0xffffffff;
  expect_block(philox4x32(ones, ones, ones, ones, {ones, ones}), 0x408f276d, 0x41c83b0e, 0xa20bc7c6,
               0x6d5451fd);
  expect_block(philox4x32(0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, {0xa4093822, 0x299f31d0}),
               0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1);
}

// Part of the reproducibility contract: a change here changes every run.
TEST(PhiloxTest, StreamsAreFrozen) {
  RandomStream stream(1234, Purpose::kAugment, 5, (uint64_t{7} << 32) | 9);
  const PhiloxKey key = philox_key(1234, Purpose::kAugment);
  for (uint64_t i = 0; i < 10; ++i)
    EXPECT_EQ(stream.next_u32(), philox_u32(key, 5, (uint64_t{7} << 32) | 9, i));
  EXPECT_EQ(mix64(0), 0xe220a8397b1dcdafull) << "the first output of SplitMix64 from 0";
  expect_block(philox_block(key, 5, (uint64_t{7} << 32) | 9, 0), 4184713251u, 1527459549u,
               3015858192u, 1723914009u);
}

TEST(PhiloxTest, UniformsFillTheUnitIntervalEvenly) {
  constexpr int kDraws = 200'000;
  constexpr int kBins = 64;
  RandomStream stream(1, Purpose::kTest, 0, 0);
  std::vector<int> doubles(kBins), floats(kBins);
  double sum = 0.0, sum_squares = 0.0;
  for (int i = 0; i < kDraws; ++i) {
    const double u = stream.uniform();
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    sum_squares += u * u;
    ++doubles[static_cast<size_t>(u * kBins)];
    const float f = u32_to_unit_float(stream.next_u32());
    ASSERT_LT(f, 1.0f);
    ++floats[static_cast<size_t>(f * kBins)];
  }
  const double mean = sum / kDraws;
  EXPECT_NEAR(mean, 0.5, 4 * std::sqrt(1.0 / 12 / kDraws));
  EXPECT_NEAR(sum_squares / kDraws - mean * mean, 1.0 / 12, 1e-3);
  for (const auto& bins : {doubles, floats}) {
    double chi = 0.0;
    const double expected = static_cast<double>(kDraws) / kBins;
    for (const int count : bins) chi += (count - expected) * (count - expected) / expected;
    EXPECT_LT(chi, 63 + 5 * std::sqrt(2.0 * 63)) << "chi squared of 63 degrees of freedom";
    EXPECT_GT(chi, 63 - 5 * std::sqrt(2.0 * 63)) << "too even to be random";
  }
  EXPECT_EQ(u32_to_unit_float(0xffffffff), 1.0f - 0x1p-24f);
  EXPECT_LT(u32x2_to_unit_double(0xffffffff, 0xffffffff), 1.0);
}

TEST(PhiloxTest, NormalsHaveTheRightMoments) {
  constexpr int kDraws = 200'000;
  RandomStream stream(2, Purpose::kTest, 0, 0);
  double m1 = 0, m2 = 0, m3 = 0, m4 = 0;
  int beyond_two = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = stream.normal();
    m1 += x;
    m2 += x * x;
    m3 += x * x * x;
    m4 += x * x * x * x;
    beyond_two += std::fabs(x) > 2.0 ? 1 : 0;
  }
  EXPECT_NEAR(m1 / kDraws, 0.0, 0.01);
  EXPECT_NEAR(m2 / kDraws, 1.0, 0.02);
  EXPECT_NEAR(m3 / kDraws, 0.0, 0.04);
  EXPECT_NEAR(m4 / kDraws, 3.0, 0.1);
  EXPECT_NEAR(static_cast<double>(beyond_two) / kDraws, 0.0455, 0.003);
}

TEST(PhiloxTest, NormalsAreFiniteAtTheEdges) {
  for (const uint32_t a : {0u, 1u, 0xffffffffu}) {
    for (const uint32_t b : {0u, 0x80000000u, 0xffffffffu}) {
      float first, second;
      u32x2_to_normals(a, b, &first, &second);
      EXPECT_TRUE(std::isfinite(first) && std::isfinite(second)) << a << " " << b;
    }
  }
  const PhiloxKey key = philox_key(3, Purpose::kDither);
  RandomStream stream(3, Purpose::kDither, 1, 2);
  for (uint64_t i = 0; i < 9; ++i) EXPECT_EQ(philox_normal(key, 1, 2, i), stream.normal());
}

double correlation(RandomStream a, RandomStream b) {
  constexpr int kDraws = 20'000;
  double sum = 0.0;
  for (int i = 0; i < kDraws; ++i) sum += (a.uniform() - 0.5) * (b.uniform() - 0.5);
  return sum / kDraws * 12.0;
}

TEST(PhiloxTest, StreamsThatDifferInAnyKeyAreIndependent) {
  const auto base = [] { return RandomStream(10, Purpose::kShuffle, 3, 100); };
  const RandomStream others[] = {RandomStream(11, Purpose::kShuffle, 3, 100),
                                 RandomStream(10, Purpose::kMask, 3, 100),
                                 RandomStream(10, Purpose::kShuffle, 4, 100),
                                 RandomStream(10, Purpose::kShuffle, 3, 101),
                                 RandomStream(10, Purpose::kShuffle, 3, (uint64_t{1} << 32) + 100),
                                 RandomStream((uint64_t{1} << 63) + 10, Purpose::kShuffle, 3, 100)};
  for (const RandomStream& other : others)
    EXPECT_NEAR(correlation(base(), other), 0.0, 5.0 / std::sqrt(20'000.0));
  EXPECT_NEAR(correlation(base(), base()), 1.0, 0.03) << "the same stream does correlate";
}

TEST(PhiloxTest, KeysOfNearbySeedsAndPurposesDiffer) {
  std::set<uint64_t> keys;
  for (uint64_t seed = 0; seed < 1000; ++seed)
    for (uint32_t purpose = 0; purpose < 16; ++purpose) {
      const PhiloxKey key = philox_key(seed, static_cast<Purpose>(purpose));
      keys.insert((static_cast<uint64_t>(key.k0) << 32) | key.k1);
    }
  EXPECT_EQ(keys.size(), 16'000u);
}

TEST(PhiloxTest, BelowIsUnbiased) {
  RandomStream stream(4, Purpose::kTest, 0, 0);
  for (const uint64_t n : {uint64_t{1}, uint64_t{2}, uint64_t{3}, uint64_t{7}, uint64_t{100}}) {
    constexpr int kDraws = 70'000;
    std::vector<int> counts(n);
    for (int i = 0; i < kDraws; ++i) {
      const uint64_t drawn = stream.below(n);
      ASSERT_LT(drawn, n);
      ++counts[drawn];
    }
    const double expected = static_cast<double>(kDraws) / static_cast<double>(n);
    for (const int count : counts) EXPECT_NEAR(count, expected, 5 * std::sqrt(expected) + 1e-9);
  }
  // With n = 3 * 2^62 a plain multiply-shift hits every third value twice as often.
  const uint64_t wide = uint64_t{3} << 62;
  int thirds[3] = {};
  for (int i = 0; i < 30'000; ++i) ++thirds[stream.below(wide) % 3];
  for (const int count : thirds) EXPECT_NEAR(count, 10'000, 500);
}

TEST(PhiloxTest, RandintIncludesBothEnds) {
  RandomStream stream(5, Purpose::kTest, 0, 0);
  std::set<int64_t> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(stream.randint(-2, 2));
  EXPECT_EQ(seen, (std::set<int64_t>{-2, -1, 0, 1, 2}));
  EXPECT_EQ(stream.randint(9, 9), 9);
}

}  // namespace
}  // namespace aerie
