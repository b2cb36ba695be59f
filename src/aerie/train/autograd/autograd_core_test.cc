#include "aerie/train/autograd/autograd_core.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

namespace aerie::train {
namespace {

// Timed algorithms are other ones in the next process: a resumed run would end with other bits.
TEST(ProcessSwitchesTest, DeterministicRunsTakeNoTimedAlgorithms) {
  config::TrainerConfig trainer;
  trainer.benchmark = true;
  const auto timed = [&](config::Deterministic mode) {
    trainer.deterministic = mode;
    set_process_switches(trainer, config::Tf32::kConv, at::kCPU);
    return at::globalContext().benchmarkCuDNN();
  };
  EXPECT_TRUE(timed(config::Deterministic::kNo));
  EXPECT_FALSE(timed(config::Deterministic::kWarn));
  EXPECT_FALSE(timed(config::Deterministic::kYes));
  EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
  EXPECT_TRUE(timed(config::Deterministic::kNo));
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
}

}  // namespace
}  // namespace aerie::train
