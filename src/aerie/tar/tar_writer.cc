#include "aerie/tar/tar_writer.h"

#include <algorithm>
#include <vector>

#include "aerie/tar/tar_format.h"
#include "aerie/tar/tar_header.h"

namespace aerie::tar {
namespace {

constexpr uint64_t kRecord = 20 * kBlock;
constexpr uint64_t kMaxUstarSize = uint64_t{1} << 33;  // 11 octal digits

// "<length> key=value\n", where length counts itself.
std::string pax_record(std::string_view key, std::string_view value) {
  const std::string body = str_cat(" ", key, "=", value, "\n");
  size_t length = body.size() + 1;
  while (str_cat(length).size() + body.size() != length)
    length = str_cat(length).size() + body.size();
  return str_cat(length, body);
}

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

}  // namespace

TarWriter::TarWriter(Sink sink, TarWriterOptions options)
    : sink_(std::move(sink)), options_(options) {}
TarWriter::~TarWriter() = default;

Status TarWriter::put(std::span<const uint8_t> data) {
  bytes_written_ += data.size();
  return sink_(data);
}

Status TarWriter::put_header(std::string_view name, uint64_t size, char type, uint32_t mode) {
  uint8_t block[kBlock];
  std::string records;
  if (name.size() > 100 || !is_ascii(name)) records += pax_record("path", name);
  if (size >= kMaxUstarSize) records += pax_record("size", str_cat(size));
  if (!records.empty()) {
    const size_t size_before = records.size();
    make_header("././@PaxHeader", size_before, 'x', 0644, options_.mtime_s, block);
    AERIE_RETURN_IF_ERROR(put({block, kBlock}));
    records.resize(padded_size(size_before), '\0');
    AERIE_RETURN_IF_ERROR(put({reinterpret_cast<const uint8_t*>(records.data()), records.size()}));
  }
  make_header(name.substr(0, 100), size >= kMaxUstarSize ? 0 : size, type, mode, options_.mtime_s,
              block);
  return put({block, kBlock});
}

Status TarWriter::begin(std::string_view name, uint64_t size) {
  AERIE_CHECK(!in_member_ && !finished_, "begin inside a member or behind the end");
  AERIE_RETURN_IF_ERROR(check_member_name(name));
  if (ends_with(name, "/")) return invalid_argument(str_cat("'", name, "' names a directory"));
  if (!options_.duplicates_allowed && !names_.insert(std::string(name)).second)
    return data_error(str_cat("member '", name, "' is written twice"));
  AERIE_RETURN_IF_ERROR(put_header(name, size, '0', options_.mode));
  in_member_ = true;
  member_left_ = size;
  member_padding_ = padded_size(size) - size;
  return ok_status();
}

Status TarWriter::write(std::span<const uint8_t> data) {
  AERIE_CHECK(in_member_, "write outside of a member");
  if (data.size() > member_left_)
    return internal_error("a tar member got more bytes than announced");
  member_left_ -= data.size();
  return put(data);
}

Status TarWriter::end() {
  AERIE_CHECK(in_member_, "end outside of a member");
  if (member_left_ != 0) return internal_error("a tar member got fewer bytes than announced");
  in_member_ = false;
  static const uint8_t kZeros[kBlock] = {};
  return member_padding_ == 0 ? ok_status() : put({kZeros, static_cast<size_t>(member_padding_)});
}

Status TarWriter::add(std::string_view name, std::span<const uint8_t> data) {
  AERIE_RETURN_IF_ERROR(begin(name, data.size()));
  AERIE_RETURN_IF_ERROR(write(data));
  return end();
}

Status TarWriter::add_directory(std::string_view name) {
  AERIE_CHECK(!in_member_ && !finished_, "directory inside a member or behind the end");
  AERIE_RETURN_IF_ERROR(check_member_name(name));
  const std::string with_slash = ends_with(name, "/") ? std::string(name) : str_cat(name, "/");
  return put_header(with_slash, 0, '5', 0755);
}

Status TarWriter::finish() {
  AERIE_CHECK(!in_member_ && !finished_, "finish inside a member or twice");
  finished_ = true;
  const uint64_t end = (bytes_written_ + 2 * kBlock + kRecord - 1) / kRecord * kRecord;
  const std::vector<uint8_t> zeros(static_cast<size_t>(end - bytes_written_), 0);
  return put(zeros);
}

}  // namespace aerie::tar
