#include "aerie/base/file_lock.h"

#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <sys/file.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "aerie/base/strings.h"

namespace aerie {

Result<FileLock> FileLock::acquire(const std::string& path, double patience_s) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd < 0) return errno_error(str_cat("cannot open ", path), errno);
  FileLock lock(fd);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(patience_s);
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return errno_error(str_cat("cannot lock ", path), errno);
    if (std::chrono::steady_clock::now() >= end)
      return unavailable(str_cat(path, " is locked by another process"));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return lock;
}

FileLock::FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace aerie
