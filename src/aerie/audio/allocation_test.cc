// Counts what the reader allocates once it is warm. Replaces the global operators of this test
// program; the codec libraries use malloc and are not counted.
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <new>

#include <gtest/gtest.h>

#include "aerie/audio/audio_reader.h"
#include "aerie/base/testing/paths.h"

namespace {
std::atomic<bool> counting{false};
std::atomic<int> allocations{0};

void* counted_alloc(size_t size) {
  if (counting.load(std::memory_order_relaxed)) ++allocations;
  void* memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
}  // namespace

void* operator new(size_t size) {
  return counted_alloc(size);
}
void* operator new[](size_t size) {
  return counted_alloc(size);
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  if (counting.load(std::memory_order_relaxed)) ++allocations;
  return std::malloc(size == 0 ? 1 : size);
}
void* operator new[](size_t size, const std::nothrow_t&) noexcept {
  if (counting.load(std::memory_order_relaxed)) ++allocations;
  return std::malloc(size == 0 ? 1 : size);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, size_t) noexcept {
  std::free(memory);
}

namespace aerie::audio {
namespace {

TEST(AllocationTest, WarmReaderAllocatesNothing) {
  const std::string dir = test_data("/audio/");
  const std::string files[] = {dir + "pcm16.wav", dir + "f16.flac",    dir + "float.wav",
                               dir + "f24.flac",  dir + "sr48000.wav", dir + "pcm16_st.wav",
                               dir + "v.ogg"};
  std::ifstream in(files[1], std::ios::binary);
  const std::vector<uint8_t> flac{std::istreambuf_iterator<char>(in), {}};
  for (const bool int16 : {false, true}) {
    ReadOptions options;
    options.prefer_int16 = int16;
    options.channels = ChannelSelector::average();
    options.trim_silence = !int16;
    AudioReader reader(options);
    const auto round = [&] {
      bool ok = true;
      for (const std::string& file : files) {
        ok = ok && reader.read_file(file).ok();
        ok = ok && reader.read_file(file, {0.01, 0.02}).ok();
      }
      return ok && reader.read_memory(flac, "flac").ok();
    };
    ASSERT_TRUE(round());
    allocations = 0;
    counting = true;
    const bool ok = round();
    counting = false;
    EXPECT_TRUE(ok);
    EXPECT_EQ(allocations, 0);
  }
}

}  // namespace
}  // namespace aerie::audio
