// A manifest as columns in a memory-mapped file: durations, offsets, paths, line positions.
//
// Made once from the JSON lines and kept beside the manifest (".<name>.aerie-index") or in a cache
// folder; a later start maps it back and reads no JSON. It is believed only while the manifest has
// the same size and modification time and a sample of its bytes the same hash; with another time
// but the same size the whole file is hashed. About 40 bytes and the file name per line, in pages
// the kernel may drop. The format is docs/formats/manifest_index.md.
//
// Immutable: any thread may read. Strings returned as views live as long as the index.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"

namespace aerie::data {

struct BadLine {
  uint32_t line = 0;  // 1 is the first
  std::string reason;
};

class ManifestIndex {
 public:
  struct Options {
    std::string index_dir;  // where index files are kept; empty: beside the manifest
    bool use_cache = true;  // false: neither read nor write an index file
    Env* env = nullptr;     // null: the real file system
  };

  // From the index file when it fits, else from the JSON (and the index file is written; when that
  // fails, in `index_dir`, beside the manifest or in the user's cache folder, the index stays in
  // memory). Lines that are no usable JSON are in bad_lines(), not errors.
  static Result<std::shared_ptr<const ManifestIndex>> open(const std::string& path,
                                                           const Options& options);
  // Always from the JSON, nothing written.
  static Result<std::shared_ptr<const ManifestIndex>> build(const std::string& path,
                                                            Env* env = nullptr);

  const std::string& path() const { return path_; }  // as given, "~" expanded
  // Of the manifest's folder, with its closing "/"; empty for the working directory.
  const std::string& folder() const { return folder_; }
  // Its name is one of those whose entries without "/" are members of archives.
  bool names_tar_members() const { return names_tar_members_; }
  bool from_cache() const { return from_cache_; }
  uint64_t size() const { return num_rows_; }
  double duration_s(uint64_t row) const { return durations_[row]; }  // NaN: unknown
  double offset_s(uint64_t row) const { return offsets_.empty() ? 0.0 : offsets_[row]; }
  uint32_t line_number(uint64_t row) const { return line_numbers_[row]; }
  bool is_list(uint64_t row) const { return (flags_[row] & kFlagList) != 0; }
  int32_t channel(uint64_t row) const;                          // -1: not given
  bool has_channels() const { return !channel_rows_.empty(); }  // any row
  // The path as written in the manifest; for a list the first one.
  std::string written_path(uint64_t row) const;
  void assign_path(uint64_t row, std::string& out) const;  // replaces `out`, keeps its memory
  std::vector<std::string> written_paths(uint64_t row) const;
  std::string_view base_name(uint64_t row) const;  // last component of written_path
  std::span<const double> durations() const { return durations_; }
  const std::vector<BadLine>& bad_lines() const { return bad_lines_; }
  // XXH3-64 of the manifest's bytes: part of a run's fingerprint.
  uint64_t source_hash() const { return source_hash_; }
  // The line itself, for fields not kept here. Reads the manifest.
  Result<std::string> raw_line(uint64_t row) const;

  // "name:17" for messages.
  std::string place(uint64_t row) const;

  static std::string cache_file(const std::string& path, const std::string& index_dir);

 private:
  friend class ManifestIndexBuilder;
  static constexpr uint8_t kFlagList = 1;
  static constexpr uint8_t kFlagChannel = 2;
  static constexpr uint32_t kNoDir = 0xFFFFFFFFu;

  ManifestIndex() = default;
  // Checks everything and points the columns into `bytes`, which owner keeps alive.
  static Result<std::shared_ptr<ManifestIndex>> parse(std::string_view bytes,
                                                      std::shared_ptr<const void> owner);
  static Result<std::shared_ptr<ManifestIndex>> load(Env& env, const std::string& path,
                                                     const std::string& file);
  std::string_view name(uint64_t row) const;
  std::string_view dir(uint64_t row) const;

  std::shared_ptr<const void> owner_;
  Env* env_ = nullptr;
  void set_path(const std::string& path);

  std::string path_, folder_;
  bool names_tar_members_ = false;
  bool from_cache_ = false;
  uint64_t num_rows_ = 0;
  uint64_t source_size_ = 0;
  int64_t source_mtime_ns_ = 0;
  uint64_t source_hash_ = 0;
  uint64_t sample_hash_ = 0;
  std::span<const double> durations_, offsets_;
  std::span<const uint64_t> name_ends_, dir_ends_, line_offsets_;
  std::span<const uint32_t> dir_ids_, line_numbers_, channel_rows_;
  std::span<const int32_t> channels_;
  std::span<const uint8_t> flags_;
  std::string_view names_, dirs_;
  std::vector<BadLine> bad_lines_;
};

}  // namespace aerie::data
