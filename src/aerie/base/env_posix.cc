// Env::real(): the seam over POSIX calls.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "aerie/base/env.h"
#include "aerie/base/mapping_guard.h"

namespace aerie {

namespace {

Status posix_error(const char* what, const std::string& path, int error_number) {
  Status status = errno_error(str_cat("cannot ", what, " '", path, "'"), error_number);
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
      return status.with_hint("free some space or choose another folder");
    case EACCES:
    case EPERM:
      return status.with_hint("check the permissions");
    case EROFS:
      return status.with_hint("the file system is mounted read-only; choose another folder");
    case EMFILE:
    case ENFILE:
      return status.with_hint("raise `ulimit -n`, or lower num_workers");
    default:
      return status;
  }
}

// Retries what a signal interrupted; a file system that says so for ever is believed in the end.
template <typename Call>
auto retry(Call call) {
  constexpr int kMaxTries = 100;
  decltype(call()) result;
  int tries = 0;
  do {
    result = call();
  } while (result == -1 && errno == EINTR && ++tries < kMaxTries);
  return result;
}

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

struct OpenedFile {
  Descriptor descriptor;
  uint64_t size;
};

Result<OpenedFile> open_regular(const std::string& path) {
  // O_NONBLOCK: opening a pipe must not wait for a writer; it has no effect on regular files.
  Descriptor fd(retry([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));
  if (fd.get() < 0) return posix_error("open", path, errno);
  struct ::stat info {};
  if (::fstat(fd.get(), &info) != 0) return posix_error("inspect", path, errno);
  if (S_ISDIR(info.st_mode)) return io_error(str_cat("'", path, "' is a folder, not a file"));
  if (!S_ISREG(info.st_mode)) return io_error(str_cat("'", path, "' is not a regular file"));
  return OpenedFile{std::move(fd), static_cast<uint64_t>(info.st_size)};
}

class PosixRandomAccessFile final : public RandomAccessFile {
 public:
  PosixRandomAccessFile(std::string path, OpenedFile file)
      : RandomAccessFile(std::move(path)), file_(std::move(file)) {}
  uint64_t size() const override { return file_.size; }

 protected:
  Result<size_t> read_some(uint64_t offset, void* out, size_t size) const override {
    if (offset > static_cast<uint64_t>(std::numeric_limits<off_t>::max()) - size) return size_t{0};
    const ssize_t got = retry(
        [&] { return ::pread(file_.descriptor.get(), out, size, static_cast<off_t>(offset)); });
    if (got < 0) return posix_error("read", path(), errno);
    return static_cast<size_t>(got);
  }

 private:
  OpenedFile file_;
};

class PosixWritableFile final : public WritableFile {
 public:
  PosixWritableFile(std::string path, Descriptor fd, uint64_t size)
      : path_(std::move(path)), fd_(fd.release()), size_(size) {
    buffer_.reserve(kBufferBytes);
  }
  ~PosixWritableFile() override { (void)close(); }

  Status append(std::string_view bytes) override {
    AERIE_RETURN_IF_ERROR(usable());
    if (buffer_.size() + bytes.size() > kBufferBytes) AERIE_RETURN_IF_ERROR(flush());
    if (bytes.size() >= kBufferBytes) {
      AERIE_RETURN_IF_ERROR(write_out(bytes));
    } else {
      buffer_.append(bytes);
    }
    size_ += bytes.size();
    return ok_status();
  }

  Status flush() override {
    AERIE_RETURN_IF_ERROR(usable());
    AERIE_RETURN_IF_ERROR(write_out(buffer_));
    buffer_.clear();
    return ok_status();
  }

  Status sync() override {
    AERIE_RETURN_IF_ERROR(flush());
    // After a failed fsync the kernel may have dropped the pages: the file cannot be trusted again.
    if (retry([&] { return ::fsync(fd_); }) != 0)
      return broken_ = posix_error("sync", path_, errno);
    return ok_status();
  }

  Status close() override {
    if (fd_ < 0) return ok_status();
    Status status = broken_.ok() ? flush() : broken_;
    // No retry: after EINTR Linux has closed the descriptor anyway.
    if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR && status.ok())
      status = posix_error("close", path_, errno);
    return status;
  }

  uint64_t size() const override { return size_; }

 private:
  static constexpr size_t kBufferBytes = 1 << 16;

  Status usable() const {
    if (fd_ < 0) return io_error(str_cat("'", path_, "' is closed already"));
    return broken_;
  }

  Status write_out(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t wrote = retry([&] { return ::write(fd_, bytes.data(), bytes.size()); });
      // Part of the data may be in the file: going on would put later bytes at the wrong place.
      if (wrote < 0) return broken_ = posix_error("write", path_, errno);
      bytes.remove_prefix(static_cast<size_t>(wrote));
    }
    return ok_status();
  }

  std::string path_;
  int fd_;
  uint64_t size_;
  std::string buffer_;
  Status broken_;
};

class PosixEnv final : public Env {
 public:
  Result<std::unique_ptr<RandomAccessFile>> open_random_access(const std::string& path) override {
    AERIE_ASSIGN_OR_RETURN(OpenedFile file, open_regular(path));
    return std::unique_ptr<RandomAccessFile>(
        std::make_unique<PosixRandomAccessFile>(path, std::move(file)));
  }

