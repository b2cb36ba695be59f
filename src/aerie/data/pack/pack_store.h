// Reads a pack: all shards of a folder, mapped, found by key. Opening reads the indexes only;
// samples come straight from the page cache.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/data/pack/pack_format.h"

namespace aerie::data {

// One shard file. Immutable; any thread.
class PackShard {
 public:
  static Result<PackShard> open(const std::string& path, Env* env = nullptr);

  const std::string& path() const { return path_; }
  PackEncoding encoding() const { return encoding_; }
  int sample_rate() const { return sample_rate_; }
  std::string_view settings() const { return settings_; }
  uint64_t total_frames() const { return total_frames_; }
  size_t size() const { return num_entries_; }
  const PackEntry& entry(size_t i) const { return entries_[i]; }
  std::string_view name(size_t i) const;
  std::span<const uint8_t> data(size_t i) const;  // stored bytes, not verified

 private:
  std::string path_;
  MappedFile file_;
  const PackEntry* entries_ = nullptr;
  size_t num_entries_ = 0;
  std::string_view names_;
  std::string_view settings_;
  PackEncoding encoding_ = PackEncoding::kPcm16;
  int sample_rate_ = 0;
  uint64_t total_frames_ = 0;
};

struct PackLocation {
  uint32_t shard = 0;
  uint32_t entry = 0;
  bool operator==(const PackLocation&) const = default;
};

// A folder. Immutable; any thread. About 24 bytes of memory per sample beyond the mappings.
class PackSet {
 public:
  struct Options {
    // Shards with other settings or another rate are refused (empty, 0: anything, but all alike).
    std::string settings;
    int sample_rate = 0;
    bool skip_others = false;  // leave them out instead of refusing
    bool exact_only = false;   // leave out shards whose samples may have been rounded to 16 bits
    Env* env = nullptr;
  };
  // A folder without shards (or an absent one) gives an empty set.
  static Result<std::shared_ptr<const PackSet>> open(const std::string& dir,
                                                     const Options& options);

  size_t size() const { return table_.size(); }
  size_t num_shards() const { return shards_.size(); }
  size_t num_skipped() const { return num_skipped_; }  // shards of other settings
  const PackShard& shard(size_t i) const { return shards_[i]; }
  double total_s() const;
  // Of samples packed twice the one in the later shard.
  std::optional<PackLocation> find(const PackKey& key) const;
  const PackEntry& entry(PackLocation at) const { return shards_[at.shard].entry(at.entry); }
  std::string_view name(PackLocation at) const { return shards_[at.shard].name(at.entry); }
  // The stored bytes, once their checksum has been found right.
  Result<std::span<const uint8_t>> verified(PackLocation at) const;

 private:
  struct Row {
    PackKey key;
    PackLocation at;
  };
  std::vector<PackShard> shards_;
  std::vector<Row> table_;  // sorted by key
  size_t num_skipped_ = 0;
};

}  // namespace aerie::data
