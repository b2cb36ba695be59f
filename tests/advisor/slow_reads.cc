// A slow disk for any program: LD_PRELOAD this, and reading a recording (.flac, .wav) takes
// SLOW_READ_MS milliseconds a call on top of what it takes.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dlfcn.h>
#include <unistd.h>

namespace {

using Pread = ssize_t (*)(int, void*, size_t, off_t);

bool is_recording(int fd) {
  char link[64], path[4096];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t size = ::readlink(link, path, sizeof path - 1);
  if (size < 5) return false;
  path[size] = '\0';
  return std::strcmp(path + size - 5, ".flac") == 0 || std::strcmp(path + size - 4, ".wav") == 0;
}

ssize_t slow_pread(const char* name, int fd, void* out, size_t size, off_t offset) {
  static const char* const text = std::getenv("SLOW_READ_MS");
  static const double ms = text == nullptr ? 0.0 : std::atof(text);
  if (ms > 0.0 && is_recording(fd)) {
    timespec left{static_cast<time_t>(ms / 1e3), static_cast<long>(ms * 1e6) % 1000000000L};
    while (::nanosleep(&left, &left) != 0) {
    }
  }
  return reinterpret_cast<Pread>(::dlsym(RTLD_NEXT, name))(fd, out, size, offset);
}

}  // namespace

extern "C" ssize_t pread(int fd, void* out, size_t size, off_t offset) {
  return slow_pread("pread", fd, out, size, offset);
}
extern "C" ssize_t pread64(int fd, void* out, size_t size, off_t offset) {
  return slow_pread("pread64", fd, out, size, offset);
}
