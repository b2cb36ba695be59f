// Where every member of an archive lies. Built in one pass, kept in a small file, and checked
// against the archive (size, modification time, hash of its first and last 64 KiB) when loaded.
// Immutable after construction: any thread may read it. About 24 bytes and the name per member.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/tar/tar_format.h"

namespace aerie::tar {

// A place in a gzip stream from which inflating can start.
struct GzipPoint {
  uint64_t out_offset = 0;      // in the uncompressed archive
  uint64_t in_offset = 0;       // first whole byte of input
  uint8_t bits = 0;             // bits of the byte before in_offset that are still unused
  std::vector<uint8_t> window;  // up to 32 KiB of output before out_offset
};

// Which bytes an index was made from.
struct FileStamp {
  uint64_t size = 0;
  int64_t mtime_ns = 0;
  uint64_t head_tail_hash = 0;
  bool operator==(const FileStamp&) const = default;
};
Result<FileStamp> stamp_file(const std::string& path);

class TarIndex {
 public:
  struct Entry {
    uint64_t offset = 0;
    uint64_t size = 0;
    uint32_t name_offset = 0;
    uint32_t name_size = 0;
  };

  // Reads the whole archive once.
  static Result<TarIndex> build(const std::string& path, const TarOptions& options = {});
  // From the index file when it fits the archive, else build() and write the file. With an empty
  // `cache_dir` the file stands next to the archive (".<name>.aerie-index"). A cache that cannot be
  // written is not an error. `from_cache`, when given, says which it was.
  static Result<TarIndex> open(const std::string& path, const std::string& cache_dir = {},
                               const TarOptions& options = {}, bool* from_cache = nullptr);
  static std::string cache_path(const std::string& path, const std::string& cache_dir);

  size_t size() const { return entries_.size(); }
  const Entry& entry(size_t i) const { return entries_[i]; }
  std::string_view name(size_t i) const {
    return {names_.data() + entries_[i].name_offset, entries_[i].name_size};
  }
  std::optional<size_t> find(std::string_view name) const;  // linear

  Compression compression() const { return compression_; }
  uint64_t archive_bytes() const { return archive_bytes_; }  // uncompressed
  const std::vector<GzipPoint>& gzip_points() const { return points_; }
  const FileStamp& stamp() const { return stamp_; }

  std::string serialize() const;
  static Result<TarIndex> deserialize(std::string_view bytes);

 private:
  std::vector<Entry> entries_;
  std::string names_;
  Compression compression_ = Compression::kNone;
  uint64_t archive_bytes_ = 0;
  std::vector<GzipPoint> points_;
  FileStamp stamp_;
};

}  // namespace aerie::tar
