#include <cstring>
#include <deque>
#include <string>

#include <gtest/gtest.h>

#include "aerie/kernels/kernel_table.h"
#include "aerie/train/graph/result_ring.h"
#include "aerie/train/graph/upload_ring.h"

namespace aerie::train {
namespace {

// A stream that is late: copies run when somebody waits for an event behind them.
class LateStream final : public device::Stream {
 public:
  const kernels::KernelTable& kernels() const override { return kernels::kReferenceKernels; }
  void* handle() const override { return nullptr; }
  Status copy(void* to, const void* from, size_t bytes) override {
    copies_.push_back([=] { std::memcpy(to, from, bytes); });
    return ok_status();
  }
  Result<std::unique_ptr<device::Event>> make_event() override {
    return std::unique_ptr<device::Event>(std::make_unique<LateEvent>(*this));
  }
  Status wait_for(device::Event&) override { return ok_status(); }
  Result<std::unique_ptr<device::Graph>> capture(std::function<int(void*)>) override {
    return unsupported("no graphs");
  }
  Status synchronize() override {
    run(queued());
    return ok_status();
  }
  Status status_of(int, const char*) const override { return ok_status(); }

  size_t queued() const { return done_ + copies_.size(); }
  void run(size_t until) {
    for (; done_ < until; ++done_, copies_.pop_front()) copies_.front()();
  }
  int waits = 0;  // that had to

 private:
  class LateEvent final : public device::Event {
   public:
    explicit LateEvent(LateStream& stream) : stream_(stream) {}
    Status record() override {
      at_ = stream_.queued();
      return ok_status();
    }
    bool passed() override { return at_ <= stream_.done_; }
    Status wait() override {
      stream_.waits += passed() ? 0 : 1;
      stream_.run(at_);
      return ok_status();
    }

   private:
    LateStream& stream_;
    size_t at_ = 0;
  };

  std::deque<std::function<void()>> copies_;
  size_t done_ = 0;
};

MakeHostMemory counted(int& blocks) {
  return [&blocks](size_t bytes) {
    ++blocks;
    return std::shared_ptr<uint8_t>(new uint8_t[bytes], [](uint8_t* block) { delete[] block; });
  };
}

TEST(UploadRingTest, ValuesMayChangeAtOnceAndArriveInOrder) {
  LateStream stream;
  int blocks = 0;
  auto ring = UploadRing::create(stream, counted(blocks));
  ASSERT_TRUE(ring.ok());
  constexpr int kMany = 20;
  int device[kMany] = {};
  for (int i = 0; i < kMany; ++i) {
    int value = i + 100;
    ASSERT_TRUE((*ring)->upload(device + i, &value, sizeof(value)).ok());
    value = -1;
  }
  ASSERT_TRUE(stream.synchronize().ok());
  for (int i = 0; i < kMany; ++i) EXPECT_EQ(device[i], i + 100);
  EXPECT_EQ(blocks, static_cast<int>(UploadRing::kSlots));
  EXPECT_GT(stream.waits, 0);  // for a block that was still to be read
}

TEST(UploadRingTest, BlocksGrowWithWhatTheyHold) {
  LateStream stream;
  int blocks = 0;
  auto ring = UploadRing::create(stream, counted(blocks));
  ASSERT_TRUE(ring.ok());
  const std::string text(1000, 'x');
  std::string out(1000, ' ');
  for (size_t i = 0; i < 3 * UploadRing::kSlots; ++i)
    ASSERT_TRUE((*ring)->upload(out.data(), text.data(), i < UploadRing::kSlots ? 10 : 1000).ok());
  ASSERT_TRUE(stream.synchronize().ok());
  EXPECT_EQ(out, text);
  EXPECT_EQ(blocks, 2 * static_cast<int>(UploadRing::kSlots));
}

TEST(ResultRingTest, StepsComeInOrderWithTheirResults) {
  LateStream stream;
  int blocks = 0;
  auto made = ResultRing<std::string>::create(stream, counted(blocks), sizeof(int));
  ASSERT_TRUE(made.ok());
  ResultRing<std::string>& ring = **made;
  int device = 0;
  int next = 0;
  for (int step = 0; step < 10; ++step) {
    if (ring.full()) {
      const auto taken = ring.take();
      ASSERT_TRUE(taken.ok());
      EXPECT_EQ(taken->pending, "step " + std::to_string(next));
      int value = 0;
      std::memcpy(&value, taken->results, sizeof(value));
      EXPECT_EQ(value, next++);
    }
    // The next step writes the same memory: it must not overtake the copy.
    ASSERT_TRUE(stream.synchronize().ok());
    device = step;
    ASSERT_TRUE(ring.push("step " + std::to_string(step), &device).ok());
    EXPECT_EQ(ring.ready(), ring.size() > 1);
  }
  EXPECT_EQ(ring.size(), ResultRing<std::string>::kSlots);
  EXPECT_EQ(next, 6);
  while (!ring.empty()) {
    ASSERT_TRUE(ring.take().ok());
    ++next;
  }
  EXPECT_EQ(next, 10);
}

TEST(ResultRingTest, ReadingLeavesStepsUnderWayAlone) {
  LateStream stream;
  int blocks = 0;
  auto made = ResultRing<int>::create(stream, counted(blocks), sizeof(int));
  ASSERT_TRUE(made.ok());
  ResultRing<int>& ring = **made;
  const int first = 11, second = 22, other = 33;
  ASSERT_TRUE(ring.push(1, &first).ok());
  ASSERT_TRUE(ring.push(2, &second).ok());
  const auto read = ring.read(&other, sizeof(other));
  ASSERT_TRUE(read.ok());
  int value = 0;
  std::memcpy(&value, *read, sizeof(value));
  EXPECT_EQ(value, 33);
  for (const int want : {11, 22}) {
    const auto taken = ring.take();
    ASSERT_TRUE(taken.ok());
    std::memcpy(&value, taken->results, sizeof(value));
    EXPECT_EQ(value, want);
  }
}

}  // namespace
}  // namespace aerie::train
