#include "aerie/train/graph/plan_cache.h"

#include <string>

#include <gtest/gtest.h>

#include "aerie/kernels/kernel_table.h"
#include "aerie/train/graph/graph_memory.h"

namespace aerie::train {
namespace {

struct Plan {
  int shape = 0;
  PlanGraphs graphs{2};
};

class PlanCacheTest : public ::testing::Test {
 protected:
  // Runs the plan of a shape; returns how often work was asked for, a capture included.
  Plan& use(PlanCache<int, Plan>& cache, int shape, size_t way = 0, bool record = true) {
    auto plan = cache.find(shape, [&]() -> Result<std::unique_ptr<Plan>> {
      ++made;
      auto out = std::make_unique<Plan>();
      out->shape = shape;
      return out;
    });
    EXPECT_TRUE(plan.ok());
    EXPECT_EQ((*plan)->shape, shape);
    const Status status = cache.run(
        **plan, way,
        [this](void*) {
          ++ran;
          return 0;
        },
        record);
    EXPECT_TRUE(status.ok()) << status.to_string();
    return **plan;
  }

  std::unique_ptr<device::Stream> stream = device::host_stream(kernels::kReferenceKernels);
  int made = 0, ran = 0;
};

TEST_F(PlanCacheTest, RecordsAShapeThatComesAgain) {
  PlanCache<int, Plan> cache(*stream);
  const auto find = [&] {
    return cache.find(3, []() { return Result(std::make_unique<Plan>()); });
  };
  EXPECT_TRUE(cache.is_early(**find(), 0));
  cache.clear();
  for (int i = 0; i < 4; ++i) {
    Plan& plan = use(cache, 3);
    EXPECT_EQ(cache.num_graphs(), i == 0 ? 0 : 1);
    EXPECT_EQ(cache.is_early(plan, 0), i < 1);
    EXPECT_TRUE(cache.is_early(plan, 1));
  }
  EXPECT_EQ(made, 1);
  EXPECT_EQ(ran, 4);
  use(cache, 3, 1);
  use(cache, 3, 1);
  EXPECT_EQ(cache.num_graphs(), 2);
  cache.drop_graphs();
  EXPECT_EQ(cache.num_graphs(), 0);
  EXPECT_EQ(cache.size(), 1u);
  use(cache, 3);  // known by now: recorded at once
  EXPECT_EQ(cache.num_graphs(), 1);
}

TEST_F(PlanCacheTest, WhatMayNotBeRecordedRunsAllTheSame) {
  PlanCache<int, Plan> cache(*stream);
  for (int i = 0; i < 3; ++i) use(cache, 1, 0, /*record=*/false);
  EXPECT_EQ(ran, 3);
  EXPECT_EQ(cache.num_graphs(), 0);
}

TEST_F(PlanCacheTest, TheOldestPlanGoes) {
  PlanLimits limits;
  limits.plans = 3;
  PlanCache<int, Plan> cache(*stream, limits);
  for (const int shape : {1, 2, 3, 1, 4}) use(cache, shape);  // 2 goes
  EXPECT_EQ(cache.size(), 3u);
  EXPECT_EQ(made, 4);
  for (const int shape : {1, 3, 4}) use(cache, shape);
  EXPECT_EQ(made, 4);
  use(cache, 2);
  EXPECT_EQ(made, 5);
}

TEST_F(PlanCacheTest, AGraphMakesRoomOnlyAfterALongRest) {
  PlanLimits limits;
  limits.graphs = 2;
  limits.graph_rests = 10;
  PlanCache<int, Plan> cache(*stream, limits);
  for (const int shape : {1, 1, 2, 2, 3, 3}) use(cache, shape);
  EXPECT_EQ(cache.num_graphs(), 2);
  EXPECT_EQ(use(cache, 3).graphs.num_graphs(), 0);
  for (int i = 0; i < 10; ++i) use(cache, 2);
  EXPECT_EQ(use(cache, 3).graphs.num_graphs(), 1);
  EXPECT_EQ(use(cache, 2).graphs.num_graphs(), 1);
  EXPECT_EQ(cache.num_graphs(), 2);
}

TEST_F(PlanCacheTest, ErrorsOfWorkAndOfMakingAPlanAreReported) {
  PlanCache<int, Plan> cache(*stream);
  const auto failed =
      cache.find(1, []() -> Result<std::unique_ptr<Plan>> { return out_of_memory("no room"); });
  EXPECT_EQ(failed.status().code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(cache.size(), 0u);
  Plan& plan = use(cache, 1);
  EXPECT_FALSE(cache.run(plan, 1, [](void*) { return 7; }).ok());
}

// Memory that moves when it grows, or has no room at first.
class FakeArena final : public device::Arena {
 public:
  explicit FakeArena(bool moves, int failures) : moves_(moves), failures_(failures) {}
  void* data() const override { return size_ > 0 ? const_cast<char*>(at_) : nullptr; }
  size_t size() const override { return size_; }
  Status grow(size_t bytes) override {
    if (bytes <= size_) return ok_status();
    if (failures_ > 0) {
      --failures_;
      return out_of_memory("no room");
    }
    if (moves_ && size_ > 0) ++at_;
    size_ = bytes;
    return ok_status();
  }

 private:
  bool moves_;
  int failures_;
  char block_[16] = {};
  char* at_ = block_;
  size_t size_ = 0;
};

TEST(GraphMemoryTest, SaysWhenAddressesChange) {
  for (const bool moves : {false, true}) {
    int moved = 0;
    GraphMemory memory(std::make_unique<FakeArena>(moves, 0), {[&] { ++moved; }, {}});
    EXPECT_TRUE(memory.grow(1).ok());
    EXPECT_EQ(moved, 0);  // nobody had an address
    EXPECT_TRUE(memory.grow(1).ok());
    EXPECT_EQ(moved, 0);
    EXPECT_TRUE(memory.grow(2).ok());
    EXPECT_EQ(moved, moves ? 1 : 0);
    EXPECT_EQ(memory.size(), 2u);
  }
}

TEST(GraphMemoryTest, OthersMakeRoomOnce) {
  for (const int failures : {1, 2}) {
    int asked = 0;
    GraphMemory memory(std::make_unique<FakeArena>(false, failures), {{}, [&] {
                                                                        ++asked;
                                                                        return true;
                                                                      }});
    EXPECT_EQ(memory.grow(1).ok(), failures == 1);
    EXPECT_EQ(asked, 1);
  }
  GraphMemory alone(std::make_unique<FakeArena>(false, 1), {});
  EXPECT_EQ(alone.grow(1).code(), StatusCode::kOutOfMemory);
}

}  // namespace
}  // namespace aerie::train
