#include "aerie/tar/tar_header.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "aerie/tar/tar_format.h"

namespace aerie::tar {
namespace {

// Fields of a ustar header.
constexpr size_t kName = 0, kNameSize = 100;
constexpr size_t kMode = 100, kUid = 108, kGid = 116;
constexpr size_t kSize = 124, kSizeSize = 12;
constexpr size_t kMtime = 136;
constexpr size_t kChecksum = 148, kChecksumSize = 8;
constexpr size_t kType = 156;
constexpr size_t kMagic = 257;
constexpr size_t kPrefix = 345, kPrefixSize = 155;

std::string_view text_field(const uint8_t* block, size_t at, size_t size) {
  const char* text = reinterpret_cast<const char*>(block + at);
  return {text, strnlen(text, size)};
}

// nullopt: no number, or one beyond 63 bits.
std::optional<uint64_t> number_field(const uint8_t* field, size_t size) {
  if ((field[0] & 0x80) != 0) {
    if (field[0] != 0x80) return std::nullopt;  // negative, or larger than any file
    uint64_t value = 0;
    for (size_t i = 1; i < size; ++i) {
      if (value >> 55 != 0) return std::nullopt;
      value = value << 8 | field[i];
    }
    return value;
  }
  size_t i = 0;
  while (i < size && field[i] == ' ') ++i;
  uint64_t value = 0;
  for (; i < size && field[i] >= '0' && field[i] <= '7'; ++i) {
    if (value >> 60 != 0) return std::nullopt;
    value = value << 3 | static_cast<uint64_t>(field[i] - '0');
  }
  for (; i < size; ++i)
    if (field[i] != ' ' && field[i] != 0) return std::nullopt;
  return value;  // an empty field means 0 in headers of some old tools
}

}  // namespace

bool is_zero_block(const uint8_t* block) {
  return std::all_of(block, block + kBlock, [](uint8_t byte) { return byte == 0; });
}

Result<TarHeader> parse_header(const uint8_t* block) {
  const std::optional<uint64_t> stored = number_field(block + kChecksum, kChecksumSize);
  // The sum counts its own field as spaces. Old tools added signed bytes.
  int64_t unsigned_sum = 0;
  int64_t signed_sum = 0;
  for (size_t i = 0; i < kBlock; ++i) {
    const bool own = i >= kChecksum && i < kChecksum + kChecksumSize;
    unsigned_sum += own ? ' ' : block[i];
    signed_sum += own ? ' ' : static_cast<int8_t>(block[i]);
  }
  if (!stored || (static_cast<int64_t>(*stored) != unsigned_sum &&
                  static_cast<int64_t>(*stored) != signed_sum))
    return data_error("bad header checksum: not a tar archive, or damaged");
  TarHeader header;
  header.type = static_cast<char>(block[kType]);
  const std::optional<uint64_t> size = number_field(block + kSize, kSizeSize);
  if (!size) return data_error("bad size in a header");
  header.size = *size;
  header.name = text_field(block, kName, kNameSize);
  // Only POSIX ustar ("ustar\0") has a prefix; GNU's ("ustar ") keeps other things there.
  if (std::memcmp(block + kMagic, "ustar\0", 6) == 0) {
    const std::string_view prefix = text_field(block, kPrefix, kPrefixSize);
    if (!prefix.empty()) header.name = str_cat(prefix, "/", header.name);
  }
  return header;
}

Result<PaxRecords> parse_pax(std::string_view data) {
  PaxRecords records;
  // Writers may pad with zeros behind the last record.
  while (!data.empty() && data.front() != '\0') {
    size_t digits = 0;
    size_t length = 0;
    while (digits < data.size() && data[digits] >= '0' && data[digits] <= '9' && digits < 8)
      length = length * 10 + static_cast<size_t>(data[digits++] - '0');
    if (digits == 0 || digits >= data.size() || data[digits] != ' ' || length <= digits + 1 ||
        length > data.size() || data[length - 1] != '\n')
      return data_error("bad record in an extended header");
    const std::string_view record = data.substr(digits + 1, length - digits - 2);
    data.remove_prefix(length);
    const size_t equals = record.find('=');
    if (equals == std::string_view::npos) return data_error("bad record in an extended header");
    const std::string_view key = record.substr(0, equals);
    const std::string_view value = record.substr(equals + 1);
    if (key == "path") {
      records.path = std::string(value);
    } else if (key == "size") {
      uint64_t size = 0;
      if (value.empty() || value.size() > 18) return data_error("bad size in an extended header");
      for (const char c : value) {
        if (c < '0' || c > '9') return data_error("bad size in an extended header");
        size = size * 10 + static_cast<uint64_t>(c - '0');
      }
      records.size = size;
    } else if (starts_with(key, "GNU.sparse")) {
      records.sparse = true;
    }
  }
  return records;
}

Status check_member_name(std::string_view name) {
  if (name.empty()) return data_error("a member has no name");
  for (const char c : name)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F)
      return data_error("a member's name has control characters");
  if (name.front() == '/') return data_error(str_cat("member '", name, "' has an absolute name"));
  for (size_t at = 0; at <= name.size();) {
    const size_t slash = std::min(name.find('/', at), name.size());
    if (name.substr(at, slash - at) == "..")
      return data_error(str_cat("member '", name, "' points outside the archive"));
    at = slash + 1;
  }
  return ok_status();
}

void make_header(std::string_view name, uint64_t size, char type, uint32_t mode, int64_t mtime_s,
                 uint8_t* block) {
  AERIE_CHECK(name.size() <= kNameSize && size < (uint64_t{1} << 33), "header field too small");
  std::memset(block, 0, kBlock);
  std::memcpy(block + kName, name.data(), name.size());
  const auto octal = [&](size_t at, int width, uint64_t value) {
    char text[24];
    std::snprintf(text, sizeof(text), "%0*llo", width, static_cast<unsigned long long>(value));
    std::memcpy(block + at, text, static_cast<size_t>(width));
  };
  octal(kMode, 7, mode);
  octal(kUid, 7, 0);
  octal(kGid, 7, 0);
  octal(kSize, 11, size);
  octal(kMtime, 11, static_cast<uint64_t>(std::max<int64_t>(0, mtime_s)) & 077777777777ull);
  std::memset(block + kChecksum, ' ', kChecksumSize);
  block[kType] = static_cast<uint8_t>(type);
  std::memcpy(block + kMagic, "ustar\00000", 8);
  uint64_t sum = 0;
  for (size_t i = 0; i < kBlock; ++i) sum += block[i];
  octal(kChecksum, 6, sum);
  block[kChecksum + 6] = 0;
  block[kChecksum + 7] = ' ';
}

}  // namespace aerie::tar
