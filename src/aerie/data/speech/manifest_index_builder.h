// Makes a ManifestIndex from JSON lines. Used by manifest_index.cc only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/sectioned_file.h"
#include "aerie/base/status.h"
#include "aerie/data/speech/manifest_index.h"
#include "aerie/data/speech/manifest_line.h"

namespace aerie::data {

// XXH3-64 of a whole file, and of the blocks that are checked on every start.
Result<uint64_t> full_hash(const RandomAccessFile& file);
Result<uint64_t> sampled_hash(const RandomAccessFile& file);

class ManifestIndexBuilder {
 public:
  // Reads the manifest once, in blocks.
  Status scan(Env& env, const std::string& path);
  // The index as bytes, or into a file under a temporary name that is renamed at the end.
  std::string serialize() const;
  Status write(Env& env, const std::string& file) const;

 private:
  void add_line(std::string_view line, uint64_t offset, uint32_t number);
  void reserve_for(uint64_t scanned_bytes);
  uint32_t dir_id(std::string_view dir);
  SectionedFile file() const;

  uint64_t source_size_ = 0;
  int64_t source_mtime_ns_ = 0;
  uint64_t source_hash_ = 0;
  uint64_t sample_hash_ = 0;
  bool any_offset_ = false;
  std::vector<double> durations_, offsets_;
  std::vector<uint64_t> name_ends_, dir_ends_, line_offsets_;
  std::vector<uint32_t> dir_ids_, line_numbers_, channel_rows_;
  std::vector<int32_t> channels_;
  std::vector<uint8_t> flags_;
  std::string names_, dirs_, bad_lines_;
  uint64_t num_bad_lines_ = 0;

  ManifestLineParser parser_;
  ManifestLine line_;
  std::unordered_map<std::string, uint32_t> dir_numbers_;
  std::string last_dir_;
  uint32_t last_dir_id_ = ManifestIndex::kNoDir;
};

}  // namespace aerie::data
