// Layout of the manifest index file; the page docs/formats/manifest_index.md describes it. Little
// endian only: aerie runs on nothing else.
#pragma once

#include <cstdint>

#include "aerie/base/sectioned_file.h"

namespace aerie::data::index_format {

constexpr char kMagic[8] = {'A', 'E', 'R', 'M', 'I', 'D', 'X', '\n'};
constexpr uint32_t kVersion = 1;
constexpr uint64_t kAlignment = kSectionAlignment;

enum SectionId : uint32_t {
  kDurations = 1,  // f64 per row, NaN: unknown
  kOffsets,        // f64 per row; absent when all are 0
  kNameEnds,       // u64 per row: end in kNames
  kDirIds,         // u32 per row: index into kDirEnds, 0xFFFFFFFF: none
  kNames,          // bytes
  kDirEnds,        // u64 per folder: end in kDirs
  kDirs,           // bytes
  kLineOffsets,    // u64 per row: byte offset of the line in the manifest
  kLineNumbers,    // u32 per row, 1 is the first line
  kFlags,          // u8 per row: 1 = list of files (names joined by zero bytes), 2 = has a channel
  kChannelRows,    // u32 per row with a channel, ascending
  kChannels,       // i32, parallel to kChannelRows
  kBadLines,       // per bad line: u32 line, u32 bytes, then the reason
  kNumSections = kBadLines,
};

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t num_sections;
  uint64_t file_bytes;
  uint64_t source_size;
  int64_t source_mtime_ns;
  uint64_t source_hash;
  uint64_t sample_hash;
  uint64_t num_rows;
  uint64_t num_dirs;
  uint64_t num_bad_lines;
  uint64_t table_hash;  // of the header with this field 0, and of the section table
};
static_assert(sizeof(Header) == 88);

using Section = SectionEntry;

// The bytes of the manifest that are hashed on every start: kSampleBlocks blocks, evenly spaced,
// the first and the last included; all of a file that is not larger than that.
constexpr uint64_t kSampleBlocks = 16;
constexpr uint64_t kSampleBlockBytes = 64 << 10;

}  // namespace aerie::data::index_format
