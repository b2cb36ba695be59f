#include "aerie/train/best_checkpoints.h"

#include <cmath>

#include <gtest/gtest.h>

namespace aerie::train {
namespace {

TEST(BestCheckpointsTest, ThePoorestGivesWayAndOfEqualOnesTheEarliest) {
  BestCheckpoints best(2, false);
  EXPECT_TRUE(best.admits(std::nan("")));
  best.add({"a", 3.0, 1});
  EXPECT_EQ(best.gives_way(), std::nullopt);
  best.add({"b", 3.0, 2});
  EXPECT_FALSE(best.admits(3.0));
  EXPECT_FALSE(best.admits(std::nan("")));
  EXPECT_TRUE(best.admits(2.9));
  EXPECT_EQ(best.gives_way(), "a");
  EXPECT_EQ(best.best(), "a");
  best.add({"c", 2.0, 3});
  EXPECT_TRUE(best.too_many());
  EXPECT_EQ(best.poorest(), "a");
  EXPECT_EQ(best.best(), "c");
  EXPECT_EQ(best.of_step(2)->stem, "b");
  EXPECT_EQ(best.not_worse_than(3.0), 3);
  EXPECT_EQ(best.not_worse_than(2.5), 1);
}

TEST(BestCheckpointsTest, WhatIsNotANumberIsTheWorstEitherWay) {
  for (const bool higher : {false, true}) {
    BestCheckpoints best(1, higher);
    best.add({"nan", std::nan(""), 1});
    EXPECT_TRUE(best.admits(1e30));
    EXPECT_TRUE(best.admits(-1e30));
    EXPECT_FALSE(best.admits(std::nan("")));
  }
}

TEST(BestCheckpointsTest, NoneAndAll) {
  BestCheckpoints none(0, false), all(-1, false);
  EXPECT_FALSE(none.admits(1.0));
  for (int i = 0; i < 100; ++i) all.add({std::to_string(i), 5.0, i});
  EXPECT_TRUE(all.admits(9.0));
  EXPECT_EQ(all.gives_way(), std::nullopt);
  EXPECT_FALSE(all.too_many());
}

}  // namespace
}  // namespace aerie::train
