// From a manifest to the entries of each shard: reading, filtering, shuffling and naming, with the
// rules of NeMo's convert_to_tarred_audio_dataset.py. No audio is opened here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"

namespace aerie::data {

// Options carry the converter's names; the defaults are its defaults.
struct ShardOptions {
  std::string manifest_path;
  std::string target_dir = "./tarred";
  int num_shards = -1;
  std::optional<double> min_duration_s;  // kept: min <= d
  std::optional<double> max_duration_s;  // kept: d < max
  bool shuffle = false;
  std::optional<uint64_t> shuffle_seed;  // Python's random.seed; without one 0 is used
  bool keep_files_together = false;
  bool sort_in_shards = false;
  bool slice_with_offset = false;
  int buckets_num = 1;
  int dynamic_buckets_num = 30;
  bool shard_manifests = true;
  std::string force_codec;  // "", wav, flac, ogg, opus, mp3
  bool only_manifests = false;
  bool dry_run = false;
  bool overwrite = false;  // replace a folder that already holds something
  // Every entry is decoded before anything is written. Those that cannot be read are left out, up
  // to this share of all; more of them are an error.
  bool check = true;
  double max_bad_fraction = 0.01;
  int workers = 1;
  Env* env = nullptr;
};
inline Env& env_of(const ShardOptions& options) {
  return options.env != nullptr ? *options.env : Env::real();
}

struct ShardEntry {
  std::string line;  // the manifest line
  uint32_t line_number = 0;
  std::string audio_path;  // where the file is
  double offset_s = 0.0;
  double duration_s = 0.0;
};

struct ShardBucket {
  std::string target_dir;
  std::optional<double> min_duration_s;
  std::optional<double> max_duration_s;
};

// One bucket unless buckets_num > 1: then `bucket<k>` folders that split [min, max] evenly.
Result<std::vector<ShardBucket>> plan_buckets(const ShardOptions& options);

// All entries of the manifest, in order, with their files found. Errors name every bad line (the
// first 20 of them).
Result<std::vector<ShardEntry>> read_shard_entries(const ShardOptions& options);

// Whether the duration filter of a bucket lets an entry in.
bool is_in_bucket(const ShardEntry& entry, const ShardBucket& bucket);

struct ShardSelection {
  std::vector<const ShardEntry*> entries;  // filtered, shuffled
  double kept_s = 0.0;
  uint64_t num_filtered = 0;
  double filtered_s = 0.0;
};
ShardSelection select_entries(const std::vector<ShardEntry>& entries, const ShardBucket& bucket,
                              const ShardOptions& options);

// "dir/a.b/c.wav" -> base "dir_a_b_c", extension ".wav".
struct SquashedName {
  std::string base;
  std::string extension;
};
SquashedName squash_path(const std::string& audio_path);

// Durations that start each bucket but the first, as lhotse's estimate_duration_buckets gives them
// (equal seconds of audio per bucket). Empty when there are fewer durations than buckets.
std::vector<double> estimate_duration_bins(std::vector<double> durations_s, int num_buckets);

}  // namespace aerie::data
