#include "aerie/audio/claimed_end.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>

namespace aerie::audio {
namespace {

// A header with more chunks than this before its data is not one a recorder wrote.
constexpr int kMaxClaimedChunks = 1000;

uint64_t number(std::span<const uint8_t> bytes, bool big_endian) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes.size(); ++i)
    value |= uint64_t{bytes[i]} << 8 * (big_endian ? bytes.size() - 1 - i : i);
  return value;
}

// How a container lays out its chunks.
struct ChunkRules {
  int64_t first = 12;     // where the first chunk begins
  size_t id_bytes = 4;    // of which the first four are the name
  size_t size_bytes = 4;  // of the size behind the name
  bool big_endian = false;
  bool counts_header = false;  // the size includes name and size
  int64_t alignment = 2;
  std::string_view data = "data";
};

// RF64 keeps the size that 32 bits cannot hold in an earlier chunk.
std::optional<ClaimedData> find_chunk(ByteSource& source, const ChunkRules& rules, bool has_ds64) {
  const int64_t head_bytes = static_cast<int64_t>(rules.id_bytes + rules.size_bytes);
  uint64_t long_size = 0;
  int64_t at = rules.first;
  for (int chunk = 0; chunk < kMaxClaimedChunks; ++chunk) {
    const std::span<const uint8_t> head = source.view(at, head_bytes);
    if (static_cast<int64_t>(head.size()) < head_bytes) return std::nullopt;
    const std::string_view name(reinterpret_cast<const char*>(head.data()), 4);
    uint64_t size = number(head.subspan(rules.id_bytes), rules.big_endian);
    const bool is_data = name == rules.data;
    const bool is_ds64 = has_ds64 && name == "ds64";
    if (rules.counts_header) {
      if (size < static_cast<uint64_t>(head_bytes)) return std::nullopt;
      size -= static_cast<uint64_t>(head_bytes);
    }
    if (is_data) {
      if (rules.size_bytes == 4 && is_stream_size(static_cast<int64_t>(size))) {
        if (long_size == 0) return std::nullopt;
        size = long_size;
      }
      // -1 and other numbers no file has: not known.
      if (size > static_cast<uint64_t>(INT64_MAX) / 2) return std::nullopt;
      return ClaimedData{at + head_bytes, static_cast<int64_t>(size)};
    }
    if (is_ds64) {
      const std::span<const uint8_t> sizes = source.view(at + head_bytes, 16);
      if (sizes.size() == 16) long_size = number(sizes.subspan(8), false);
    }
    if (size > static_cast<uint64_t>(source.size())) return std::nullopt;
    const int64_t end = at + head_bytes + static_cast<int64_t>(size);
    at = (end + rules.alignment - 1) / rules.alignment * rules.alignment;
  }
  return std::nullopt;
}

std::optional<ClaimedData> find_au_data(ByteSource& source, bool big_endian) {
  const std::span<const uint8_t> head = source.view(0, 12);
  if (head.size() < 12) return std::nullopt;
  const int64_t begin = static_cast<int64_t>(number(head.subspan(4, 4), big_endian));
  const int64_t size = static_cast<int64_t>(number(head.subspan(8, 4), big_endian));
  if (is_stream_size(size)) return std::nullopt;
  return ClaimedData{begin, size};
}

// "sample_count -i 8000" of a SPHERE header.
std::optional<int64_t> sphere_field(std::string_view header, std::string_view name) {
  const size_t at = header.find(name);
  if (at == std::string_view::npos || (at > 0 && header[at - 1] != '\n')) return std::nullopt;
  std::string_view rest = header.substr(at + name.size());
  constexpr std::string_view kInteger = " -i ";
  if (rest.substr(0, kInteger.size()) != kInteger) return std::nullopt;
  rest.remove_prefix(kInteger.size());
  int64_t value = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (error != std::errc() || value < 0 || value > (int64_t{1} << 40)) return std::nullopt;
  return value;
}

std::optional<ClaimedData> find_sphere_data(ByteSource& source) {
  constexpr int64_t kHeaderBytes = 1024;
  const std::span<const uint8_t> head = source.view(0, kHeaderBytes);
  const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
  if (text.substr(0, 16) != "NIST_1A\n   1024\n") return std::nullopt;
  if (text.find("embedded") != std::string_view::npos) return std::nullopt;  // compressed
  const std::optional<int64_t> count = sphere_field(text, "sample_count");
  const std::optional<int64_t> bytes = sphere_field(text, "sample_n_bytes");
  if (!count || !bytes || *bytes > 8) return std::nullopt;
  const int64_t channels = sphere_field(text, "channel_count").value_or(1);
  if (channels > 1024) return std::nullopt;
  return ClaimedData{kHeaderBytes, *count * *bytes * channels};
}

}  // namespace

int64_t ClaimedData::missing_frames(int64_t frames, int64_t file_bytes) const {
  const int64_t there = std::max<int64_t>(0, file_bytes - begin);
  if (there >= bytes || frames <= 0) return 0;
  return static_cast<int64_t>(static_cast<double>(frames) *
                              (static_cast<double>(bytes) / static_cast<double>(there) - 1.0));
}

std::optional<ClaimedData> find_claimed_data(ByteSource& source) {
  const std::span<const uint8_t> head = source.view(0, 12);
  const auto starts = [&](size_t at, std::string_view tag) {
    return head.size() >= at + tag.size() &&
           std::memcmp(head.data() + at, tag.data(), tag.size()) == 0;
  };
  ChunkRules rules;
  if (starts(0, "RIFF") || starts(0, "RIFX")) {
    rules.big_endian = starts(0, "RIFX");
    return find_chunk(source, rules, false);
  }
  if (starts(0, "RF64")) return find_chunk(source, rules, true);
  if (starts(0, "riff\x2E\x91\xCF\x11")) {  // W64: 16-byte names, sizes of eight bytes
    rules.first = 40;
    rules.id_bytes = 16;
    rules.size_bytes = 8;
    rules.counts_header = true;
    rules.alignment = 8;
    return find_chunk(source, rules, false);
  }
  if (starts(0, "FORM")) {
    rules.big_endian = true;
    rules.data = "SSND";
    return find_chunk(source, rules, false);
  }
  if (starts(0, "caff")) {
    rules.first = 8;
    rules.size_bytes = 8;
    rules.big_endian = true;
    rules.alignment = 1;
    return find_chunk(source, rules, false);
  }
  if (starts(0, ".snd") || starts(0, "dns.")) return find_au_data(source, starts(0, ".snd"));
  if (starts(0, "NIST_1A")) return find_sphere_data(source);
  return std::nullopt;
}

}  // namespace aerie::audio
