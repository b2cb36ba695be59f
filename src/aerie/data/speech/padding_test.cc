#include "aerie/data/speech/padding.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "aerie/base/philox.h"
#include "aerie/data/speech/row_convert.h"

namespace aerie::data {
namespace {

TEST(PaddingTest, FewLengthsWasteLittle) {
  // Two clusters and two lengths: one length at the top of each.
  std::vector<int64_t> needs;
  for (int i = 0; i < 100; ++i) needs.push_back(1000 + i % 10);
  for (int i = 0; i < 50; ++i) needs.push_back(5000 + i % 7);
  const Capacities two = Capacities::choose(needs, 5006, 2, 1);
  ASSERT_EQ(two.lengths().size(), 2u);
  EXPECT_EQ(two.lengths()[0], 1009);
  EXPECT_EQ(two.lengths()[1], 5006);
  EXPECT_EQ(two.fit(1), 1009);
  EXPECT_EQ(two.fit(1009), 1009);
  EXPECT_EQ(two.fit(1010), 5006);
  EXPECT_EQ(two.fit(6000), 6000);
  const Capacities one = Capacities::choose(needs, 5006, 1, 64);
  ASSERT_EQ(one.lengths().size(), 1u);
  EXPECT_EQ(one.lengths()[0], 5056);
  EXPECT_EQ(one.fit(6000), 6016);
}

TEST(PaddingTest, IsTheBestChoiceThereIs) {
  RandomStream random(1, Purpose::kTest, 0, 0);
  for (int round = 0; round < 30; ++round) {
    std::vector<int64_t> needs;
    for (int i = 0; i < 9; ++i) needs.push_back(1 + static_cast<int64_t>(random.below(20)));
    const int64_t longest = *std::max_element(needs.begin(), needs.end());
    const Capacities chosen = Capacities::choose(needs, longest, 3, 1);
    const auto waste = [&](auto&& fit) {
      int64_t total = 0;
      for (const int64_t need : needs) total += fit(need) - need;
      return total;
    };
    const int64_t got = waste([&](int64_t n) { return chosen.fit(n); });
    for (int64_t a = 1; a <= longest; ++a)
      for (int64_t b = a; b <= longest; ++b)
        EXPECT_LE(got, waste([&](int64_t n) { return n <= a ? a : n <= b ? b : longest; }));
  }
}

TEST(PaddingTest, ManyDifferentLengthsAreHandled) {
  std::vector<int64_t> needs;
  RandomStream random(2, Purpose::kTest, 0, 0);
  for (int i = 0; i < 5000; ++i)
    needs.push_back(16000 + static_cast<int64_t>(random.below(900000)));
  const Capacities chosen = Capacities::choose(needs, 960000, 16, 64);
  EXPECT_EQ(chosen.lengths().size(), 16u);
  double waste = 0, total = 0;
  for (const int64_t need : needs) {
    const int64_t length = chosen.fit(need);
    EXPECT_GE(length, need);
    EXPECT_EQ(length % 64, 0);
    waste += static_cast<double>(length - need);
    total += static_cast<double>(length);
  }
  EXPECT_LT(waste / total, 0.07);
  EXPECT_TRUE(Capacities::choose({}, 100, 4, 1).lengths().size() == 1);
}

TEST(RowConvertTest, EveryPathGivesTheSameNumbers) {
  std::vector<int16_t> in;
  RandomStream random(3, Purpose::kTest, 0, 0);
  for (int i = 0; i < 20000; ++i) in.push_back(static_cast<int16_t>(random.next_u32()));
  for (int i = 0; i < 64; ++i) in.push_back(-32768);
  alignas(64) static float out[20100], copy[20100], expected[20100];
  for (const int64_t n : {0, 1, 15, 16, 17, 500, 1064, 16384, 20064}) {
    for (const int64_t shift : {0, 1, 8}) {
      const int64_t energy = convert_row_reference(in.data(), n, expected, nullptr);
      EXPECT_EQ(convert_row(in.data(), n, out + shift, copy + shift), energy);
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(out[shift + i], expected[i]);
        ASSERT_EQ(copy[shift + i], expected[i]);
        ASSERT_EQ(expected[i], static_cast<float>(in[i]) / 32768.0f);
      }
      EXPECT_EQ(convert_row(in.data(), n, out + shift, nullptr), energy);
    }
  }
}

}  // namespace
}  // namespace aerie::data
