#include "aerie/archive/zip_reader.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include <zlib.h>

#include "aerie/archive/text.h"
#include "aerie/base/strings.h"

namespace aerie::archive {
namespace {

constexpr uint32_t kLocalSignature = 0x04034b50;
constexpr uint32_t kCentralSignature = 0x02014b50;
constexpr uint32_t kEndSignature = 0x06054b50;
constexpr uint32_t kEnd64Signature = 0x06064b50;
constexpr uint32_t kLocator64Signature = 0x07064b50;
constexpr size_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kLocator64Bytes = 20,
                 kEnd64Bytes = 56;
constexpr uint32_t kIn64 = 0xffffffff;  // "the value is in the ZIP64 field"
constexpr uint16_t kFlagEncrypted = 0x41, kFlagSizesFollow = 0x8;

template <typename T>
T load(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

uint32_t crc_of(uint32_t crc, const char* data, size_t size) {
  return static_cast<uint32_t>(crc32_z(crc, reinterpret_cast<const Bytef*>(data), size));
}

Status crc_error(const std::string& name) {
  return data_error("checksum (CRC-32) does not match: the file is damaged")
      .with_context(name)
      .with_hint("copy or download it again");
}

// Replaces sizes that say "see ZIP64" by those of the extra field with id 1.
Status apply_zip64(std::string_view extra, uint64_t* size, uint64_t* stored_size,
                   uint64_t* header_offset) {
  const bool wanted = *size == kIn64 || *stored_size == kIn64 ||
                      (header_offset != nullptr && *header_offset == kIn64);
  bool found = false;
  while (extra.size() >= 4) {
    const auto id = load<uint16_t>(extra.data());
    const auto length = load<uint16_t>(extra.data() + 2);
    extra.remove_prefix(4);
    if (length > extra.size()) return data_error("extra field runs past its header");
    if (id == 1) {
      if (found) return data_error("two ZIP64 fields in one header");
      found = true;
      std::string_view field = extra.substr(0, length);
      for (uint64_t* value : {size, stored_size, header_offset}) {
        if (value == nullptr || *value != kIn64) continue;
        if (field.size() < 8) return data_error("ZIP64 field is cut short");
        *value = load<uint64_t>(field.data());
        field.remove_prefix(8);
      }
    }
    extra.remove_prefix(length);
  }
  if (wanted && !found) return data_error("a ZIP64 field is missing");
  return ok_status();
}

// A stored entry that checks itself before the first byte is used.
class EntrySource final : public ByteSource {
 public:
  EntrySource(SourcePtr parent, const ZipEntry& entry, std::string name, bool check)
      : ByteSource(std::move(name), entry.size),
        parent_(std::move(parent)),
        offset_(entry.data_offset),
        crc32_(entry.crc32),
        verified_(!check) {}

 private:
  Status read_checked(uint64_t offset, void* out, size_t n) const override {
    if (verified_) return parent_->read(offset_ + offset, out, n);
    if (offset == 0 && n == size()) {
      AERIE_RETURN_IF_ERROR(parent_->read(offset_, out, n));
      if (crc_of(0, static_cast<const char*>(out), n) != crc32_) return crc_error(name());
      verified_ = true;
      return ok_status();
    }
    // Two threads may both come here first; both then check, which is only slower.
    std::string buffer(std::min<uint64_t>(size(), uint64_t{1} << 20), '\0');
    uint32_t crc = 0;
    for (uint64_t at = 0; at < size();) {
      const auto take = static_cast<size_t>(std::min<uint64_t>(buffer.size(), size() - at));
      AERIE_RETURN_IF_ERROR(parent_->read(offset_ + at, buffer.data(), take));
      crc = crc_of(crc, buffer.data(), take);
      at += take;
    }
    if (crc != crc32_) return crc_error(name());
    verified_ = true;
    return parent_->read(offset_ + offset, out, n);
  }

  SourcePtr parent_;
  uint64_t offset_;
  uint32_t crc32_;
  mutable std::atomic<bool> verified_;
};

}  // namespace

Status ZipReader::error(std::string message) const {
  return data_error(str_cat("damaged zip archive: ", message)).with_context(source_->name());
}

Result<ZipReader> ZipReader::open(SourcePtr source) {
  ZipReader reader(std::move(source));
  AERIE_RETURN_IF_ERROR(reader.parse());
  return reader;
}

Status ZipReader::parse() {
  const uint64_t file_size = source_->size();
  if (file_size < kEndBytes) return error("too short for a zip archive");
  // The end record stands last, before a comment of up to 64 KiB.
  const auto tail_size = static_cast<size_t>(std::min<uint64_t>(file_size, kEndBytes + 0xffff));
  std::string tail(tail_size, '\0');
  AERIE_RETURN_IF_ERROR(source_->read(file_size - tail_size, tail.data(), tail_size));
  size_t end_at = std::string::npos;
  for (size_t at = tail_size - kEndBytes + 1; at-- > 0;) {
    if (load<uint32_t>(&tail[at]) == kEndSignature &&
        at + kEndBytes + load<uint16_t>(&tail[at + 20]) == tail_size) {
      end_at = at;
      break;
    }
  }
  if (end_at == std::string::npos) {
    char head[2];
    AERIE_RETURN_IF_ERROR(source_->read(0, head, sizeof head));
    if (head[0] != 'P' || head[1] != 'K')
      return data_error("is no zip archive, as torch files are").with_context(source_->name());
    return error("the directory at its end is missing")
        .with_hint("the file was probably cut short");
  }
  const char* end = &tail[end_at];
  if (load<uint16_t>(end + 4) != 0 || load<uint16_t>(end + 6) != 0)
    return error("split over several disks");
  uint64_t count = load<uint16_t>(end + 10);
  uint64_t directory_size = load<uint32_t>(end + 12);
  uint64_t directory_offset = load<uint32_t>(end + 16);
  uint64_t directory_end = file_size - tail_size + end_at;

  if (directory_end >= kLocator64Bytes + kEnd64Bytes) {
    char locator[kLocator64Bytes];
    AERIE_RETURN_IF_ERROR(source_->read(directory_end - kLocator64Bytes, locator, kLocator64Bytes));
    if (load<uint32_t>(locator) == kLocator64Signature) {
      const auto end64_at = load<uint64_t>(locator + 8);
      if (end64_at > directory_end - kLocator64Bytes - kEnd64Bytes)
        return error("the ZIP64 end record lies outside the file");
      char end64[kEnd64Bytes];
      AERIE_RETURN_IF_ERROR(source_->read(end64_at, end64, kEnd64Bytes));
      if (load<uint32_t>(end64) != kEnd64Signature) return error("no ZIP64 end record");
      const auto agree = [](uint64_t small, uint64_t marker, uint64_t large) {
        return small == marker || small == large;
      };
      if (!agree(count, 0xffff, load<uint64_t>(end64 + 32)) ||
          !agree(directory_size, kIn64, load<uint64_t>(end64 + 40)) ||
          !agree(directory_offset, kIn64, load<uint64_t>(end64 + 48)))
        return error("its two end records contradict each other");
      count = load<uint64_t>(end64 + 32);
      directory_size = load<uint64_t>(end64 + 40);
      directory_offset = load<uint64_t>(end64 + 48);
      directory_end = end64_at;
    }
  }
  if (directory_offset > directory_end || directory_size > directory_end - directory_offset)
    return error("its directory lies outside the file");
  if (count > kMaxEntries || directory_size > kMaxDirectoryBytes)
    return error(str_cat("its directory claims ", count, " entries in ", directory_size,
                         " bytes; at most ", kMaxEntries, " are read"));
  if (count > directory_size / kCentralBytes)
    return error(str_cat("its directory of ", directory_size, " bytes cannot hold the ", count,
                         " entries it claims"));

  std::string directory(static_cast<size_t>(directory_size), '\0');
  AERIE_RETURN_IF_ERROR(source_->read(directory_offset, directory.data(), directory.size()));
  entries_.reserve(static_cast<size_t>(count));
  std::string_view rest = directory;
  bool any_crc = false;
  for (uint64_t i = 0; i < count; ++i) {
    if (rest.size() < kCentralBytes || load<uint32_t>(rest.data()) != kCentralSignature)
      return error(str_cat("directory entry ", i, " is not one"));
    const char* head = rest.data();
    const auto flags = load<uint16_t>(head + 8);
    const auto method = load<uint16_t>(head + 10);
    ZipEntry entry;
    entry.crc32 = load<uint32_t>(head + 16);
    entry.stored_size = load<uint32_t>(head + 20);
    entry.size = load<uint32_t>(head + 24);
    const size_t name_size = load<uint16_t>(head + 28);
    const size_t extra_size = load<uint16_t>(head + 30);
    const size_t comment_size = load<uint16_t>(head + 32);
    const auto attributes = load<uint32_t>(head + 38);
    entry.header_offset = load<uint32_t>(head + 42);
    rest.remove_prefix(kCentralBytes);
    if (name_size + extra_size + comment_size > rest.size())
      return error(str_cat("directory entry ", i, " runs past the directory"));
    entry.name = rest.substr(0, name_size);
    if (const char* why = bad_member_name(entry.name))
      return error(str_cat("entry name ", quoted(entry.name), " ", why));
    auto zip64 = apply_zip64(rest.substr(name_size, extra_size), &entry.size, &entry.stored_size,
                             &entry.header_offset);
    if (!zip64.ok()) return error(str_cat("entry ", quoted(entry.name), ": ", zip64.message()));
    rest.remove_prefix(name_size + extra_size + comment_size);
    if ((flags & kFlagEncrypted) != 0)
      return error(str_cat("entry ", quoted(entry.name), " is encrypted"));
    if ((attributes >> 16 & 0170000) == 0120000)
      return error(str_cat("entry ", quoted(entry.name), " is a link"));
    if (method != 0 && method != 8)
      return error(str_cat("entry ", quoted(entry.name), " uses compression method ", method,
                           "; only stored and deflated entries are read"));
    entry.deflated = method == 8;
    if (!entry.deflated && entry.size != entry.stored_size)
      return error(str_cat("entry ", quoted(entry.name), " is stored but claims two sizes, ",
                           entry.stored_size, " and ", entry.size));
    if (entry.size > 0 && entry.crc32 != 0) any_crc = true;
    AERIE_RETURN_IF_ERROR(check_local_header(entry, method, directory_offset));
    entries_.push_back(std::move(entry));
  }
  if (!rest.empty()) return error("its directory holds more than the entries it claims");
  AERIE_RETURN_IF_ERROR(check_overlaps());
  has_checksums_ = any_crc;
  by_name_.reserve(entries_.size());
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (!by_name_.emplace(entries_[i].name, i).second)
      return error(str_cat("entry ", quoted(entries_[i].name), " appears twice"));
  }
  return ok_status();
}

Status ZipReader::check_local_header(ZipEntry& entry, uint16_t method,
                                     uint64_t directory_offset) const {
  const auto bad = [&](std::string_view why) {
    return error(str_cat("entry ", quoted(entry.name), ": ", why));
  };
  if (entry.header_offset > directory_offset ||
      directory_offset - entry.header_offset < kLocalBytes + entry.name.size())
    return bad("its data lies outside the file");
  // Header and name in one read; the extra field is only needed for ZIP64 sizes.
  std::string head(kLocalBytes + entry.name.size(), '\0');
  AERIE_RETURN_IF_ERROR(source_->read(entry.header_offset, head.data(), head.size()));
  if (load<uint32_t>(head.data()) != kLocalSignature) return bad("no header where it should begin");
  const auto flags = load<uint16_t>(&head[6]);
  const size_t name_size = load<uint16_t>(&head[26]);
  const size_t extra_size = load<uint16_t>(&head[28]);
  if (name_size != entry.name.size() || head.substr(kLocalBytes) != entry.name)
    return bad("its header carries another name than the directory");
  if (load<uint16_t>(&head[8]) != method || (flags & kFlagEncrypted) != 0)
    return bad("its header contradicts the directory");
  entry.data_offset = entry.header_offset + kLocalBytes + name_size + extra_size;
  if (entry.data_offset > directory_offset ||
      entry.stored_size > directory_offset - entry.data_offset)
    return bad(str_cat("its ", entry.stored_size, " bytes do not fit into the file"));

  const auto crc = load<uint32_t>(&head[14]);
  uint64_t stored_size = load<uint32_t>(&head[18]);
  uint64_t size = load<uint32_t>(&head[22]);
  if (stored_size == kIn64 || size == kIn64) {
    std::string extra(extra_size, '\0');
    AERIE_RETURN_IF_ERROR(
        source_->read(entry.data_offset - extra_size, extra.data(), extra.size()));
    const Status status = apply_zip64(extra, &size, &stored_size, nullptr);
    if (!status.ok()) return bad(status.message());
  }
  // With the flag, the true values stand behind the data and these are zero.
  const bool follow = (flags & kFlagSizesFollow) != 0;
  const auto agrees = [follow](uint64_t local, uint64_t central) {
    return local == central || (follow && local == 0);
  };
  if (!agrees(crc, entry.crc32) || !agrees(stored_size, entry.stored_size) ||
      !agrees(size, entry.size))
    return bad("its header contradicts the directory");
  return ok_status();
}

Status ZipReader::check_overlaps() const {
  std::vector<const ZipEntry*> order;
  order.reserve(entries_.size());
  for (const ZipEntry& entry : entries_) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const ZipEntry* a, const ZipEntry* b) {
    return a->header_offset < b->header_offset;
  });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i - 1]->data_offset + order[i - 1]->stored_size > order[i]->header_offset)
      return error(str_cat("entries ", quoted(order[i - 1]->name), " and ", quoted(order[i]->name),
                           " share bytes"));
  }
  return ok_status();
}

