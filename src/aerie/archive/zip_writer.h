// Writes a ZIP archive of stored entries as torch.save does: data aligned to 64 bytes by a padded
// extra field, sizes and CRC behind the data, ZIP64 where needed. Only bytes go forward, so the
// sink may be a member of a tar; the total is known beforehand (zip_layout).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/archive/tensor_writer.h"

namespace aerie::archive {

class ZipWriter {
 public:
  static constexpr uint64_t kAlignment = 64;

  explicit ZipWriter(Sink sink) : sink_(std::move(sink)) {}

  // One entry of `size` bytes: begin, write until all are through, end.
  Status begin(std::string_view name, uint64_t size);
  Status write(std::string_view bytes);
  Status end();
  Status add(std::string_view name, std::string_view bytes);
  Status finish();  // the directory; required

  uint64_t bytes_written() const { return offset_; }

 private:
  struct Entry {
    std::string name;
    uint64_t offset = 0;
    uint64_t size = 0;
    uint32_t crc = 0;
  };
  Status put(std::string_view bytes);

  Sink sink_;
  std::vector<Entry> entries_;
  uint64_t offset_ = 0;
  uint64_t left_ = 0;
  bool open_ = false;
};

struct ZipPlan {
  std::string name;
  uint64_t size = 0;
};
// Bytes that a ZipWriter will write for these entries.
uint64_t zip_size(const std::vector<ZipPlan>& entries);

}  // namespace aerie::archive
