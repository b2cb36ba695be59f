#include "aerie/train/graph/torch_status.h"

#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace aerie::train {
namespace {

TEST(TorchStatusTest, AFailedStepThatIsUndoneStaysWhatItWas) {
  bool undone = false;
  const Status status = roll_back_after(out_of_memory("no memory"), [&] { undone = true; });
  EXPECT_TRUE(undone);
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(status.message(), "no memory");
}

// A CUDA error that stays fails every later call; it left add() of both engines as an exception.
TEST(TorchStatusTest, ALostDeviceIsToldByItsFirstErrorAndNotTriedAgain) {
  const Status status =
      roll_back_after(out_of_memory("the first failure").with_context("forward"),
                      [] { throw std::runtime_error("CUDA error: the second failure"); });
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_NE(status.message().find("the first failure; the step could not be undone"),
            std::string::npos);
  EXPECT_NE(status.message().find("the second failure"), std::string::npos);
  EXPECT_EQ(status.context(), std::vector<std::string>{"forward"});
  EXPECT_FALSE(status.hint().empty());
}

}  // namespace
}  // namespace aerie::train