const ZipEntry* ZipReader::find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &entries_[it->second];
}

Result<std::string> ZipReader::read(const ZipEntry& entry, uint64_t max_bytes) const {
  const std::string name = str_cat(source_->name(), ": ", printable(entry.name));
  if (entry.size > max_bytes)
    return data_error(str_cat("holds ", entry.size, " bytes, at most ", max_bytes, " are accepted"))
        .with_context(name);
  std::string bytes;
  if (entry.deflated) {
    AERIE_ASSIGN_OR_RETURN(bytes, inflate_entry(entry));
  } else {
    bytes.resize(static_cast<size_t>(entry.size));
    AERIE_RETURN_IF_ERROR(source_->read(entry.data_offset, bytes.data(), bytes.size()));
  }
  if (has_checksums_ && crc_of(0, bytes.data(), bytes.size()) != entry.crc32)
    return crc_error(name);
  return bytes;
}

Result<std::string> ZipReader::inflate_entry(const ZipEntry& entry) const {
  const auto bad = [&](std::string_view why) {
    return error(str_cat("entry ", quoted(entry.name), ": ", why));
  };
  if (entry.size > inflate_limit(entry.stored_size))
    return bad(str_cat("would inflate from ", entry.stored_size, " to ", entry.size,
                       " bytes, more than is plausible"));
  z_stream stream{};
  if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) return out_of_memory("no memory to inflate");
  const std::unique_ptr<z_stream, int (*)(z_stream*)> owner(&stream, inflateEnd);
  std::string in(size_t{64} << 10, '\0');
  std::string out;
  std::string piece(size_t{64} << 10, '\0');
  uint64_t consumed = 0;
  int state = Z_OK;
  while (state != Z_STREAM_END) {
    if (stream.avail_in == 0) {
      const auto take =
          static_cast<size_t>(std::min<uint64_t>(in.size(), entry.stored_size - consumed));
      if (take == 0) return bad("its compressed data ends too early");
      AERIE_RETURN_IF_ERROR(source_->read(entry.data_offset + consumed, in.data(), take));
      consumed += take;
      stream.next_in = reinterpret_cast<Bytef*>(in.data());
      stream.avail_in = static_cast<uInt>(take);
    }
    stream.next_out = reinterpret_cast<Bytef*>(piece.data());
    stream.avail_out = static_cast<uInt>(piece.size());
    state = ::inflate(&stream, Z_NO_FLUSH);
    if (state != Z_OK && state != Z_STREAM_END && state != Z_BUF_ERROR)
      return bad("its compressed data is damaged");
    const size_t made = piece.size() - stream.avail_out;
    if (made > entry.size - out.size()) return bad("inflates to more than it claims");
    out.append(piece, 0, made);
  }
  if (out.size() != entry.size) return bad("inflates to less than it claims");
  if (consumed != entry.stored_size || stream.avail_in != 0)
    return bad("has bytes behind its compressed data");
  return out;
}

Result<SourcePtr> ZipReader::open_entry(const ZipEntry& entry) const {
  if (entry.deflated)
    return error(str_cat("entry ", quoted(entry.name), " is compressed, it must be stored"))
        .with_hint("write it again with torch.save, which does not compress");
  return SourcePtr(std::make_shared<EntrySource>(
      source_, entry, str_cat(source_->name(), ": ", printable(entry.name)), has_checksums_));
}

}  // namespace aerie::archive
