#include "aerie/metrics/tfevents_writer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <unistd.h>

#include "aerie/base/log.h"
#include "aerie/base/path.h"

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

// Length, its checksum, the event, its checksum.
std::string framed(const std::string& event) {
  std::string record;
  put_fixed(record, static_cast<uint64_t>(event.size()));
  put_fixed(record, masked_crc32c(record));
  record += event;
  put_fixed(record, masked_crc32c(event));
  return record;
}

std::string file_name(int64_t stamp_s) {
  char host[256] = {};
  if (gethostname(host, sizeof host - 1) != 0 || host[0] == '\0') std::strcpy(host, "localhost");
  return str_cat("events.out.tfevents.", stamp_s, ".", static_cast<const char*>(host), ".",
                 getpid(), ".0");
}

}  // namespace

TfEventsWriter::TfEventsWriter(Env& env, std::string folder, int64_t start_s)
    : env_(env),
      folder_(std::move(folder)),
      path_(join_path(folder_, file_name(start_s))),
      stamp_s_(start_s) {}

void TfEventsWriter::add(std::string event, double wall_time_s) {
  last_wall_s_ = wall_time_s;
  pending_.push_back(framed(event));
  if (pending_.size() > kMaxPending) pending_.pop_front();
}

void TfEventsWriter::start_session(int64_t step, double wall_time_s) {
  std::string session;
  put_tag(session, 1, kVarint);
  put_varint(session, 1);  // SessionLog.START
  std::string event = event_head(wall_time_s, step);
  put_bytes(event, 7, session);
  add(std::move(event), wall_time_s);
}

void TfEventsWriter::scalar(std::string_view tag, double value, int64_t step, double wall_time_s) {
  std::string point;
  put_bytes(point, 1, tag);
  put_tag(point, 2, kFixed32);
  put_fixed(point, static_cast<float>(value));
  std::string summary;
  put_bytes(summary, 1, point);
  std::string event = event_head(wall_time_s, step);
  put_bytes(event, 5, summary);
  add(std::move(event), wall_time_s);
}

Status TfEventsWriter::flush() {
  if (pending_.empty()) return ok_status();
  if (file_ != nullptr && env_.stat(path_).status().code() == StatusCode::kNotFound) {
    log_warn("metrics", path_, " was removed while the run wrote it; its points are lost");
    file_.reset();
    written_bytes_ = 0;
    (void)env_.create_dirs(folder_);
  }
  std::string head;
  if (written_bytes_ == 0) {
    std::string event = event_head(static_cast<double>(stamp_s_), 0);
    put_bytes(event, 3, "brain.Event:2");
    head = framed(event);
  }
  std::string bytes = head;
  for (const std::string& record : pending_) bytes += record;
  const auto write = [&]() -> Status {
    if (file_ == nullptr) {
      AERIE_ASSIGN_OR_RETURN(file_, env_.open_writable(path_, WriteMode::kAppend));
    }
    AERIE_RETURN_IF_ERROR(file_->append(bytes));
    return file_->flush();
  };
  Status status = write();
  if (!status.ok()) {
    after_failure(head.size());
    return status;
  }
  written_bytes_ += bytes.size();
  pending_.clear();
  return status;
}

// Finds out how much arrived, and goes on behind it or, past a torn record, in a new file.
void TfEventsWriter::after_failure(size_t head_bytes) {
  file_.reset();
  const auto stat = env_.stat(path_);
  const uint64_t there = stat.ok() ? stat->size : 0;
  if (there >= written_bytes_ + head_bytes) {
    written_bytes_ += head_bytes;
    while (!pending_.empty() && written_bytes_ + pending_.front().size() <= there) {
      written_bytes_ += pending_.front().size();
      pending_.pop_front();
    }
  }
  if (there == written_bytes_) return;
  if (written_bytes_ <= head_bytes) {
    // Nothing of use in it: the next attempt makes it anew, so that a full disk does not collect
    // torn files.
    if (env_.remove_file(path_).ok()) {
      written_bytes_ = 0;
      return;
    }
  }
  stamp_s_ = std::max(stamp_s_ + 1, static_cast<int64_t>(last_wall_s_));
  path_ = join_path(folder_, file_name(stamp_s_));
  written_bytes_ = 0;
}

}  // namespace aerie::metrics
