#include "aerie/device/arena.h"

#include <cstring>

#include <gtest/gtest.h>

#include "aerie/device/gpu.h"

namespace aerie::device {
namespace {

TEST(ArenaTest, GrowsInPlaceAndKeepsWhatItHolds) {
  auto arena = host_arena();
  ASSERT_TRUE(arena.ok()) << arena.status().to_string();
  EXPECT_EQ((*arena)->data(), nullptr);
  ASSERT_TRUE((*arena)->grow(1000).ok());
  void* const first = (*arena)->data();
  std::memset(first, 7, 1000);
  for (const size_t bytes : {size_t{1} << 20, size_t{3} << 20, size_t{100} << 20}) {
    ASSERT_TRUE((*arena)->grow(bytes).ok());
    EXPECT_EQ((*arena)->data(), first);
    EXPECT_GE((*arena)->size(), bytes);
    static_cast<char*>(first)[bytes - 1] = 1;
    EXPECT_EQ(static_cast<char*>(first)[999], 7);
  }
}

TEST(ArenaTest, TooMuchLeavesItAsItWas) {
  auto arena = host_arena();
  ASSERT_TRUE(arena.ok());
  ASSERT_TRUE((*arena)->grow(1 << 20).ok());
  const size_t before = (*arena)->size();
  EXPECT_EQ((*arena)->grow(size_t{1} << 50).code(), StatusCode::kOutOfMemory);
  EXPECT_EQ((*arena)->size(), before);
  EXPECT_NE((*arena)->data(), nullptr);
}

#ifdef AERIE_HAVE_CUDA
TEST(ArenaGpuTest, GrowsInPlaceAndKeepsWhatItHolds) {
  auto module = gpu_module();
  if (!module.ok()) GTEST_SKIP() << module.status().message();
  auto arena = (*module)->make_arena();
  ASSERT_TRUE(arena.ok()) << arena.status().to_string();
  ASSERT_TRUE((*arena)->grow(1 << 20).ok());
  void* const first = (*arena)->data();
  const std::vector<char> sent(1 << 20, 5);
  std::vector<char> back(sent.size());
  ASSERT_TRUE((*module)->copy_to_device(first, sent.data(), sent.size()).ok());
  ASSERT_TRUE((*arena)->grow(size_t{300} << 20).ok());
  EXPECT_EQ((*arena)->data(), first);
  ASSERT_TRUE((*module)->copy_from_device(back.data(), first, back.size()).ok());
  EXPECT_EQ(back, sent);
  // The end of what is new can be used; a device's whole memory twice cannot be had.
  char* const end = static_cast<char*>(first) + (size_t{300} << 20) - back.size();
  ASSERT_TRUE((*module)->copy_to_device(end, sent.data(), sent.size()).ok());
  const uint64_t all = driver().gpus.front().memory_bytes;
  EXPECT_EQ((*arena)->grow(2 * all).code(), StatusCode::kOutOfMemory);
  EXPECT_EQ((*arena)->grow(all).code(), StatusCode::kOutOfMemory);
  EXPECT_EQ((*arena)->data(), first);
}

TEST(ArenaGpuTest, LargePinnedBlocksAreUsableAndFreed) {
  auto module = gpu_module();
  if (!module.ok()) GTEST_SKIP() << module.status().message();
  for (const size_t bytes : {size_t{1000}, size_t{64} << 20}) {
    auto block = (*module)->allocate_pinned(bytes);
    ASSERT_TRUE(block.ok()) << block.status().to_string();
    std::memset(*block, 3, bytes);
    auto device = (*module)->allocate_device(bytes);
    ASSERT_TRUE(device.ok());
    EXPECT_TRUE((*module)->copy_to_device(*device, *block, bytes).ok());
    (*module)->free_device(*device);
    (*module)->free_pinned(*block);
  }
}
#endif

}  // namespace
}  // namespace aerie::device
