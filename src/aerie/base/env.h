// Env: the seam to the file system. Everything of aerie that reads or writes files takes an Env, so
// that tests can swap in one that fails, fills up or loses power (fault_env.h, mem_env.h).
//
// Threads: an Env may be used from any number of threads at once. Each class below says for itself.
// Ownership: opened files are owned by the caller and may outlive nothing but the Env itself.
// Durability: data is on disk after WritableFile::sync(); a new name or a rename is on disk after
// fsync_dir() of its folder. atomic_replace() does both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/status.h"

namespace aerie {

struct FileStat {
  uint64_t size = 0;
  int64_t mtime_ns = 0;  // since 1970
  bool is_regular = false;
  bool is_dir = false;
};

struct DirEntry {
  std::string name;
  bool is_dir = false;  // a link to a folder is not a folder here
  bool is_symlink = false;
};

// A file read by position. Any number of threads may read at once.
class RandomAccessFile {
 public:
  virtual ~RandomAccessFile() = default;
  // Reads up to `size` bytes at `offset`; fewer only where the file ends (0 past the end).
  Result<size_t> read_at(uint64_t offset, void* out, size_t size) const;
  // Exactly `size` bytes, else a data error that names the file and the missing range.
  Status read_exact_at(uint64_t offset, void* out, size_t size) const;
  virtual uint64_t size() const = 0;  // when it was opened
  const std::string& path() const { return path_; }

 protected:
  explicit RandomAccessFile(std::string path) : path_(std::move(path)) {}
  // As pread: may return fewer bytes than asked for, 0 at the end of the file.
  virtual Result<size_t> read_some(uint64_t offset, void* out, size_t size) const = 0;

 private:
  std::string path_;
};

// A whole file mapped read-only. Copies share the mapping, which ends with the last copy.
// If another process truncates the file meanwhile, touching the lost pages kills the process
// (SIGBUS): map only files that are replaced by rename, never cut short in place.
class MappedFile {
 public:
  enum class Advice { kSequential, kRandom, kWillNeed };
  MappedFile() = default;
  MappedFile(const void* data, size_t size, std::shared_ptr<const void> owner)
      : data_(static_cast<const std::byte*>(data)), size_(size), owner_(std::move(owner)) {}
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  // Tells the kernel how the pages will be used; errors do not matter.
  void advise(Advice advice) const;

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::shared_ptr<const void> owner_;
};

enum class WriteMode {
  kTruncate,   // create, or cut an existing file to nothing
  kAppend,     // create, or continue at the end
  kCreateNew,  // fail when the name exists
};

// A file written from front to back, buffered. One thread at a time.
class WritableFile {
 public:
  // Closes without reporting errors; call close() or sync() to learn about them.
  virtual ~WritableFile() = default;
  virtual Status append(std::string_view bytes) = 0;
  Status append(const void* bytes, size_t size) {
    return append(std::string_view(static_cast<const char*>(bytes), size));
  }
  virtual Status flush() = 0;  // buffered bytes to the operating system
  virtual Status sync() = 0;   // flush, then fsync
  virtual Status close() = 0;  // flush and close; later calls fail, a second close is ok
  // Bytes in the file including what was there when it was opened for appending.
  virtual uint64_t size() const = 0;
};

class Env {
 public:
  virtual ~Env() = default;
  static Env& real();  // the operating system's file system; lives for ever

  // Primitives. Opening for reading refuses what is not a regular file (folders, pipes, devices).
  virtual Result<std::unique_ptr<RandomAccessFile>> open_random_access(const std::string& path) = 0;
  virtual Result<MappedFile> map_file(const std::string& path) = 0;
  virtual Result<std::unique_ptr<WritableFile>> open_writable(
      const std::string& path, WriteMode mode = WriteMode::kTruncate) = 0;
  virtual Result<FileStat> stat(const std::string& path) = 0;                   // follows links
  virtual Result<std::vector<DirEntry>> list_dir(const std::string& path) = 0;  // sorted by name
  virtual Status create_dir(const std::string& path) = 0;  // parent must exist; ok when it is there
  virtual Status rename(const std::string& from, const std::string& to) = 0;  // replaces a file
  virtual Status remove_file(const std::string& path) = 0;
  virtual Status remove_dir(const std::string& path) = 0;  // must be empty
  virtual Status fsync_dir(const std::string& path) = 0;
  virtual Result<uint64_t> free_space(const std::string& path) = 0;  // bytes a user may still write

  // Composed of the primitives.
  bool exists(const std::string& path);
  // The whole file; a data error when it holds more than max_size bytes.
  Result<std::string> read_file(const std::string& path,
                                uint64_t max_size = std::numeric_limits<uint64_t>::max());
  Result<std::string> read_range(const std::string& path, uint64_t offset, size_t size);
  Status write_file(const std::string& path, std::string_view bytes);  // not atomic, not synced
  // After success the name holds exactly `bytes`, also after power loss; after failure or power
  // loss in between it holds the old content. Writes a temporary name in the same folder, syncs it,
  // renames, syncs the folder.
  Status atomic_replace(const std::string& path, std::string_view bytes);
  Status create_dirs(const std::string& path);  // with parents
  // A file or a folder with all below it; links are removed, not followed. Absent is ok.
  Status remove_tree(const std::string& path);
  Status copy_file(const std::string& from, const std::string& to);  // not atomic, not synced
};

}  // namespace aerie
