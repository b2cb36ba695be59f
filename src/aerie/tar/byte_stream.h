// Bytes of an archive from front to back, unpacked if need be. Internal to the folder.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/tar/tar_format.h"
#include "aerie/tar/tar_index.h"

namespace aerie::tar {

// The archive file itself: random access with a small read-ahead. One thread.
class RawInput {
 public:
  static Result<std::unique_ptr<RawInput>> open(const std::string& path, Env* env);
  explicit RawInput(std::span<const uint8_t> bytes) : memory_(bytes), size_(bytes.size()) {}

  uint64_t size() const { return size_; }
  uint64_t position() const { return position_; }
  void seek(uint64_t position) { position_ = position; }
  // Up to `n` bytes; 0 at the end.
  Result<size_t> read(uint8_t* out, size_t n);
  // A view of at least one byte at the position (more, if at hand), which moves behind it; empty at
  // the end. Valid until the next call.
  Result<std::span<const uint8_t>> next_piece();

 private:
  RawInput() = default;
  Status fill();

  std::unique_ptr<RandomAccessFile> file_;
  std::span<const uint8_t> memory_;
  uint64_t size_ = 0;
  uint64_t position_ = 0;
  std::vector<uint8_t> buffer_;
  uint64_t buffer_begin_ = 0;
  size_t buffer_size_ = 0;
};

// The uncompressed archive.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Up to `n` bytes, less only at the end of the stream.
  virtual Result<size_t> read(uint8_t* out, size_t n) = 0;
  // Passes over up to `n` bytes; how many there were.
  virtual Result<uint64_t> skip(uint64_t n);
  virtual uint64_t position() const = 0;
  // Bytes of the uncompressed archive if known without unpacking, else UINT64_MAX.
  virtual uint64_t length() const { return UINT64_MAX; }
};

// Opens `input` from its beginning. For gzip, `points` (if given) receives access points.
Result<std::unique_ptr<ByteStream>> open_byte_stream(std::unique_ptr<RawInput> input,
                                                     const TarOptions& options,
                                                     Compression* compression,
                                                     std::vector<GzipPoint>* points = nullptr);
// Continues a gzip stream at an access point.
Result<std::unique_ptr<ByteStream>> open_gzip_at(std::unique_ptr<RawInput> input,
                                                 const TarOptions& options, const GzipPoint& point);

// Distance of access points in the uncompressed archive.
constexpr uint64_t kGzipPointSpan = uint64_t{4} << 20;

}  // namespace aerie::tar
