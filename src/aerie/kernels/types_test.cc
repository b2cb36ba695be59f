#include "aerie/kernels/types.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "aerie/kernels/per_device.h"

namespace aerie::kernels {
namespace {

TEST(NarrowTypesTest, EveryValueSurvivesTheWayThroughFloat) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const uint16_t narrow = static_cast<uint16_t>(bits);
    const float half = half_bits_to_float(narrow);
    EXPECT_TRUE(std::isnan(half) || float_to_half_bits(half) == narrow);
    const float brain = bf16_bits_to_float(narrow);
    EXPECT_TRUE(std::isnan(brain) || float_to_bf16_bits(brain) == narrow);
  }
}

TEST(NarrowTypesTest, RoundsToNearestEven) {
  EXPECT_EQ(half_bits_to_float(float_to_half_bits(1.0f + 0.00048828125f)), 1.0f);  // half an ulp
  EXPECT_EQ(half_bits_to_float(float_to_half_bits(1.0f + 3 * 0.00048828125f)), 1.001953125f);
  EXPECT_EQ(half_bits_to_float(float_to_half_bits(65519.0f)), 65504.0f);
  EXPECT_TRUE(std::isinf(half_bits_to_float(float_to_half_bits(65520.0f))));
  EXPECT_EQ(half_bits_to_float(float_to_half_bits(2.9802322e-08f)), 0.0f);  // half of the smallest
  EXPECT_EQ(half_bits_to_float(float_to_half_bits(3e-08f)), 5.9604644775390625e-8f);
  EXPECT_TRUE(std::isnan(half_bits_to_float(float_to_half_bits(std::nanf("")))));
  EXPECT_EQ(bf16_bits_to_float(float_to_bf16_bits(1.0f + 0.00390625f)), 1.0f);
  EXPECT_EQ(bf16_bits_to_float(float_to_bf16_bits(1.0f + 3 * 0.00390625f)), 1.015625f);
  EXPECT_TRUE(std::isnan(bf16_bits_to_float(float_to_bf16_bits(std::nanf("")))));
  EXPECT_TRUE(std::isinf(bf16_bits_to_float(float_to_bf16_bits(3.4e38f))));
}

TEST(PerDeviceTest, EachDeviceIsAskedOnceAndAnswersForItself) {
  PerDevice counts;
  int asked = 0;
  const auto find = [&](int answer) {
    return [&asked, answer] {
      ++asked;
      return answer;
    };
  };
  EXPECT_EQ(counts.get(0, find(132)), 132);
  EXPECT_EQ(counts.get(1, find(0)), 0);
  EXPECT_EQ(counts.get(0, find(7)), 132);
  EXPECT_EQ(counts.get(1, find(7)), 0);
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(counts.get(-1, find(7)), 7);  // no device: nothing to keep it under
  EXPECT_EQ(counts.get(-1, find(8)), 8);
  EXPECT_EQ(counts.get(1000, find(9)), 9);
}

}  // namespace
}  // namespace aerie::kernels
