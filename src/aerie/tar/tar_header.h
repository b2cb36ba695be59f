// One 512-byte tar header, and PAX records. Internal to the folder; pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "aerie/base/status.h"

namespace aerie::tar {

constexpr size_t kBlock = 512;

struct TarHeader {
  std::string name;  // prefix and name joined
  uint64_t size = 0;
  char type = '0';
};

bool is_zero_block(const uint8_t* block);
// Checks the checksum; numbers are octal or, as GNU writes large ones, base 256.
Result<TarHeader> parse_header(const uint8_t* block);

struct PaxRecords {
  std::optional<std::string> path;
  std::optional<uint64_t> size;
  bool sparse = false;
};
// "27 path=a/long/name\n" records; unknown keywords are passed over.
Result<PaxRecords> parse_pax(std::string_view data);

// A header block for writing; name at most 100 bytes, size below 8 GiB.
void make_header(std::string_view name, uint64_t size, char type, uint32_t mode, int64_t mtime_s,
                 uint8_t* block);

inline uint64_t padded_size(uint64_t size) {
  return (size + kBlock - 1) / kBlock * kBlock;
}

}  // namespace aerie::tar
