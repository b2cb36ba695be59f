// A slow disk for any program: LD_PRELOAD this, and reading from a recording (.flac, .wav) or a
// tar file takes SLOW_READ_MS milliseconds a call on top of what it takes, bringing a file of a
// folder `checkpoints` to the disk SLOW_SYNC_MS.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dlfcn.h>
#include <unistd.h>

namespace {

using Pread = ssize_t (*)(int, void*, size_t, off_t);
using Fsync = int (*)(int);

struct Path {
  char text[4096] = "";

  explicit Path(int fd) {
    char link[64];
    std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t size = ::readlink(link, text, sizeof text - 1);
    text[size > 0 ? size : 0] = '\0';
  }
  bool ends_with(const char* end) const {
    const size_t size = std::strlen(text), tail = std::strlen(end);
    return size >= tail && std::strcmp(text + size - tail, end) == 0;
  }
};

double milliseconds(const char* variable) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? 0.0 : std::atof(text);
}

void sleep_ms(double ms) {
  timespec left{static_cast<time_t>(ms / 1e3), static_cast<long>(ms * 1e6) % 1000000000L};
  while (::nanosleep(&left, &left) != 0) {
  }
}

ssize_t slow_pread(const char* name, int fd, void* out, size_t size, off_t offset) {
  static const double ms = milliseconds("SLOW_READ_MS");
  if (ms > 0.0) {
    const Path path(fd);
    if (path.ends_with(".flac") || path.ends_with(".wav") || path.ends_with(".tar")) sleep_ms(ms);
  }
  return reinterpret_cast<Pread>(::dlsym(RTLD_NEXT, name))(fd, out, size, offset);
}

int slow_sync(const char* name, int fd) {
  static const double ms = milliseconds("SLOW_SYNC_MS");
  if (ms > 0.0 && std::strstr(Path(fd).text, "/checkpoints/") != nullptr) sleep_ms(ms);
  return reinterpret_cast<Fsync>(::dlsym(RTLD_NEXT, name))(fd);
}

}  // namespace

extern "C" ssize_t pread(int fd, void* out, size_t size, off_t offset) {
  return slow_pread("pread", fd, out, size, offset);
}
extern "C" ssize_t pread64(int fd, void* out, size_t size, off_t offset) {
  return slow_pread("pread64", fd, out, size, offset);
}
extern "C" int fsync(int fd) {
  return slow_sync("fsync", fd);
}
extern "C" int fdatasync(int fd) {
  return slow_sync("fdatasync", fd);
}
