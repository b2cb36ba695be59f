// Writes NeMo-compatible tarred data sets: audio_<i>.tar, tarred_audio_manifest.json,
// sharded_manifests/manifest_<i>.json and metadata.yaml, as NeMo's converter does.
//
// Where the converter loses data this one does not: slices and transcodes of lossless audio keep
// its samples bit for bit; the manifest names the member that was really written; two files whose
// names squash to the same text both get in. The folder appears under its name only when complete.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/data/speech/shard/shard_plan.h"

namespace aerie::data {

struct ShardBucketReport {
  std::string target_dir;
  uint64_t num_entries = 0;  // after the duration filter
  uint64_t num_filtered = 0;
  uint64_t num_written = 0;  // num_entries less the remainder
  uint64_t num_members = 0;  // files in the archives
  double kept_s = 0.0;
  double filtered_s = 0.0;
  uint64_t bytes = 0;  // of all archives
};

struct ShardReport {
  std::vector<ShardBucketReport> buckets;
  uint64_t num_bad = 0;          // entries that cannot be read: left out
  std::vector<std::string> bad;  // the first 100, with their reasons
};

struct ShardHooks {
  std::function<void(uint64_t total)> on_check;  // entries that will be decoded
  std::function<void()> on_checked;              // one of them is; any thread
  std::function<void(uint64_t total)> on_start;  // entries that will be written
  std::function<void()> on_entry;                // one entry is done; any thread
  std::function<bool()> stop;                    // true: give up, leave nothing behind
};

Result<ShardReport> write_tarred_dataset(const ShardOptions& options, const ShardHooks& hooks = {});

}  // namespace aerie::data
