// Writes tar archives that are the same bytes for the same input: ustar, with a PAX header for
// names and sizes ustar cannot hold; owner 0, fixed times and modes.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>

#include "aerie/base/status.h"

namespace aerie::tar {

struct TarWriterOptions {
  uint32_t mode = 0644;
  int64_t mtime_s = 0;
  bool duplicates_allowed = false;
};

// Sends bytes to `sink`, which may buffer, write a file or compress. One thread.
class TarWriter {
 public:
  using Sink = std::function<Status(std::span<const uint8_t>)>;
  explicit TarWriter(Sink sink, TarWriterOptions options = {});
  ~TarWriter();

  // A whole member.
  Status add(std::string_view name, std::span<const uint8_t> data);
  // A member of known size in pieces: begin, write until `size` bytes are through, end.
  Status begin(std::string_view name, uint64_t size);
  Status write(std::span<const uint8_t> data);
  Status end();
  Status add_directory(std::string_view name);
  // The end marker, padded to 10240 bytes as tar(1) does. Required.
  Status finish();

  uint64_t bytes_written() const { return bytes_written_; }

 private:
  Status put(std::span<const uint8_t> data);
  Status put_header(std::string_view name, uint64_t size, char type, uint32_t mode);

  Sink sink_;
  TarWriterOptions options_;
  uint64_t bytes_written_ = 0;
  uint64_t member_left_ = 0;
  uint64_t member_padding_ = 0;
  bool in_member_ = false;
  bool finished_ = false;
  std::unordered_set<std::string> names_;
};

}  // namespace aerie::tar
