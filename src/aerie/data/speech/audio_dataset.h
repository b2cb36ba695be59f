// The samples of one dataset node, ready to be read: manifests joined with audio files or with the
// members of tar shards, filtered, in groups (buckets, members of a mixture).
//
// open() reads manifests and archive indexes and reports what does not fit together; audio is
// touched only by read(). Immutable afterwards and shared by all threads; each thread has its own
// SampleReader.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "aerie/audio/audio_reader.h"
#include "aerie/base/env.h"
#include "aerie/base/retry.h"
#include "aerie/base/status.h"
#include "aerie/data/dataset.h"
#include "aerie/data/speech/config/dataset_config.h"
#include "aerie/data/speech/config/speech_aerie_config.h"
#include "aerie/data/speech/manifest.h"
#include "aerie/data/speech/pack_cache.h"
#include "aerie/data/speech/tar_shards.h"

namespace aerie::data {

class AudioDataset;

// Buffers and decoders of one thread.
struct SampleReader {
  explicit SampleReader(const AudioDataset& dataset);
  audio::AudioReader audio;
  std::unique_ptr<PackReader> pack;  // null: nothing is packed
  std::shared_ptr<const PackSet> packed;
  uint64_t pack_version = 0;
  // What there is room for when a manifest line has no duration (audio::Segment); 70 minutes at
  // 16 kHz unless a batch decides.
  int64_t room_samples = int64_t{1} << 26;
  std::string path;
  std::vector<uint8_t> bytes;
  // A sample as a pack would keep it.
  std::vector<int16_t> pcm16;
  std::vector<float> floats;
};

class AudioDataset final : public Dataset {
 public:
  struct Options {
    Env* env = nullptr;
    bool quiet = false;
    int num_threads = 1;  // for indexing archives
    RetryPolicy retry;    // of reads that fail for a reason that passes
  };

  static Result<std::shared_ptr<const AudioDataset>> open(const config::DatasetConfig& config,
                                                          const config::SpeechAerieConfig& aerie,
                                                          const Options& options);

  const std::shared_ptr<const SampleSet>& samples() const override { return set_; }
  const Manifest& manifest() const { return manifest_; }
  const std::shared_ptr<const Manifest>& noise() const { return noise_; }  // null: none
  double duration_s(uint64_t i) const { return set_->lengths[i]; }         // NaN: unknown
  // Line of the manifest (kept lines counted over all of them): the id NeMo shows.
  uint32_t sample_id(uint64_t i) const override {
    return shards_ == nullptr ? static_cast<uint32_t>(i) : shards_->row(i);
  }
  // "train.json:17 (clips/a.wav)" for messages.
  std::string describe(uint64_t i) const override;
  uint64_t fingerprint() const override { return fingerprint_; }
  // Longest known duration; max_duration or 60 s when none is known.
  double longest_s() const { return longest_s_; }
  uint64_t num_unknown_durations() const { return num_unknown_; }
  const TarShards* shards() const { return shards_.get(); }
  // Decoded audio in aerie.data.cache_dir; null: not configured.
  PackCache* cache() const { return cache_.get(); }

  // How to read: resampling, channels, trimming, integer paths.
  audio::ReadOptions read_options() const { return read_options_; }
  // The samples of i as one channel, at least one of them; the view lives until the reader's next
  // call. Errors that pass (kUnavailable) have been tried again: nothing is wrong with the sample.
  Result<audio::AudioView> read(uint64_t i, SampleReader& reader) const;
  // A folder or file audio is read from, for judging the disk.
  uint64_t left_out() const override;
  std::string example_path() const override;
  std::string storage_advice(const StorageInfo& storage) const override;
  std::string config_node() const override { return "model.train_ds"; }
  std::string what_may_differ() const override {
    return "other manifests, or other min_duration or max_duration";
  }

 private:
  AudioDataset() = default;
  Status open_pack(const config::SpeechAerieConfig& aerie, const Options& options);
  Result<audio::AudioView> read_source(uint64_t i, SampleReader& reader) const;
  Result<audio::AudioView> read_once(uint64_t i, SampleReader& reader) const;
  // The sample from the packed cache, when it is there and its source has not changed.
  std::optional<audio::AudioView> read_packed(uint64_t i, SampleReader& reader) const;
  // Adds it to the packed cache when it is wanted there, and makes it what will be read from there.
  void add_to_cache(uint64_t i, SampleReader& reader, audio::AudioView& view) const;
  PackKey pack_key_of(uint64_t i, const std::string& source) const;

  std::shared_ptr<const SampleSet> set_;
  Manifest manifest_;
  std::shared_ptr<const Manifest> noise_;
  std::unique_ptr<TarShards> shards_;  // null: plain files
  std::unique_ptr<PackCache> cache_;
  Env* env_ = nullptr;
  RetryPolicy retry_;
  audio::ReadOptions read_options_;
  audio::ChannelSelector selector_;  // as configured
  bool warn_channels_ = false;
  bool has_channels_ = false;
  double longest_s_ = 0.0;
  uint64_t num_unknown_ = 0;
  uint64_t fingerprint_ = 0;
};

// Manifest names of the config, comma lists split and shard patterns expanded; per group.
Result<std::vector<std::vector<std::string>>> expand_manifests(const config::DatasetConfig& config);
Result<std::vector<std::string>> expand_noise_manifests(const config::DatasetConfig& config);

}  // namespace aerie::data
