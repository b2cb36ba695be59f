#include "aerie/archive/zip_writer.h"

#include <algorithm>

#include <zlib.h>

#include "aerie/base/check.h"

namespace aerie::archive {
namespace {

constexpr uint64_t kLimit32 = 0xffffffff;
constexpr uint16_t kFlags = 0x808;  // sizes follow the data; names are UTF-8
constexpr uint64_t kLocalHeaderBytes = 30, kCentralHeaderBytes = 46;

class Record {
 public:
  Record& u16(uint64_t value) { return put(value, 2); }
  Record& u32(uint64_t value) { return put(value, 4); }
  Record& u64(uint64_t value) { return put(value, 8); }
  Record& text(std::string_view value) {
    bytes_.append(value);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  Record& put(uint64_t value, int count) {
    for (int i = 0; i < count; ++i) bytes_.push_back(static_cast<char>(value >> 8 * i & 0xff));
    return *this;
  }
  std::string bytes_;
};

bool is_large(uint64_t size) {
  return size >= kLimit32;
}

// The extra field "FB" (as torch calls it) that moves the data to the next multiple of 64. A large
// entry carries a ZIP64 field before it.
uint64_t zip64_local_bytes(uint64_t size) {
  return is_large(size) ? 20 : 0;
}
uint64_t padding(uint64_t offset, uint64_t name_size, uint64_t size) {
  const uint64_t start = offset + kLocalHeaderBytes + name_size + zip64_local_bytes(size) + 4;
  return (ZipWriter::kAlignment - start % ZipWriter::kAlignment) % ZipWriter::kAlignment;
}
uint64_t descriptor_bytes(uint64_t size) {
  return is_large(size) ? 24 : 16;
}
uint64_t zip64_central_bytes(uint64_t size, uint64_t offset) {
  const uint64_t fields = (is_large(size) ? 16u : 0u) + (offset >= kLimit32 ? 8u : 0u);
  return fields == 0 ? 0 : 4 + fields;
}
bool needs_end64(uint64_t count, uint64_t directory_size, uint64_t directory_offset) {
  return count >= 0xffff || directory_size >= kLimit32 || directory_offset >= kLimit32;
}

}  // namespace

Status ZipWriter::put(std::string_view bytes) {
  AERIE_RETURN_IF_ERROR(sink_(bytes));
  offset_ += bytes.size();
  return ok_status();
}

Status ZipWriter::begin(std::string_view name, uint64_t size) {
  AERIE_CHECK(!open_ && name.size() < 0xffff, "begin inside an entry, or a name too long");
  Entry entry;
  entry.name = name;
  entry.offset = offset_;
  entry.size = size;
  const uint64_t pad = padding(offset_, name.size(), size);
  Record header;
  header.u32(0x04034b50).u16(is_large(size) ? 45 : 20).u16(kFlags).u16(0).u16(0).u16(0x21);
  // The true values stand in the descriptor behind the data.
  header.u32(0).u32(is_large(size) ? kLimit32 : 0).u32(is_large(size) ? kLimit32 : 0);
  header.u16(name.size()).u16(zip64_local_bytes(size) + 4 + pad).text(name);
  if (is_large(size)) header.u16(1).u16(16).u64(size).u64(size);
  header.u16('F' | 'B' << 8).u16(pad).text(std::string(static_cast<size_t>(pad), 'Z'));
  entries_.push_back(std::move(entry));
  open_ = true;
  left_ = size;
  return put(header.bytes());
}

Status ZipWriter::write(std::string_view bytes) {
  AERIE_CHECK(open_ && bytes.size() <= left_, "more bytes than announced");
  Entry& entry = entries_.back();
  entry.crc = static_cast<uint32_t>(
      crc32_z(entry.crc, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
  left_ -= bytes.size();
  return put(bytes);
}

Status ZipWriter::end() {
  AERIE_CHECK(open_ && left_ == 0, "fewer bytes than announced");
  open_ = false;
  const Entry& entry = entries_.back();
  Record descriptor;
  descriptor.u32(0x08074b50).u32(entry.crc);
  if (is_large(entry.size)) {
    descriptor.u64(entry.size).u64(entry.size);
  } else {
    descriptor.u32(entry.size).u32(entry.size);
  }
  return put(descriptor.bytes());
}

Status ZipWriter::add(std::string_view name, std::string_view bytes) {
  AERIE_RETURN_IF_ERROR(begin(name, bytes.size()));
  AERIE_RETURN_IF_ERROR(write(bytes));
  return end();
}

Status ZipWriter::finish() {
  AERIE_CHECK(!open_, "finish inside an entry");
  const uint64_t directory_offset = offset_;
  for (const Entry& entry : entries_) {
    const bool large = is_large(entry.size), far = entry.offset >= kLimit32;
    Record header;
    header.u32(0x02014b50).u16(large || far ? 45 : 20).u16(large || far ? 45 : 20).u16(kFlags);
    header.u16(0).u16(0).u16(0x21).u32(entry.crc);
    header.u32(large ? kLimit32 : entry.size).u32(large ? kLimit32 : entry.size);
    header.u16(entry.name.size()).u16(zip64_central_bytes(entry.size, entry.offset)).u16(0);
    header.u16(0).u16(0).u32(0).u32(far ? kLimit32 : entry.offset).text(entry.name);
    if (large || far) {
      header.u16(1).u16(zip64_central_bytes(entry.size, entry.offset) - 4);
      if (large) header.u64(entry.size).u64(entry.size);
      if (far) header.u64(entry.offset);
    }
    AERIE_RETURN_IF_ERROR(put(header.bytes()));
  }
  const uint64_t count = entries_.size();
  const uint64_t directory_size = offset_ - directory_offset;
  Record end;
  if (needs_end64(count, directory_size, directory_offset)) {
    const uint64_t end64_offset = offset_;
    end.u32(0x06064b50).u64(44).u16(45).u16(45).u32(0).u32(0).u64(count).u64(count);
    end.u64(directory_size).u64(directory_offset);
    end.u32(0x07064b50).u32(0).u64(end64_offset).u32(1);
  }
  const uint64_t short_count = std::min<uint64_t>(count, 0xffff);
  end.u32(0x06054b50).u16(0).u16(0).u16(short_count).u16(short_count);
  end.u32(std::min(directory_size, kLimit32)).u32(std::min(directory_offset, kLimit32)).u16(0);
  return put(end.bytes());
}

uint64_t zip_size(const std::vector<ZipPlan>& entries) {
  uint64_t offset = 0, directory = 0;
  for (const ZipPlan& entry : entries) {
    const uint64_t name = entry.name.size();
    directory += kCentralHeaderBytes + name + zip64_central_bytes(entry.size, offset);
    const uint64_t pad = padding(offset, name, entry.size);
    offset += kLocalHeaderBytes + name + zip64_local_bytes(entry.size) + 4 + pad + entry.size +
              descriptor_bytes(entry.size);
  }
  const uint64_t end64 = needs_end64(entries.size(), directory, offset) ? 76 : 0;
  return offset + directory + end64 + 22;
}

}  // namespace aerie::archive
