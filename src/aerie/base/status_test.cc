#include "aerie/base/status.h"

#include <cerrno>

#include <gtest/gtest.h>

namespace aerie {
namespace {

Result<int> half(int value) {
  if (value % 2 != 0) return data_error(str_cat(value, " is odd")).with_hint("give an even number");
  return value / 2;
}

Result<int> quarter(int value) {
  AERIE_ASSIGN_OR_RETURN(const int once, half(value));
  auto twice = half(once);
  if (!twice.ok()) return twice.status().with_context(str_cat("half of ", value));
  return twice;
}

TEST(StatusTest, CarriesMessageContextAndHint) {
  EXPECT_EQ(quarter(8).value(), 2);
  const Status status = quarter(6).status().with_context("input.txt:3");
  EXPECT_EQ(status.code(), StatusCode::kDataError);
  EXPECT_EQ(status.to_string(), "input.txt:3: half of 6: 3 is odd (give an even number)");
}

TEST(StatusTest, KeepsTheInnermostHint) {
  const Status status = half(3).status().with_hint("something vaguer");
  EXPECT_EQ(status.hint(), "give an even number");
}

TEST(StatusTest, MapsCodesToExitCodes) {
  EXPECT_EQ(exit_code_for(StatusCode::kOk), 0);
  EXPECT_EQ(exit_code_for(StatusCode::kInvalidArgument), 2);
  EXPECT_EQ(exit_code_for(StatusCode::kDataError), 3);
  EXPECT_EQ(exit_code_for(StatusCode::kIoError), 1);
  EXPECT_EQ(errno_error("open", ENOENT).code(), StatusCode::kNotFound);
  EXPECT_EQ(errno_error("write", ENOSPC).code(), StatusCode::kIoError);
}

TEST(StatusTest, MisuseThrowsInternalError) {
  Result<int> failed = half(1);
  EXPECT_THROW((void)failed.value(), InternalError);
  EXPECT_THROW((void)Result<int>(Status()), InternalError);
}

TEST(StringsTest, FindsTheNearestName) {
  const std::vector<std::string> names{"max_steps", "max_epochs", "devices"};
  EXPECT_EQ(nearest_name("max_step", names), "max_steps");
  EXPECT_EQ(nearest_name("maxsteps", names), "max_steps");
  EXPECT_EQ(nearest_name("zzz", names), "");
  EXPECT_EQ(edit_distance("modle", "model"), 1u);
}

TEST(StringsTest, SplitsJoinsAndTrims) {
  EXPECT_EQ(split("a,,b", ','), (std::vector<std::string>{"a", "", "b"}));
  EXPECT_EQ(join({"a", "b"}, ", "), "a, b");
  EXPECT_EQ(trim("  x \n"), "x");
  EXPECT_EQ(str_cat("a", 1, ' ', 0.1, true), "a1 0.1true");
}

}  // namespace
}  // namespace aerie