  Result<MappedFile> map_file(const std::string& path) override {
    AERIE_ASSIGN_OR_RETURN(const OpenedFile file, open_regular(path));
    if (file.size == 0) return MappedFile();
    const size_t size = static_cast<size_t>(file.size);
    void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.descriptor.get(), 0);
    if (data == MAP_FAILED) return posix_error("map", path, errno);
    add_guarded_mapping(data, size, path);
    std::shared_ptr<const void> owner(data, [size](const void* address) {
      remove_guarded_mapping(address);
      ::munmap(const_cast<void*>(address), size);
    });
    return MappedFile(data, size, std::move(owner));
  }

  Result<std::unique_ptr<WritableFile>> open_writable(const std::string& path,
                                                      WriteMode mode) override {
    // Logs that grow are the run's own files: a link in their place would let them grow anywhere.
    const int flags = mode == WriteMode::kTruncate ? O_TRUNC
                      : mode == WriteMode::kAppend ? O_APPEND | O_NOFOLLOW
                                                   : O_EXCL;
    Descriptor fd(retry([&] {
      return ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0666);  // umask applies
    }));
    if (fd.get() < 0 && errno == ELOOP && mode == WriteMode::kAppend)
      return io_error(str_cat("'", path, "' is a symbolic link; nothing is appended through it"))
          .with_hint("remove the link");
    if (fd.get() < 0) return posix_error("create", path, errno);
    struct ::stat info {};
    if (::fstat(fd.get(), &info) != 0) return posix_error("inspect", path, errno);
    return std::unique_ptr<WritableFile>(std::make_unique<PosixWritableFile>(
        path, std::move(fd), static_cast<uint64_t>(info.st_size)));
  }

  Result<FileStat> stat(const std::string& path) override {
    struct ::stat info {};
    if (::stat(path.c_str(), &info) != 0) return posix_error("find", path, errno);
    FileStat out;
    out.size = static_cast<uint64_t>(info.st_size);
    out.mtime_ns = info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec;
    out.is_regular = S_ISREG(info.st_mode);
    out.is_dir = S_ISDIR(info.st_mode);
    return out;
  }

  Result<std::vector<DirEntry>> list_dir(const std::string& path) override {
    const std::unique_ptr<DIR, int (*)(DIR*)> dir(open_directory(path), ::closedir);
    if (dir == nullptr) return posix_error("list", path, errno);
    std::vector<DirEntry> out;
    while (true) {
      errno = 0;
      const dirent* entry = ::readdir(dir.get());
      if (entry == nullptr) {
        if (errno != 0) return posix_error("list", path, errno);
        break;
      }
      const std::string_view name(entry->d_name);
      if (name == "." || name == "..") continue;
      DirEntry item{std::string(name), entry->d_type == DT_DIR, entry->d_type == DT_LNK};
      struct ::stat info {};
      if (entry->d_type == DT_UNKNOWN &&
          ::fstatat(::dirfd(dir.get()), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0) {
        item.is_dir = S_ISDIR(info.st_mode);
        item.is_symlink = S_ISLNK(info.st_mode);
      }
      out.push_back(std::move(item));
    }
    std::sort(out.begin(), out.end(),
              [](const DirEntry& a, const DirEntry& b) { return a.name < b.name; });
    return out;
  }

  Status create_dir(const std::string& path) override {
    if (::mkdir(path.c_str(), 0777) == 0) return ok_status();  // umask applies
    const int error_number = errno;
    if (error_number == EEXIST) {
      if (auto there = stat(path); there.ok() && there->is_dir) return ok_status();
    }
    return posix_error("create folder", path, error_number);
  }

  Status rename(const std::string& from, const std::string& to) override {
    if (::rename(from.c_str(), to.c_str()) == 0) return ok_status();
    const int error_number = errno;
    return posix_error("rename", from, error_number).with_context(str_cat("to '", to, "'"));
  }

  Status remove_file(const std::string& path) override {
    if (::unlink(path.c_str()) != 0) return posix_error("remove", path, errno);
    return ok_status();
  }

  Status remove_dir(const std::string& path) override {
    if (::rmdir(path.c_str()) != 0) return posix_error("remove folder", path, errno);
    return ok_status();
  }

  Status fsync_dir(const std::string& path) override {
    const Descriptor fd(
        retry([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
    if (fd.get() < 0) return posix_error("open folder", path, errno);
    // Some network file systems cannot sync a folder and say EINVAL: nothing more can be done
    // there.
    if (retry([&] { return ::fsync(fd.get()); }) != 0 && errno != EINVAL && errno != ENOTSUP)
      return posix_error("sync folder", path, errno);
    return ok_status();
  }

  Result<uint64_t> free_space(const std::string& path) override {
    struct statvfs info {};
    if (retry([&] { return ::statvfs(path.c_str(), &info); }) != 0)
      return posix_error("inspect", path, errno);
    return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
  }

 private:
  static DIR* open_directory(const std::string& path) {
    const int fd = retry([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
    if (fd < 0) return nullptr;
    DIR* dir = ::fdopendir(fd);
    if (dir == nullptr) ::close(fd);
    return dir;
  }
};

}  // namespace

Env& Env::real() {
  static Env* const env = new PosixEnv;  // never destroyed: threads may still write at exit
  return *env;
}

}  // namespace aerie
