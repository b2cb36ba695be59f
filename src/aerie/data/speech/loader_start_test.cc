// What a loader does at the start of a run, when others want the machine as well.
#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include <gtest/gtest.h>

#include "aerie/data/speech/loader_test_util.h"
#include "aerie/data/speech/test_corpus.h"

namespace aerie::data {
namespace {

// Hands out memory, and keeps whoever asks for the second block waiting until it is told to go on.
class SlowAllocator final : public HostAllocator {
 public:
  void* allocate(size_t bytes) override {
    if (++blocks == 2) go_on.get_future().wait();
    return HostAllocator::pageable().allocate(bytes);
  }
  void settle(void*, size_t) override { ++settled; }
  void deallocate(void* data, size_t bytes) override {
    HostAllocator::pageable().deallocate(data, bytes);
  }
  const char* kind() const override { return "slow"; }
  std::atomic<int> blocks{0}, settled{0};
  std::promise<void> go_on;
};

// Samples read once nothing more is read by itself. On a busy machine a reader may rest for long
// before it has read what it is to read: `at_least` are waited for.
uint64_t items_at_rest(const Loader& loader, uint64_t at_least) {
  constexpr int kRounds = 6000;  // a minute
  uint64_t seen = 0;
  for (int round = 0, quiet_rounds = 0; quiet_rounds < 10 && round < kRounds; ++round) {
    const uint64_t now = loader.stats().read.items;
    quiet_rounds = now == seen && now >= at_least ? quiet_rounds + 1 : 0;
    seen = now;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return seen;
}

TEST(LoaderTest, TheFirstStepsBatchesComeBeforeAnyOther) {
  TestCorpus corpus(60);
  config::DatasetConfig config = corpus.config(8);
  config.num_workers = 4;
  const std::vector<uint64_t> expected = hashes(*make(config, corpus.aerie()), 14);
  // A consumer of one batch a step, and one of three.
  for (const int keeps : {2, 4}) {
    SpeechLoaderOptions options = quiet();
    options.consumer_batches = keeps;
    auto loader = make(config, corpus.aerie(), options);
    const uint64_t first_step = 8u * static_cast<uint64_t>(keeps - 1);
    EXPECT_EQ(items_at_rest(*loader, first_step), first_step);
    const Batch* first = *loader->next();
    ASSERT_NE(first, nullptr);
    EXPECT_EQ(first->content_hash(), expected[0]);
    EXPECT_GT(items_at_rest(*loader, first_step + 9), first_step + 8);
    loader->release(first);
    EXPECT_EQ(hashes(*loader, 13), std::vector<uint64_t>(expected.begin() + 1, expected.end()));
  }
}

TEST(LoaderTest, NothingIsReadAheadBeforeItIsWanted) {
  TestCorpus corpus(40);
  config::DatasetConfig config = corpus.config(8);
  config.num_workers = 2;
  SpeechLoaderOptions options = quiet();
  options.read_ahead = false;
  const std::vector<uint64_t> expected = hashes(*make(config, corpus.aerie()), 12);
  auto loader = make(config, corpus.aerie(), options);
  ASSERT_TRUE(loader->start_epoch(0).ok());
  EXPECT_EQ(items_at_rest(*loader, 0), 0u);
  loader->read_ahead();
  EXPECT_EQ(items_at_rest(*loader, 8), 8u);
  EXPECT_EQ(hashes(*loader, 12), expected);
  // Asking for a batch is enough.
  EXPECT_EQ(hashes(*make(config, corpus.aerie(), options), 12), expected);
  config.num_workers = 0;
  EXPECT_EQ(hashes(*make(config, corpus.aerie(), options), 12), expected);
}

TEST(LoaderTest, SlowMemoryForALaterBatchHoldsUpNobody) {
  TestCorpus corpus(60);
  config::DatasetConfig config = corpus.config(8);
  config.num_workers = 3;
  const std::vector<uint64_t> expected = hashes(*make(config, corpus.aerie()), 14);
  SlowAllocator allocator;
  SpeechLoaderOptions options = quiet();
  options.allocator = &allocator;
  options.consumer_batches = 3;  // two batches before anything is taken
  auto loader = make(config, corpus.aerie(), options);
  // With the lock held while the second block is waited for this would never return.
  auto first = std::async(std::launch::async, [&] { return *loader->next(); });
  const bool came = first.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  EXPECT_TRUE(came) << "the first batch waited for the memory of the second";
  EXPECT_TRUE(!came || allocator.settled == 1);
  allocator.go_on.set_value();
  const Batch* batch = first.get();
  EXPECT_EQ(batch->content_hash(), expected[0]);
  loader->release(batch);
  EXPECT_EQ(hashes(*loader, 13), std::vector<uint64_t>(expected.begin() + 1, expected.end()));
  // Once a block.
  EXPECT_LE(allocator.settled, allocator.blocks);
}

}  // namespace
}  // namespace aerie::data
