// Packs: many small things (decoded audio, pictures) in shard files that are mapped into memory and
// found by key. The bytes are described in docs/formats/pack.md.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace aerie::data {

// kPcm16 and kFlac round audio to 16 bits. kFloat32 keeps what is not exactly 16-bit as 32-bit
// floats. kBytes is whatever was given: files as they are.
enum class PackEncoding : uint32_t { kPcm16 = 0, kFlac = 1, kFloat32 = 2, kBytes = 3 };

// What a sample is found by: a hash of where it comes from and which part of it.
struct PackKey {
  uint64_t low = 0;
  uint64_t high = 0;
  auto operator<=>(const PackKey&) const = default;
};
struct PackKeyHash {
  size_t operator()(const PackKey& key) const { return key.low; }
};

// The state of the source when it was packed, to notice later changes. 0, 0: not known.
struct PackSourceStamp {
  uint64_t size = 0;
  int64_t mtime_ns = 0;
  bool operator==(const PackSourceStamp&) const = default;
};

// --- on disk, little endian ---

constexpr char kPackMagic[8] = {'A', 'E', 'R', 'P', 'A', 'C', 'K', '1'};
// 1: kPcm16 and kFlac, as every version writes them. 2: kFloat32 besides. 3: kBytes besides.
constexpr uint32_t kPackVersion = 1;
constexpr uint32_t kFloatPackVersion = 2;
constexpr uint32_t kBytesPackVersion = 3;
constexpr uint64_t kPackAlignment = 64;
constexpr std::string_view kPackSuffix = ".aerie-pack";
constexpr float kPackUnit = 1.0f / 32768.0f;

struct PackHead {
  char magic[8];
  uint32_t version;
  uint32_t encoding;
  uint32_t sample_rate;  // kBytes: 0
  uint32_t reserved[11];
};

struct PackEntry {
  PackKey key;
  uint64_t offset;     // of the data in the file, a multiple of kPackAlignment
  uint64_t bytes;      // stored
  uint64_t frames;     // samples after decoding; kBytes: the bytes
  uint64_t data_hash;  // XXH3-64 of the stored bytes
  PackSourceStamp source;
  float scale;           // value of one unit; 2^-15 unless the source was louder than full scale
  uint32_t name_offset;  // into the names; a name ends where the next begins
};

struct PackFooter {
  uint64_t num_entries;
  uint64_t index_offset;  // entries, then names, then settings, then this footer
  uint64_t names_bytes;
  uint64_t settings_bytes;
  uint64_t total_frames;
  uint64_t index_hash;  // XXH3-64 of entries, names and settings
  uint32_t encoding;
  uint32_t sample_rate;
  uint32_t version;
  uint32_t reserved;
  char magic[8];
  uint64_t footer_hash;  // XXH3-64 of everything above in the footer
};

static_assert(sizeof(PackHead) == 64 && sizeof(PackEntry) == 72 && sizeof(PackFooter) == 80);

}  // namespace aerie::data
