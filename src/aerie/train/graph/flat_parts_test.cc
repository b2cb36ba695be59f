#include "aerie/train/graph/flat_parts.h"

#include <string>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include "aerie/kernels/adamw/adamw.h"
#include "aerie/train/graph/backward_watch.h"

namespace aerie::train {
namespace {

constexpr int64_t kChunk = kernels::kAdamwChunk;

// Parameters "0", "1", ... of so many values; the first letter of a name is its part.
void add(nn::ParameterRegistry& registry, const std::string& name, int64_t values) {
  nn::ParamInfo info;
  info.name = name;
  info.shape = {values};
  registry.add(std::move(info));
}
int part_of(const nn::ParamInfo& info) {
  return info.name[0] - '0';
}

TEST(FlatPartsTest, EveryChunkBelongsToTheFirstPartThatNeedsIt) {
  nn::ParameterRegistry registry;
  add(registry, "1.a", kChunk + 100);  // chunks 0 and 1
  add(registry, "0.a", kChunk / 2);    // chunk 1
  add(registry, "2.a", 2 * kChunk);    // chunks 1 to 3
  add(registry, "1.b", 8);             // chunk 3
  registry.materialize(at::kCPU);
  const FlatParts parts = make_flat_parts(registry, 3, part_of);
  EXPECT_EQ(parts.size(), 3);
  EXPECT_EQ(parts.of_trainable, (std::vector<int>{1, 0, 2, 1}));
  std::vector<int> owner(static_cast<size_t>(parts.count), -1);
  for (int part = 0; part < parts.size(); ++part)
    for (const FlatRange& range : parts.ranges(part))
      for (int64_t i = range.begin; i < range.begin + range.count; ++i) {
        ASSERT_LT(i, parts.count);
        EXPECT_EQ(owner[static_cast<size_t>(i)], -1);
        owner[static_cast<size_t>(i)] = part;
      }
  for (const int part : owner) EXPECT_NE(part, -1);
  EXPECT_EQ(owner[0], 1);
  EXPECT_EQ(owner[static_cast<size_t>(kChunk)], 0);
  EXPECT_EQ(owner[static_cast<size_t>(2 * kChunk)], 2);
  EXPECT_EQ(owner.back(), 1);
  for (size_t t = 0; t < parts.of_trainable.size(); ++t) {
    const nn::ParamInfo& info = registry.entries()[t];
    for (int64_t i = info.flat_offset; i < info.flat_offset + info.numel; ++i)
      EXPECT_LE(owner[static_cast<size_t>(i)], parts.of_trainable[t]);
  }
}

// Parts come from the last to the first, each when nothing is added to it any more.
TEST(BackwardWatchTest, ReportsPartsAsTheyAreWritten) {
  nn::ParameterRegistry registry;
  for (const char* name : {"0.a", "1.a", "1.b", "2.a"}) add(registry, name, kChunk);
  registry.materialize(at::kCPU);
  const FlatParts parts = make_flat_parts(registry, 3, part_of);
  const auto loss = [&](bool all) {
    at::Tensor x = registry["0.a"] * 2.0 + 1.0;
    x = x * (registry["1.a"] + 3.0);
    if (all) x = x + registry["1.b"] * x;
    return (x * (registry["2.a"] - 1.0)).sum();
  };
  BackwardWatch watch(registry, parts);
  for (const bool all : {true, false}) {
    std::vector<int> order;
    std::vector<at::Tensor> seen;
    registry.zero_grad();
    loss(all).backward();  // nobody asks
    watch.arm([&](int part) {
      order.push_back(part);
      const FlatRange range = parts.ranges(part).front();
      seen.push_back(registry.flat_grads().narrow(0, range.begin, range.count).clone());
    });
    loss(all).backward();
    // Without all parameters, the parts wait for the end.
    EXPECT_EQ(order, all ? (std::vector<int>{2, 1, 0}) : (std::vector<int>{2}));
    watch.finish();
    EXPECT_EQ(order, (std::vector<int>{2, 1, 0}));
    for (size_t i = 0; i < seen.size(); ++i) {
      const FlatRange range = parts.ranges(order[i]).front();
      EXPECT_TRUE(seen[i].equal(registry.flat_grads().narrow(0, range.begin, range.count)));
    }
  }
}

}  // namespace
}  // namespace aerie::train
