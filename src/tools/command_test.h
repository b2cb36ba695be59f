// Commands run as a user runs them, for tests.
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "command.h"

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

namespace aerie::tools {

struct Outcome {
  Status status;
  std::string out, err;
  int exit_code() const { return exit_code_for(status.code()); }
};

inline Outcome run(Status (*command)(const std::vector<std::string>&),
                   const std::vector<std::string>& args) {
  Outcome outcome;
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  outcome.status = command(args);
  outcome.out = ::testing::internal::GetCapturedStdout();
  outcome.err = ::testing::internal::GetCapturedStderr();
  return outcome;
}

}  // namespace aerie::tools
