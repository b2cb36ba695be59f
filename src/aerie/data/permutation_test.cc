#include "aerie/data/permutation.h"

#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "aerie/data/numpy_random.h"

namespace aerie::data {
namespace {

TEST(PermutationTest, IsABijectionOfAnySize) {
  for (const uint64_t n : {0u, 1u, 2u, 3u, 100u, 4096u, 4097u, 5000u, 8192u, 8193u, 100003u}) {
    const Permutation permutation(n, 7, Purpose::kShuffle, 3, 1);
    EXPECT_EQ(permutation.size(), n);
    std::vector<bool> seen(n);
    for (uint64_t i = 0; i < n; ++i) {
      const uint64_t image = permutation(i);
      ASSERT_LT(image, n);
      ASSERT_FALSE(seen[image]) << n << " " << i;
      seen[image] = true;
    }
  }
}

TEST(PermutationTest, DependsOnEveryPartOfItsKey) {
  for (const uint64_t n : {1000u, 50000u}) {
    const Permutation base(n, 1, Purpose::kShuffle, 0, 0);
    const Permutation others[] = {{n, 2, Purpose::kShuffle, 0, 0},
                                  {n, 1, Purpose::kSampling, 0, 0},
                                  {n, 1, Purpose::kShuffle, 1, 0},
                                  {n, 1, Purpose::kShuffle, 0, 1}};
    const Permutation same(n, 1, Purpose::kShuffle, 0, 0);
    for (const Permutation& other : others) {
      uint64_t equal = 0;
      for (uint64_t i = 0; i < n; ++i) {
        equal += base(i) == other(i);
        ASSERT_EQ(base(i), same(i));
      }
      EXPECT_LT(equal, 12u);  // one is expected
    }
  }
}

TEST(PermutationTest, SpreadsNeighboursEvenly) {
  // The image of the first tenth, and the jump between neighbours, fill ten bins evenly.
  constexpr uint64_t kSize = 100000;
  const Permutation permutation(kSize, 11, Purpose::kShuffle, 0, 0);
  double first[10] = {}, jump[10] = {};
  for (uint64_t i = 0; i < kSize / 10; ++i) {
    first[permutation(i) * 10 / kSize] += 1;
    const uint64_t step = (permutation(i + 1) + kSize - permutation(i)) % kSize;
    jump[step * 10 / kSize] += 1;
  }
  double chi_first = 0, chi_jump = 0;
  for (int k = 0; k < 10; ++k) {
    chi_first += (first[k] - 1000) * (first[k] - 1000) / 1000;
    chi_jump += (jump[k] - 1000) * (jump[k] - 1000) / 1000;
  }
  EXPECT_LT(chi_first, 27.9);  // nine degrees of freedom, p = 0.001
  EXPECT_LT(chi_jump, 27.9);
}

TEST(PermutationTest, EveryOrderOfThreeIsEquallyLikely) {
  int hits[6] = {};
  for (uint32_t epoch = 0; epoch < 6000; ++epoch) {
    const Permutation p(3, 5, Purpose::kShuffle, epoch, 0);
    ++hits[p(0) * 2 + (p(1) > p(2) ? 1 : 0)];
  }
  double chi2 = 0;
  for (const int hit : hits) chi2 += (hit - 1000.0) * (hit - 1000.0) / 1000.0;
  EXPECT_LT(chi2, 20.5);  // five degrees of freedom, p = 0.001
}

TEST(PermutationTest, IdentityLeavesEverything) {
  const Permutation identity = Permutation::identity(10000);
  for (uint64_t i = 0; i < 10000; ++i) ASSERT_EQ(identity(i), i);
}

TEST(NumpyRandomTest, PermutationsEqualNumpys) {
  using List = std::vector<uint32_t>;
  EXPECT_EQ(NumpyRandomState(0).permutation(2), (List{1, 0}));
  EXPECT_EQ(NumpyRandomState(0).permutation(3), (List{2, 1, 0}));
  EXPECT_EQ(NumpyRandomState(0).permutation(4), (List{2, 3, 1, 0}));
  EXPECT_EQ(NumpyRandomState(0).permutation(8), (List{6, 2, 1, 7, 3, 0, 5, 4}));
  NumpyRandomState state(0);
  state.permutation(4);
  EXPECT_EQ(state.permutation(4), (List{0, 2, 1, 3}));
  EXPECT_EQ(state.permutation(4), (List{3, 0, 2, 1}));
  EXPECT_EQ(NumpyRandomState(12345).permutation(10), (List{0, 7, 3, 9, 6, 4, 1, 8, 5, 2}));
  EXPECT_EQ(NumpyRandomState(4294967295u).permutation(5), (List{4, 1, 0, 2, 3}));
  EXPECT_EQ(NumpyRandomState(1).permutation(0), List{});
  EXPECT_EQ(NumpyRandomState(1).permutation(1), List{0});
}

}  // namespace
}  // namespace aerie::data
