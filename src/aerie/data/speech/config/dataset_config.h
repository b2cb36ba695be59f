// One dataset node (`model.train_ds`, one loader of `model.validation_ds` or `model.test_ds`) with
// everything the data engine reads. Field names are NeMo's keys, defaults NeMo's code defaults (the
// stock YAML sets many of them explicitly). Durations in seconds, levels in dB.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace aerie::config {

// A path argument that may be a string, a list, or a list of lists (outer = buckets or datasets).
// The spelling is kept: comma lists and brace patterns are expanded by the data engine, which knows
// whether the data is tarred. A plain string or list gives one group per outer element.
struct PathList {
  std::vector<std::vector<std::string>> groups;
  bool is_list = false;     // a list was written, not one string
  bool is_nested = false;   // ... and its elements were lists
  bool is_missing = false;  // written as ???, never filled in
  std::string origin;       // "file:line" or "command line" for messages

  bool empty() const { return groups.empty(); }
  std::vector<std::string> flat() const {
    std::vector<std::string> all;
    for (const auto& group : groups) all.insert(all.end(), group.begin(), group.end());
    return all;
  }
  bool operator==(const PathList&) const = default;
};

struct ChannelSelector {
  enum class Kind { kAll, kIndices, kAverage };
  Kind kind = Kind::kAll;
  std::vector<int64_t> indices;  // kIndices: one for an int, several for a list
  bool operator==(const ChannelSelector&) const = default;
};

// SpeakerNoiseAugmentation and MultiSpeakerNoiseAugmentation.
struct BatchAugmentorConfig {
  enum class Kind { kSpeakerNoise, kMultiSpeakerNoise };
  Kind kind = Kind::kMultiSpeakerNoise;
  double prob = 0.0;
  double noise_ratio = 0.0;
  double min_r_speech = -5.0;
  double max_r_speech = 5.0;
  double min_r_noise = -5.0;
  double max_r_noise = 20.0;
  double min_mix_rate = 0.0;
  double max_mix_rate = 1.0;
  int64_t min_num_segments = 1;  // the Multi kind only, from here
  int64_t max_num_segments = 5;
  int64_t min_num_speakers = 1;
  int64_t max_num_speakers = 4;
  bool operator==(const BatchAugmentorConfig&) const = default;
};

// `augmentor`: perturbations of one utterance, applied in the order written, each with its prob.
struct SpeedPerturbation {
  int64_t sr = 16000;
  std::string resample_type = "kaiser_best";
  double min_speed_rate = 0.9;
  double max_speed_rate = 1.1;
  int64_t num_rates = 5;  // negative: continuous
  bool operator==(const SpeedPerturbation&) const = default;
};
struct GainPerturbation {
  double min_gain_dbfs = -10;
  double max_gain_dbfs = 10;
  bool operator==(const GainPerturbation&) const = default;
};
struct ShiftPerturbation {
  double min_shift_ms = -5.0;
  double max_shift_ms = 5.0;
  bool operator==(const ShiftPerturbation&) const = default;
};
struct WhiteNoisePerturbation {
  int64_t min_level = -90;  // dB, drawn as an integer from [min_level, max_level)
  int64_t max_level = -46;
  bool operator==(const WhiteNoisePerturbation&) const = default;
};
struct PerturbationConfig {
  std::string name;  // speed | gain | shift | white_noise
  double prob = 0.0;
  std::variant<SpeedPerturbation, GainPerturbation, ShiftPerturbation, WhiteNoisePerturbation>
      params;
  bool operator==(const PerturbationConfig&) const = default;
};

enum class ConcatTechnique { kTemperature, kRandom, kRoundRobin };
enum class ShardStrategy { kScatter, kReplicate };
enum class BucketingStrategy { kFixedOrder, kSyncedRandomized, kFullyRandomized };

struct DatasetConfig {
  static constexpr int64_t kAutoWorkers = -1;

  // 2.1-2.5 manifest, decoding, loader
  std::string name;  // validation and test: names the metric; empty: from the manifest's file name
  PathList manifest_filepath;
  PathList noise_manifest;
  int64_t sample_rate = 16000;
  std::optional<int64_t> batch_size;  // null only with use_lhotse
  bool auto_batch_size = false;       // `auto`: batch_size is null until a search has found it
  bool shuffle = false;
  bool drop_last = false;
  int64_t num_workers = 0;  // kAutoWorkers for "auto"
  bool pin_memory = false;
  std::optional<int64_t> prefetch_factor;  // null: 2, or nothing without workers
  bool persistent_workers = false;
  std::optional<double> min_duration;
  std::optional<double> max_duration;
  bool trim_silence = false;
  bool int_values = false;
  ChannelSelector channel_selector;
  bool defer_setup = false;
  std::optional<BatchAugmentorConfig> batch_augmentor;
  std::vector<PerturbationConfig> augmentor;

  // 2.7 mixtures
  bool is_concat = false;
  ConcatTechnique concat_sampling_technique = ConcatTechnique::kTemperature;
  double concat_sampling_temperature = 5.0;
  std::vector<double> concat_sampling_probabilities;  // empty: uniform
  int64_t concat_sampling_scale = 1;
  bool concat_shuffle = true;
  std::optional<int64_t> concat_sampling_seed;

  // 2.8 tar shards
  bool is_tarred = false;
  PathList tarred_audio_filepaths;
  std::optional<int64_t> shuffle_n;  // null: 4 * batch_size; always 0 when shuffle is false
  ShardStrategy tarred_shard_strategy = ShardStrategy::kScatter;

  // 2.9 classic bucketing
  BucketingStrategy bucketing_strategy = BucketingStrategy::kSyncedRandomized;
  std::vector<int64_t> bucketing_weights;     // empty: 1 each
  std::vector<int64_t> bucketing_batch_size;  // one value: the linear rule; several: per bucket
  bool bucketing_batch_size_is_list = false;

  // 2.10 Lhotse's keys, read as a request for duration bucketing
  bool use_lhotse = false;
  std::optional<double> batch_duration;
  std::optional<double> quadratic_duration;
  bool use_bucketing = false;
  int64_t num_buckets = 30;
  std::vector<double> bucket_duration_bins;  // empty: estimated
  std::vector<int64_t> bucket_batch_size;    // empty: none
  int64_t num_cuts_for_bins_estimate = 10000;
  int64_t bucket_buffer_size = 10000;
  int64_t shuffle_buffer_size = 10000;
  std::optional<int64_t> seed;  // null: aerie.seed ("trng" and "randomized" mean the same here)
  bool skip_missing_manifest_entries = false;
  bool force_finite = false;
  bool operator==(const DatasetConfig&) const = default;
};

// The data sets of a `model:` node.
struct SpeechDatasets {
  DatasetConfig train_ds;
  // One entry per loader: NeMo makes one of each manifest of a list. Names are filled in (NeMo's
  // rule: file stem, '-' to '_', without "manifest" and "dataset", ending in '_'; empty with one
  // loader and no explicit name). Empty vector: no such node, or its manifest is null.
  std::vector<DatasetConfig> validation_ds;
  std::vector<DatasetConfig> test_ds;
  int64_t val_dl_idx = 0;  // the loader whose loss is val_loss
  int64_t test_dl_idx = 0;
  bool operator==(const SpeechDatasets&) const = default;
};

}  // namespace aerie::config
