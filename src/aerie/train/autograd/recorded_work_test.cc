#include "aerie/train/autograd/recorded_work.h"

#include <stdexcept>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sum.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

namespace aerie::train {
namespace {

// On the host: a capture is a run, and a replay another one.
class HostGraph final : public TorchGraph {
 public:
  void capture(std::function<void()> work) override {
    work();
    work_ = std::move(work);
  }
  void replay() override { work_(); }

 private:
  std::function<void()> work_;
};

class RecordedWorkTest : public testing::Test {
 protected:
  // Whether a graph did the work; the result is right either way.
  bool run(int64_t size) {
    const RecordedWork::Tensors inputs{at::full({size}, 3.0)};
    std::vector<uint8_t> flags{1, 0};
    const auto work = [this](const RecordedWork::Tensors& in) {
      if (fail_) fail_();
      return RecordedWork::Tensors{in[0] * 2.0};
    };
    RecordedWork::Graph* graph = recorded_.find(inputs, 0, work, flags);
    EXPECT_EQ(flags, (std::vector<uint8_t>{1, 0}));
    if (graph == nullptr) return false;
    const RecordedWork::Tensors out = graph->replay(inputs, flags);
    EXPECT_EQ(out[0].sum().item<double>(), 6.0 * static_cast<double>(size));
    return true;
  }

  std::function<void()> fail_;
  RecordedWork recorded_{at::kCPU, [](at::Device) -> Result<std::unique_ptr<TorchGraph>> {
                           return std::unique_ptr<TorchGraph>(std::make_unique<HostGraph>());
                         }};
};

TEST_F(RecordedWorkTest, ShapesThatComeAgainAreCaptured) {
  EXPECT_FALSE(run(4));
  EXPECT_FALSE(run(5));
  EXPECT_FALSE(run(4));
  EXPECT_TRUE(run(4));
  EXPECT_FALSE(run(5));
  EXPECT_TRUE(run(4));
  EXPECT_TRUE(run(5));
  EXPECT_EQ(recorded_.num_graphs(), 2);
  recorded_.clear();
  EXPECT_FALSE(run(4));
}

TEST_F(RecordedWorkTest, MemoryThatIsShortForAWhileIsNotShortForEver) {
  int asked = 0;
  fail_ = [&] {
    ++asked;
    C10_THROW_ERROR(OutOfMemoryError, "CUDA out of memory");
  };
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(run(4));
  EXPECT_EQ(asked, 1) << "every step pays for a capture that fails";
  fail_ = nullptr;
  int runs = 0;
  while (!run(4)) ASSERT_LT(++runs, 100);
  EXPECT_EQ(recorded_.num_graphs(), 1);
}

TEST_F(RecordedWorkTest, WhatCannotBeCapturedIsNotTriedAgain) {
  int asked = 0;
  fail_ = [&] {
    ++asked;
    throw std::runtime_error("operation not permitted when stream is capturing");
  };
  for (int i = 0; i < 300; ++i) EXPECT_FALSE(run(4));
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(run(5));
  EXPECT_EQ(asked, 1);
}

}  // namespace
}  // namespace aerie::train
