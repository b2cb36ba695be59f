// Reads the directory and entries of a ZIP or ZIP64 archive, such as torch.save and numpy.savez
// write. Made for hostile input: the directory must agree with the local headers, entries must lie
// within the file and may not share bytes, names may not repeat or lead outside, and every byte
// handed out has passed its CRC-32 (unless the whole archive was written without checksums, an
// option of torch.save).
//
// Threads: const methods from any number of threads. Memory: about 100 bytes per entry.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "aerie/archive/byte_source.h"

namespace aerie::archive {

struct ZipEntry {
  std::string name;
  uint64_t header_offset = 0;  // of the local header
  uint64_t data_offset = 0;
  uint64_t stored_size = 0;  // in the file
  uint64_t size = 0;         // after inflating
  uint32_t crc32 = 0;
  bool deflated = false;
};

class ZipReader {
 public:
  static constexpr uint64_t kMaxEntries = 200000;
  static constexpr uint64_t kMaxDirectoryBytes = uint64_t{32} << 20;

  static Result<ZipReader> open(SourcePtr source);
  ZipReader(ZipReader&&) = default;
  ZipReader& operator=(ZipReader&&) = default;

  const std::vector<ZipEntry>& entries() const { return entries_; }
  const ZipEntry* find(std::string_view name) const;  // nullptr: none
  // False when the writer recorded no CRCs at all.
  bool has_checksums() const { return has_checksums_; }
  const ByteSource& source() const { return *source_; }

  // The whole entry, checked; an error when it holds more than max_bytes. Deflated entries are
  // inflated, up to inflate_limit().
  Result<std::string> read(const ZipEntry& entry, uint64_t max_bytes) const;
  // A stored entry as a source of its own. Its CRC is checked the first time anything is read from
  // it, so opening stays cheap. Deflated entries are refused.
  Result<SourcePtr> open_entry(const ZipEntry& entry) const;

 private:
  explicit ZipReader(SourcePtr source) : source_(std::move(source)) {}
  Status parse();
  Status check_local_header(ZipEntry& entry, uint16_t method, uint64_t directory_offset) const;
  Status check_overlaps() const;
  Result<std::string> inflate_entry(const ZipEntry& entry) const;
  Status error(std::string message) const;

  SourcePtr source_;
  std::vector<ZipEntry> entries_;
  std::unordered_map<std::string_view, size_t> by_name_;  // views into entries_
  bool has_checksums_ = true;
};

}  // namespace aerie::archive
