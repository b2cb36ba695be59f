// An advisory lock on a file, for work that only one process should do at a time. It ends with the
// object or the process, however that ends; the file stays.
#pragma once

#include <string>

#include "aerie/base/status.h"

namespace aerie {

class FileLock final {
 public:
  // Makes the file if need be (its folder must be there) and waits up to `patience_s` for another
  // holder; kUnavailable when that was not enough.
  static Result<FileLock> acquire(const std::string& path, double patience_s);
  ~FileLock();
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_ = -1;
};

}  // namespace aerie
