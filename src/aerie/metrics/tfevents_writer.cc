#include "aerie/metrics/tfevents_writer.h"

#include <array>
#include <bit>
#include <cstring>
#include <unistd.h>

namespace aerie::metrics {

namespace {

constexpr std::array<uint32_t, 256> make_crc32c_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82F63B78u : 0u);
    table[i] = crc;
  }
  return table;
}
constexpr auto kCrc32cTable = make_crc32c_table();

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes)
    crc = kCrc32cTable[(crc ^ static_cast<uint8_t>(c)) & 0xFF] ^ (crc >> 8);
  return ~crc;
}

// As TensorFlow stores it: rotated and shifted, so that a CRC of data holding CRCs stays useful.
uint32_t masked_crc32c(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xA282EAD8u;
}

static_assert(std::endian::native == std::endian::little, "event files are little-endian");

template <typename T>
void put_fixed(std::string& out, T value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

void put_varint(std::string& out, uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
}

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void put_tag(std::string& out, uint32_t field, WireType type) {
  put_varint(out, (field << 3) | type);
}

void put_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  put_tag(out, field, kBytes);
  put_varint(out, bytes.size());
  out.append(bytes);
}

std::string event_head(double wall_time_s, int64_t step) {
  std::string event;
  put_tag(event, 1, kFixed64);
  put_fixed(event, wall_time_s);
  if (step != 0) {
    put_tag(event, 2, kVarint);
    put_varint(event, static_cast<uint64_t>(step));
  }
  return event;
}

}  // namespace

TfEventsWriter::TfEventsWriter(Env& env, std::string folder, int64_t start_s)
    : env_(env), start_s_(start_s) {
  char host[256] = {};
  if (gethostname(host, sizeof host - 1) != 0 || host[0] == '\0') std::strcpy(host, "localhost");
  path_ = str_cat(folder, "/events.out.tfevents.", start_s, ".", static_cast<const char*>(host),
                  ".", getpid(), ".0");
}

Status TfEventsWriter::open() {
  if (file_ != nullptr) return ok_status();
  AERIE_ASSIGN_OR_RETURN(file_, env_.open_writable(path_, WriteMode::kAppend));
  if (file_->size() != 0) return ok_status();
  std::string event = event_head(static_cast<double>(start_s_), 0);
  put_bytes(event, 3, "brain.Event:2");
  return write_record(event);
}

Status TfEventsWriter::write_record(const std::string& event) {
  std::string record;
  put_fixed(record, static_cast<uint64_t>(event.size()));
  put_fixed(record, masked_crc32c(record));
  record += event;
  put_fixed(record, masked_crc32c(event));
  return file_->append(record);
}

Status TfEventsWriter::scalar(std::string_view tag, double value, int64_t step,
                              double wall_time_s) {
  AERIE_RETURN_IF_ERROR(open());
  std::string point;
  put_bytes(point, 1, tag);
  put_tag(point, 2, kFixed32);
  put_fixed(point, static_cast<float>(value));
  std::string summary;
  put_bytes(summary, 1, point);
  std::string event = event_head(wall_time_s, step);
  put_bytes(event, 5, summary);
  return write_record(event);
}

Status TfEventsWriter::flush() {
  return file_ == nullptr ? ok_status() : file_->flush();
}

}  // namespace aerie::metrics
