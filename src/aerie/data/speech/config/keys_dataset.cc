// The keys of `model.train_ds`, `model.validation_ds` and `model.test_ds`.
#include "aerie/base/strings.h"
#include "aerie/config/schema/field_keys.h"
#include "aerie/data/speech/config/path_list.h"
#include "aerie/data/speech/config/speech_keys.h"

namespace aerie::config {
namespace {

constexpr std::string_view kPaths = "str|list[str]|list[list[str]]|null";
constexpr std::string_view kLhotseInput =
    "aerie reads NeMo manifests and tarred sets: use manifest_filepath (and "
    "tarred_audio_filepaths)";
constexpr std::string_view kLhotseAug =
    "this Lhotse transform is not built in; augment with batch_augmentor or augmentor";
constexpr std::string_view kText = "NEST reads no transcripts";

// `???` must be remembered here, which NodeReader::find() hides.
template <PathList DatasetConfig::*kField>
void read_paths(const NodeReader& node, std::string_view key, DatasetConfig& out) {
  const Value* value = node.is_map() ? node.node()->child(key) : nullptr;
  if (value == nullptr) return;
  auto parsed = parse_path_list(*value);
  if (parsed.ok())
    out.*kField = std::move(parsed).value();
  else
    node.fail(key, *value, parsed.status().message());
}

// A list names the loaders of a list of manifests: build_loaders() reads it.
void read_name(const NodeReader& node, std::string_view key, DatasetConfig& out) {
  if (const Value* name = node.find(key); name && name->is_string()) out.name = name->as_string();
}

void read_workers(const NodeReader& node, std::string_view key, DatasetConfig& out) {
  if (const Value* workers = node.find(key); workers && workers->is_string())
    out.num_workers = DatasetConfig::kAutoWorkers;
  else
    node.read(key, out.num_workers);
}

void read_batch_size(const NodeReader& node, std::string_view key, DatasetConfig& out) {
  if (const Value* size = node.find(key); size && size->is_string())
    out.auto_batch_size = true;
  else
    node.read(key, out.batch_size);
}

void read_channels(const NodeReader& node, std::string_view key, DatasetConfig& out) {
  const Value* value = node.find(key);
  if (value == nullptr || value->is_null()) return;
  if (value->is_string()) {
    out.channel_selector.kind = ChannelSelector::Kind::kAverage;
    return;
  }
  out.channel_selector.kind = ChannelSelector::Kind::kIndices;
  node.read(key, out.channel_selector.indices);
}

void read_technique(const NodeReader& node, std::string_view key, DatasetConfig& out) {
  if (const Value* value = node.find(key); value && value->is_null())
    out.concat_sampling_technique = ConcatTechnique::kRoundRobin;
  node.read_enum(key, out.concat_sampling_technique,
                 {{"temperature", ConcatTechnique::kTemperature},
                  {"random", ConcatTechnique::kRandom},
                  {"round-robin", ConcatTechnique::kRoundRobin}});
}

void read_bucket_sizes(const NodeReader& node, std::string_view key, DatasetConfig& out) {
  node.read(key, out.bucketing_batch_size);
  if (const Value* sizes = node.find(key)) out.bucketing_batch_size_is_list = sizes->is_list();
}

void read_seed(const NodeReader& node, std::string_view key, DatasetConfig& out) {
  if (const Value* seed = node.find(key); seed && seed->is_number()) node.read(key, out.seed);
}

void read_random_access(const NodeReader& node, std::string_view key, DatasetConfig& out) {
  bool random_access = false;
  node.read(key, random_access);
  out.skip_missing_manifest_entries = out.skip_missing_manifest_entries || random_access;
}

void read_kind(const NodeReader& node, std::string_view key, BatchAugmentorConfig& out) {
  const Value* target = node.find(key);
  if (target == nullptr || !target->is_string()) return;
  const std::string_view found =
      find_target(speech_targets(), "model.<ds>.batch_augmentor", target->as_string());
  out.kind = found == "SpeakerNoiseAugmentation" ? BatchAugmentorConfig::Kind::kSpeakerNoise
                                                 : BatchAugmentorConfig::Kind::kMultiSpeakerNoise;
}

const FieldKeys<BatchAugmentorConfig>& batch_augmentor_keys() {
  using T = BatchAugmentorConfig;
  static const FieldKeys<T> table("model.<ds>.batch_augmentor", [](FieldKeys<T>& keys) {
    keys.row("_target_", "str",
             "nemo.collections.asr.modules.ssl_modules.MultiSpeakerNoiseAugmentation",
             works("Class of the augmentation: SpeakerNoiseAugmentation or "
                   "MultiSpeakerNoiseAugmentation."),
             read_kind);
    keys.key("prob", &T::prob, works("Share of utterances that are mixed.").range("[0,1]"));
    keys.key("noise_ratio", &T::noise_ratio,
             works("Of those, the share that gets noise; the others get speech.").range("[0,1]"));
    keys.key("min_r_speech", &T::min_r_speech,
             works("Least ratio of the utterance to mixed-in speech, in dB."));
    keys.key("max_r_speech", &T::max_r_speech,
             works("Largest ratio of the utterance to mixed-in speech, in dB."));
    keys.key("min_r_noise", &T::min_r_noise,
             works("Least ratio of the utterance to mixed-in noise, in dB."));
    keys.key("max_r_noise", &T::max_r_noise,
             works("Largest ratio of the utterance to mixed-in noise, in dB."));
    keys.key("min_mix_rate", &T::min_mix_rate,
             works("Least share of the utterance that is mixed.").range("[0,1]"));
    keys.key("max_mix_rate", &T::max_mix_rate,
             works("Largest share of the utterance that is mixed.").range("[0,1]"));
    keys.key(
        "min_num_segments", &T::min_num_segments,
        works("Least number of pieces the mixed part is made of (Multi only).").range("[1,1e9]"));
    keys.key(
        "max_num_segments", &T::max_num_segments,
        works("Largest number of pieces the mixed part is made of (Multi only).").range("[1,1e9]"));
    keys.key("min_num_speakers", &T::min_num_speakers,
             works("Least number of other speakers in a mixture (Multi only).").range("[1,1e9]"));
    keys.key("max_num_speakers", &T::max_num_speakers,
             works("Largest number of other speakers in a mixture (Multi only).").range("[1,1e9]"));
  });
  return table;
}

const FieldKeys<SpeedPerturbation>& speed_keys() {
  using T = SpeedPerturbation;
  static const FieldKeys<T> table("model.<ds>.augmentor.speed", [](FieldKeys<T>& keys) {
    keys.row("prob", "float", "",
             works("Share of utterances whose speed is changed.").range("[0,1]").required());
    keys.key("sr", &T::sr, works("Sample rate of the audio in Hz.").range("[1,1e9]"));
    keys.key("resample_type", &T::resample_type, works("Accepted; soxr HQ does the work."));
    keys.key("min_speed_rate", &T::min_speed_rate,
             works("Slowest speed; 1 is unchanged.").range(">0"));
    keys.key("max_speed_rate", &T::max_speed_rate,
             works("Fastest speed; 1 is unchanged.").range(">0"));
    keys.key("num_rates", &T::num_rates,
             works("Evenly spaced rates to choose from; negative: any rate."));
  });
  return table;
}

const FieldKeys<GainPerturbation>& gain_keys() {
  using T = GainPerturbation;
  static const FieldKeys<T> table("model.<ds>.augmentor.gain", [](FieldKeys<T>& keys) {
    keys.row("prob", "float", "",
             works("Share of utterances that get a gain.").range("[0,1]").required());
    keys.key("min_gain_dbfs", &T::min_gain_dbfs, works("Least gain, in dB.").whole());
    keys.key("max_gain_dbfs", &T::max_gain_dbfs, works("Largest gain, in dB.").whole());
  });
  return table;
}

const FieldKeys<ShiftPerturbation>& shift_keys() {
  using T = ShiftPerturbation;
  static const FieldKeys<T> table("model.<ds>.augmentor.shift", [](FieldKeys<T>& keys) {
    keys.row("prob", "float", "",
             works("Share of utterances that are shifted.").range("[0,1]").required());
    keys.key("min_shift_ms", &T::min_shift_ms,
             works("Least shift in milliseconds; negative: to the left."));
    keys.key("max_shift_ms", &T::max_shift_ms, works("Largest shift in milliseconds."));
  });
  return table;
}

const FieldKeys<WhiteNoisePerturbation>& white_noise_keys() {
  using T = WhiteNoisePerturbation;
  static const FieldKeys<T> table("model.<ds>.augmentor.white_noise", [](FieldKeys<T>& keys) {
    keys.row("prob", "float", "",
             works("Share of utterances that get noise.").range("[0,1]").required());
    keys.key("min_level", &T::min_level, works("Lowest level of the noise, in dB."));
    keys.key("max_level", &T::max_level, works("Highest level of the noise, in dB (excluded)."));
  });
  return table;
}

void read_batch_augmentor(const NodeReader& node, std::string_view key, DatasetConfig& out) {
  if (!node.child(key).is_map()) return;
  out.batch_augmentor.emplace();
  batch_augmentor_keys().read(node.child(key), *out.batch_augmentor);
}

template <typename Params>
void read_params(const NodeReader& node, const FieldKeys<Params>& keys, PerturbationConfig& out) {
  Params params;
  keys.read(node, params);
  out.params = std::move(params);
}

// In the order written.
void read_augmentor(const NodeReader& node, std::string_view key, DatasetConfig& out) {
  const NodeReader all = node.child(key);
  if (!all.is_map()) return;
  for (const MapEntry& entry : all.node()->as_map()) {
    const NodeReader item = all.child(entry.key);
    if (!item.is_map()) continue;
    PerturbationConfig one;
    one.name = entry.key;
    item.read("prob", one.prob);
    if (entry.key == "speed") {
      read_params(item, speed_keys(), one);
    } else if (entry.key == "gain") {
      read_params(item, gain_keys(), one);
    } else if (entry.key == "shift") {
      read_params(item, shift_keys(), one);
    } else if (entry.key == "white_noise") {
      read_params(item, white_noise_keys(), one);
    } else {
      item.fail("prob", entry.value, str_cat("perturbation '", entry.key, "' is not built in"));
      continue;
    }
    out.augmentor.push_back(std::move(one));
  }
}

}  // namespace

const FieldKeys<DatasetConfig>& dataset_fields() {
  using T = DatasetConfig;
  static const FieldKeys<T> table("model.<ds>", [](FieldKeys<T>& keys) {
    // Manifest, decoding, loader.
    keys.row("manifest_filepath", kPaths, "null",
             works("JSON-lines manifest: one, a comma-separated list, a list, or a list of lists "
                   "(buckets). "
                   "validation_ds, test_ds: every element of a list becomes a loader of its own."),
             read_paths<&T::manifest_filepath>);
    keys.row("noise_manifest", "str|list[str]|null", "null",
             works("Manifest of noise recordings; null: no noise."),
             read_paths<&T::noise_manifest>);
    keys.key("sample_rate", &T::sample_rate,
             works("Hz; audio of another rate is resampled. Absent: model.sample_rate.")
                 .range("[1,1e9]"));
    keys.row(
        "batch_size", "int|str|null", "null",
        works("Utterances per device and step; may be null with batch_duration or "
              "bucket_batch_size. train_ds: `auto` finds the largest that leaves 10 to 20 % of "
              "the GPU's memory free (per bucket with use_bucketing), on a CPU the one past "
              "which throughput no longer grows; a resumed run keeps it.")
            .range("[1,1048576]")
            .choices("auto"),
        read_batch_size);
    keys.key("shuffle", &T::shuffle, works("New order in every epoch."));
    keys.key("drop_last", &T::drop_last, works("Leave out a last partial batch."));
    keys.row("num_workers", "int|str", "0",
             works("Loader threads; 0 loads in the training thread; `auto` finds the smallest "
                   "number that keeps "
                   "the step fed.")
                 .range("[0,1024]")
                 .choices("auto"),
             read_workers);
    keys.key("pin_memory", &T::pin_memory,
             works("Batches in page-locked memory, copied while the GPU works."));
    keys.key("prefetch_factor", &T::prefetch_factor,
             works("Batches each worker prepares ahead; null: 2. Must be null with 0 workers.")
                 .range("[1,1024]"));
    keys.key("persistent_workers", &T::persistent_workers,
             no_effect("Loader threads always stay between epochs; must be false with 0 workers, "
                       "as in torch."));
    keys.key("min_duration", &T::min_duration,
             works("Seconds; shorter entries are left out (equal ones stay).").range("[-inf,inf]"));
    keys.key("max_duration", &T::max_duration,
             works("Seconds; longer entries are left out (equal ones stay).").range("[-inf,inf]"));
    keys.key("trim_silence", &T::trim_silence, works("Cut leading and trailing silence (60 dB)."));
    keys.key("int_values", &T::int_values,
             works("Decode through 32-bit integers; PCM gives the same numbers."));
    keys.row("channel_selector", "int|str|list[int]|null", "null",
             works("Channel, channels, or `average`; also for tarred data.")
                 .range("[0,1e9]")
                 .choices("average"),
             read_channels);
    keys.row("name", "str|list[str]|null", "null",
             works("validation_ds, test_ds: names of the loaders in metrics; null: from the "
                   "manifests' names."),
             read_name);
    keys.row("val_dl_idx", "int", "0",
             works("validation_ds: the loader whose loss is `val_loss`."));
    keys.row("test_dl_idx", "int", "0", works("test_ds: the loader whose loss is `test_loss`."));
    keys.row("ds_item", "list[map]|null", "null",
             works("validation_ds, test_ds: a list of complete data set nodes, one per loader."));
    keys.key(
        "defer_setup", &T::defer_setup,
        no_effect(
            "NeMo needs it for sharded manifests; here they are always expanded late enough."));
    keys.row("use_start_end_token", "bool", "false", no_effect(kText));
    keys.row("labels", "any", "null", no_effect(kText));
    keys.row("parser", "str|null", "en", no_effect(kText));
    keys.row("max_utts", "int", "0",
             refused("Stop after so many utterances.",
                     "NEST's loader in NeMo ignores it; use trainer.limit_train_batches")
                 .range("[0,1e9]"));
    keys.row("return_sample_id", "bool", "false",
             no_effect("Batches always carry their sample ids."));
    keys.row("blank_index", "int", "-1", no_effect(kText));
    keys.row("unk_index", "int", "-1", no_effect(kText));
    keys.row("normalize_transcripts", "bool", "false", no_effect(kText));
    keys.row("use_dali", "bool", "false",
             refused("NVIDIA DALI's loader.", "aerie has its own loader; leave it false"));

    // Augmentation of a batch.
    keys.row("batch_augmentor", "map|null", "null",
             works("Mixes noise and other speakers into the utterances of a batch; null: adds the "
                   "sampled noise "
                   "as it is."),
             read_batch_augmentor);
    keys.rows_of(batch_augmentor_keys());

    // Perturbation of single utterances.
    keys.row("augmentor", "map|null", "null",
             works("Perturbations of single utterances, applied in the order written."),
             read_augmentor);
    keys.row("augmentor.speed", "map", "",
             works("Resamples to another speed; the pitch moves with it."));
    keys.rows_of(speed_keys());
    keys.row("augmentor.gain", "map", "",
             works("Makes utterances louder or softer by a gain in dB."));
    keys.rows_of(gain_keys());
    keys.row("augmentor.shift", "map", "",
             works("Shifts utterances in time; what is uncovered is silent."));
    keys.rows_of(shift_keys());
    keys.row("augmentor.white_noise", "map", "", works("Adds white noise of a random level."));
    keys.rows_of(white_noise_keys());
    keys.row("augmentor.time_stretch", "map", "",
             refused("Phase vocoder.", "not built in; speed, gain, shift and white_noise are"));
    keys.row("augmentor.silence", "map", "",
             refused("Added silence.", "not built in; speed, gain, shift and white_noise are"));
    keys.row(
        "augmentor.impulse", "map", "",
        refused("Room impulse responses.", "not built in; speed, gain, shift and white_noise are"));
    keys.row(
        "augmentor.noise", "map", "",
        refused("Recorded noise.", "not built in; noise_manifest with batch_augmentor adds noise"));
    keys.row(
        "augmentor.noise_norm", "map", "",
        refused("Recorded noise.", "not built in; noise_manifest with batch_augmentor adds noise"));
    keys.row("augmentor.rir_noise_aug", "map", "",
             refused("Rooms and noise.",
                     "not built in; noise_manifest with batch_augmentor adds noise"));
    keys.row("augmentor.transcode_aug", "map", "",
             refused("Codec artefacts.", "not built in; speed, gain, shift and white_noise are"));
    keys.row("augmentor.random_segment", "map", "",
             refused("A random cut.",
                     "not built in; cut the recordings with offset and duration in the manifest"));

    // Several data sets in one.
    keys.key("is_concat", &T::is_concat,
             works("Sample from the listed manifests instead of joining them."));
    keys.row("concat_sampling_technique", "str|null", "temperature",
             works("How the next data set is chosen; null: round-robin.")
                 .choices("temperature|random|round-robin"),
             read_technique);
    keys.key("concat_sampling_temperature", &T::concat_sampling_temperature,
             works("Shares are sizes to the power 1/temperature.").range(">0").whole());
    keys.key(
        "concat_sampling_probabilities", &T::concat_sampling_probabilities,
        works("Shares for `random`; they sum to 1. null: equal.").range("[0,1]").absent_is_null());
    keys.key("concat_sampling_scale", &T::concat_sampling_scale,
             works("Length of an epoch, times the sum of the sizes.").range("[1,1e9]"));
    keys.key("concat_shuffle", &T::concat_shuffle, works("Shuffle inside each data set."));
    keys.key("concat_sampling_seed", &T::concat_sampling_seed,
             works("Own seed of the choice; null: from aerie.seed.").range(">=0"));

    // Tar shards.
    keys.key("is_tarred", &T::is_tarred, works("Audio lies in tar files."));
    keys.row("tarred_audio_filepaths", kPaths, "null",
             works("Tar files: a pattern with braces or `_OP_.._CL_`, a list, or a list of lists "
                   "(buckets)."),
             read_paths<&T::tarred_audio_filepaths>);
    keys.key("shuffle_n", &T::shuffle_n,
             works("Size of the shuffle buffer; null: 4 x batch_size; 0 when shuffle is false.")
                 .range("[0,1e9]"));
    keys.choice("tarred_shard_strategy", &T::tarred_shard_strategy,
                {{"scatter", ShardStrategy::kScatter}, {"replicate", ShardStrategy::kReplicate}},
                works("Each device its own shards, or all of them."));

    // Classic bucketing.
    keys.choice("bucketing_strategy", &T::bucketing_strategy,
                {{"fixed_order", BucketingStrategy::kFixedOrder},
                 {"synced_randomized", BucketingStrategy::kSyncedRandomized},
                 {"fully_randomized", BucketingStrategy::kFullyRandomized}},
                works("Order in which buckets are read: as listed, or shuffled, the same on every "
                      "device or not."));
    keys.key(
        "bucketing_weights", &T::bucketing_weights,
        works("How often each bucket is read in an epoch.").range("[1,1024]").absent_is_null());
    keys.row("bucketing_batch_size", "int|list[int]|null", "null",
             works("Batch size per bucket: a list, or n for (buckets - i) x n. Needs batch_size 1.")
                 .range("[1,1048576]"),
             read_bucket_sizes);

    // Lhotse's keys.
    keys.key("use_lhotse", &T::use_lhotse,
             works("Lhotse's keys below work without it; written as false it turns them off."));
    keys.key("batch_duration", &T::batch_duration,
             works("Seconds of audio per batch, padding included. Without buckets the clip that "
                   "goes over it is "
                   "still in the batch, as in Lhotse.")
                 .range(">0"));
    keys.key("quadratic_duration", &T::quadratic_duration,
             works("Counts an utterance of d seconds as d + d^2/q.").range(">0"));
    keys.key("use_bucketing", &T::use_bucketing,
             works("Put utterances of like duration together."));
    keys.key("num_buckets", &T::num_buckets,
             works("Buckets when bins are estimated.").range("[1,1e9]"));
    keys.key("bucket_duration_bins", &T::bucket_duration_bins,
             works("Upper bounds of the buckets in seconds; null: estimated from the manifest.")
                 .range(">0")
                 .absent_is_null());
    keys.key(
        "bucket_batch_size", &T::bucket_batch_size,
        works(
            "Batch size of each bucket: one per bin (longer utterances are left out), or one more.")
            .range("[1,1048576]")
            .absent_is_null());
    keys.key("num_cuts_for_bins_estimate", &T::num_cuts_for_bins_estimate,
             works("Utterances looked at for the estimate.").range("[1,1e9]"));
    keys.key("bucket_buffer_size", &T::bucket_buffer_size,
             works("Utterances held while filling buckets.").range("[1,1e9]"));
    keys.key("shuffle_buffer_size", &T::shuffle_buffer_size,
             works("Utterances held at a time for shuffling.").range("[0,1e9]").nullable());
    keys.row("seed", "int|str", "0",
             works("Added to aerie.seed; `trng` and `randomized` are not repeatable in Lhotse and "
                   "are 0 here.")
                 .range(">=0")
                 .choices("trng|randomized"),
             read_seed);
    keys.row("shard_seed", "int|str", "trng",
             no_effect("The order of shards follows aerie.seed.").choices("trng|randomized"));
    keys.key("skip_missing_manifest_entries", &T::skip_missing_manifest_entries,
             works("Tar members without manifest entry are fine."));
    keys.row("tarred_random_access", "bool", "false",
             no_effect("Old name of skip_missing_manifest_entries."), read_random_access);
    keys.key("force_finite", &T::force_finite, works("End after one pass over the data."));
    keys.row("concurrent_bucketing", "bool", "true", no_effect("Always so here."));
    keys.row("bucketing_2d_strict_mode", "bool", "true", no_effect(kText));
    keys.row("max_open_streams", "int|null", "null",
             no_effect("Streams are bounded by the loader itself.").range("[1,1e9]"));
    keys.row("cuda_expandable_segments", "bool", "true",
             no_effect("Memory is managed by the engine."));
    keys.row("force_map_dataset", "bool", "false", no_effect("There is one loader."));
    keys.row("force_iterable_dataset", "bool", "false", no_effect("There is one loader."));
    keys.row("metadata_only", "bool", "false", no_effect("Manifests are read lazily."));
    keys.row(
        "slice_length", "int|null", "null",
        no_effect("Samples are shuffled one by one, which slicing approximates.").range("[1,1e9]"));
    keys.row("input_cfg", "any", "null", refused("Lhotse's input description.", kLhotseInput));
    keys.row("cuts_path", "str|null", "null", refused("Lhotse cuts.", kLhotseInput));
    keys.row("shar_path", "any", "null", refused("Lhotse Shar.", kLhotseInput));
    keys.row("multi_config", "bool", "false",
             refused("Several samplers in one.", "not built in; is_concat mixes data sets"));
    keys.row(
        "sampler_fusion", "str", "round_robin",
        no_effect("Belongs to multi_config.").choices("round_robin|randomized_round_robin|zip"));
    keys.row("sampler_weights", "map|null", "null", no_effect("Belongs to multi_config."));
    keys.row("noise_path", "any", "null",
             refused("Lhotse's noise.", "use noise_manifest with batch_augmentor"));
    keys.row("noise_snr", "list[float]", "[10.0, 20.0]", no_effect("Belongs to noise_path."));
    keys.row("noise_mix_prob", "float", "0.5", no_effect("Belongs to noise_path.").range("[0,1]"));
    keys.row("perturb_speed", "bool", "false",
             refused("Speed perturbation.", "use augmentor.speed"));
    keys.row("concatenate_samples", "bool", "false", refused("Joined utterances.", kLhotseAug));
    keys.row("concatenate_gap_seconds", "float", "0.1",
             no_effect("Belongs to concatenate_samples.").range(">=0"));
    keys.row("concatenate_duration_factor", "float", "1.0",
             no_effect("Belongs to concatenate_samples.").range(">0"));
    keys.row("concatenate_merge_supervisions", "bool", "true",
             no_effect("Belongs to concatenate_samples."));
    keys.row("db_norm", "float|null", "-25.0", no_effect("Belongs to concatenate_samples."));
    keys.row("truncate_duration", "float|null", "null",
             refused("A cut of fixed length.", kLhotseAug).range(">0"));
    keys.row("truncate_offset_type", "str", "random",
             no_effect("Belongs to truncate_duration.").choices("random|start|end"));
    keys.row("cut_into_windows_duration", "float|null", "null",
             refused("Windows of fixed length.", kLhotseAug).range(">0"));
    keys.row("cut_into_windows_hop", "float|null", "null",
             no_effect("Belongs to cut_into_windows_duration.").range(">0"));
    keys.row("keep_excessive_supervisions", "bool", "true", no_effect(kText));
    keys.row("rir_enabled", "bool", "false", refused("Room impulse responses.", kLhotseAug));
    keys.row("rir_path", "str|null", "null", no_effect("Belongs to rir_enabled."));
    keys.row("rir_prob", "float", "0.5", no_effect("Belongs to rir_enabled.").range("[0,1]"));
    keys.row("pad_min_duration", "float|null", "null",
             refused("Padding of short audio.", "use aerie.data.min_audio_len_secs").range(">0"));
    keys.row("pad_direction", "str", "right",
             no_effect("Belongs to pad_min_duration.").choices("right|left|both|random"));
    keys.row("text_field", "str", "text", no_effect(kText));
    keys.row("lang_field", "str", "lang", no_effect(kText));
    keys.row("pretokenize", "bool", "true", no_effect(kText));
    keys.row("prompt_format", "str|null", "null", no_effect(kText));
    keys.row("use_multimodal_sampling", "bool", "false", refused("Text and audio.", kText));
    keys.row("audio_locator_tag", "str|null", "null", no_effect(kText));
    keys.row("token_equivalent_duration", "float|null", "null", no_effect(kText));
    keys.row("batch_tokens", "int|null", "null", refused("Tokens per batch.", kText));
    keys.row("quadratic_factor", "float|null", "null", no_effect(kText));
    keys.row("min_tps", "float", "-1", no_effect(kText));
    keys.row("max_tps", "any", ".inf", no_effect(kText));
    keys.row("min_tokens", "int|null", "null", no_effect(kText));
    keys.row("max_tokens", "int|null", "null", no_effect(kText));
    keys.row("measure_total_length", "bool", "true", no_effect(kText));
    keys.row("min_tpt", "float", "-1", no_effect(kText));
    keys.row("max_tpt", "any", ".inf", no_effect(kText));
  });
  return table;
}

}  // namespace aerie::config
