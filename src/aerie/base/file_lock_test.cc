#include "aerie/base/file_lock.h"

#include <optional>

#include <gtest/gtest.h>

#include "aerie/base/temp_dir.h"

namespace aerie {
namespace {

TEST(FileLockTest, HasOneHolderAtATime) {
  TempDir dir;
  const std::string path = dir.file("x.lock");
  auto first = FileLock::acquire(path, 0.0);
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  EXPECT_EQ(FileLock::acquire(path, 0.0).status().code(), StatusCode::kUnavailable);
  std::optional<FileLock> moved = std::move(first).value();
  EXPECT_EQ(FileLock::acquire(path, 0.05).status().code(), StatusCode::kUnavailable);
  moved.reset();
  EXPECT_TRUE(FileLock::acquire(path, 0.0).ok());
}

TEST(FileLockTest, FolderMustBeThere) {
  TempDir dir;
  EXPECT_FALSE(FileLock::acquire(dir.file("none/x.lock"), 0.0).ok());
}

}  // namespace
}  // namespace aerie
