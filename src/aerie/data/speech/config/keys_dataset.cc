// Rows of `model.train_ds`, `model.validation_ds` and `model.test_ds`, and those of the `aerie:`
// node that concern audio.
#include "aerie/config/schema/field_keys.h"
#include "aerie/config/schema/schema.h"
#include "aerie/data/speech/config/speech_keys.h"
#include "aerie/data/speech/config/speech_schema.h"

namespace aerie::config {
namespace {

constexpr KeyStatus kWorks = KeyStatus::kWorks;
constexpr KeyStatus kNoEffect = KeyStatus::kNoEffect;
constexpr KeyStatus kRefused = KeyStatus::kRefused;

constexpr std::string_view kPaths = "str|list[str]|list[list[str]]|null";
constexpr std::string_view kLhotseInput =
    "aerie reads NeMo manifests and tarred sets: use manifest_filepath (and "
    "tarred_audio_filepaths)";
constexpr std::string_view kLhotseAug =
    "this Lhotse transform is not built in; augment with batch_augmentor or augmentor";
constexpr std::string_view kText = "NEST reads no transcripts";

constexpr KeySpec kDataset[] = {
    // Manifest, decoding, loader.
    {"model.<ds>.manifest_filepath", kPaths, "null", "", "", kWorks,
     "JSON-lines manifest: one, a comma-separated list, a list, or a list of lists (buckets). "
     "validation_ds, test_ds: every element of a list becomes a loader of its own."},
    {"model.<ds>.noise_manifest", "str|list[str]|null", "null", "", "", kWorks,
     "Manifest of noise recordings; null: no noise."},
    {"model.<ds>.sample_rate", "int", "16000", "[1,1e9]", "", kWorks,
     "Hz; audio of another rate is resampled. Absent: model.sample_rate."},
    {"model.<ds>.batch_size", "int|null", "null", "[1,1048576]", "", kWorks,
     "Utterances per device and step; may be null with batch_duration or bucket_batch_size."},
    {"model.<ds>.shuffle", "bool", "false", "", "", kWorks, "New order in every epoch."},
    {"model.<ds>.drop_last", "bool", "false", "", "", kWorks, "Leave out a last partial batch."},
    {"model.<ds>.num_workers", "int|str", "0", "[0,1024]", "auto", kWorks,
     "Loader threads; 0 loads in the training thread; `auto` finds the smallest number that keeps "
     "the step fed."},
    {"model.<ds>.pin_memory", "bool", "false", "", "", kWorks,
     "Batches in page-locked memory, copied while the GPU works."},
    {"model.<ds>.prefetch_factor", "int|null", "null", "[1,1024]", "", kWorks,
     "Batches each worker prepares ahead; null: 2. Must be null with 0 workers."},
    {"model.<ds>.persistent_workers", "bool", "false", "", "", kNoEffect,
     "Loader threads always stay between epochs; must be false with 0 workers, as in torch."},
    {"model.<ds>.min_duration", "float|null", "null", "[-inf,inf]", "", kWorks,
     "Seconds; shorter entries are left out (equal ones stay)."},
    {"model.<ds>.max_duration", "float|null", "null", "[-inf,inf]", "", kWorks,
     "Seconds; longer entries are left out (equal ones stay)."},
    {"model.<ds>.trim_silence", "bool", "false", "", "", kWorks,
     "Cut leading and trailing silence (60 dB)."},
    {"model.<ds>.int_values", "bool", "false", "", "", kWorks,
     "Decode through 32-bit integers; PCM gives the same numbers."},
    {"model.<ds>.channel_selector", "int|str|list[int]|null", "null", "[0,1e9]", "average", kWorks,
     "Channel, channels, or `average`; also for tarred data."},
    {"model.<ds>.name", "str|list[str]|null", "null", "", "", kWorks,
     "validation_ds, test_ds: names of the loaders in metrics; null: from the manifests' names."},
    {"model.<ds>.val_dl_idx", "int", "0", "", "", kWorks,
     "validation_ds: the loader whose loss is `val_loss`."},
    {"model.<ds>.test_dl_idx", "int", "0", "", "", kWorks,
     "test_ds: the loader whose loss is `test_loss`."},
    {"model.<ds>.ds_item", "list[map]|null", "null", "", "", kWorks,
     "validation_ds, test_ds: a list of complete data set nodes, one per loader."},
    {"model.<ds>.defer_setup", "bool", "false", "", "", kNoEffect,
     "NeMo needs it for sharded manifests; here they are always expanded late enough."},
    {"model.<ds>.use_start_end_token", "bool", "false", "", "", kNoEffect, kText},
    {"model.<ds>.labels", "any", "null", "", "", kNoEffect, kText},
    {"model.<ds>.parser", "str|null", "en", "", "", kNoEffect, kText},
    {"model.<ds>.max_utts", "int", "0", "[0,1e9]", "", kRefused, "Stop after so many utterances.",
     "NEST's loader in NeMo ignores it; use trainer.limit_train_batches"},
    {"model.<ds>.return_sample_id", "bool", "false", "", "", kNoEffect,
     "Batches always carry their sample ids."},
    {"model.<ds>.blank_index", "int", "-1", "", "", kNoEffect, kText},
    {"model.<ds>.unk_index", "int", "-1", "", "", kNoEffect, kText},
    {"model.<ds>.normalize_transcripts", "bool", "false", "", "", kNoEffect, kText},
    {"model.<ds>.use_dali", "bool", "false", "", "", kRefused, "NVIDIA DALI's loader.",
     "aerie has its own loader; leave it false"},

    // Augmentation of a batch.
    {"model.<ds>.batch_augmentor", "map|null", "null", "", "", kWorks,
     "Mixes noise and other speakers into the utterances of a batch; null: adds the sampled noise "
     "as it is."},
    {"model.<ds>.batch_augmentor._target_", "str",
     "nemo.collections.asr.modules.ssl_modules.MultiSpeakerNoiseAugmentation", "", "", kWorks,
     "Class of the augmentation: SpeakerNoiseAugmentation or MultiSpeakerNoiseAugmentation."},
    {"model.<ds>.batch_augmentor.prob", "float", "0.0", "[0,1]", "", kWorks,
     "Share of utterances that are mixed."},
    {"model.<ds>.batch_augmentor.noise_ratio", "float", "0.0", "[0,1]", "", kWorks,
     "Of those, the share that gets noise; the others get speech."},
    {"model.<ds>.batch_augmentor.min_r_speech", "float", "-5.0", "", "", kWorks,
     "Least ratio of the utterance to mixed-in speech, in dB."},
    {"model.<ds>.batch_augmentor.max_r_speech", "float", "5.0", "", "", kWorks,
     "Largest ratio of the utterance to mixed-in speech, in dB."},
    {"model.<ds>.batch_augmentor.min_r_noise", "float", "-5.0", "", "", kWorks,
     "Least ratio of the utterance to mixed-in noise, in dB."},
    {"model.<ds>.batch_augmentor.max_r_noise", "float", "20.0", "", "", kWorks,
     "Largest ratio of the utterance to mixed-in noise, in dB."},
    {"model.<ds>.batch_augmentor.min_mix_rate", "float", "0.0", "[0,1]", "", kWorks,
     "Least share of the utterance that is mixed."},
    {"model.<ds>.batch_augmentor.max_mix_rate", "float", "1.0", "[0,1]", "", kWorks,
     "Largest share of the utterance that is mixed."},
    {"model.<ds>.batch_augmentor.min_num_segments", "int", "1", "[1,1e9]", "", kWorks,
     "Least number of pieces the mixed part is made of (Multi only)."},
    {"model.<ds>.batch_augmentor.max_num_segments", "int", "5", "[1,1e9]", "", kWorks,
     "Largest number of pieces the mixed part is made of (Multi only)."},
    {"model.<ds>.batch_augmentor.min_num_speakers", "int", "1", "[1,1e9]", "", kWorks,
     "Least number of other speakers in a mixture (Multi only)."},
    {"model.<ds>.batch_augmentor.max_num_speakers", "int", "4", "[1,1e9]", "", kWorks,
     "Largest number of other speakers in a mixture (Multi only)."},

    // Perturbation of single utterances.
    {"model.<ds>.augmentor", "map|null", "null", "", "", kWorks,
     "Perturbations of single utterances, applied in the order written."},
    {"model.<ds>.augmentor.speed", "map", "", "", "", kWorks,
     "Resamples to another speed; the pitch moves with it."},
    {"model.<ds>.augmentor.speed.prob", "float", kRequired, "[0,1]", "", kWorks,
     "Share of utterances whose speed is changed."},
    {"model.<ds>.augmentor.speed.sr", "int", "16000", "[1,1e9]", "", kWorks,
     "Sample rate of the audio in Hz."},
    {"model.<ds>.augmentor.speed.resample_type", "str", "kaiser_best", "", "", kWorks,
     "Accepted; soxr HQ does the work."},
    {"model.<ds>.augmentor.speed.min_speed_rate", "float", "0.9", ">0", "", kWorks,
     "Slowest speed; 1 is unchanged."},
    {"model.<ds>.augmentor.speed.max_speed_rate", "float", "1.1", ">0", "", kWorks,
     "Fastest speed; 1 is unchanged."},
    {"model.<ds>.augmentor.speed.num_rates", "int", "5", "", "", kWorks,
     "Evenly spaced rates to choose from; negative: any rate."},
    {"model.<ds>.augmentor.gain", "map", "", "", "", kWorks,
     "Makes utterances louder or softer by a gain in dB."},
    {"model.<ds>.augmentor.gain.prob", "float", kRequired, "[0,1]", "", kWorks,
     "Share of utterances that get a gain."},
    {"model.<ds>.augmentor.gain.min_gain_dbfs", "float", "-10", "", "", kWorks,
     "Least gain, in dB."},
    {"model.<ds>.augmentor.gain.max_gain_dbfs", "float", "10", "", "", kWorks,
     "Largest gain, in dB."},
    {"model.<ds>.augmentor.shift", "map", "", "", "", kWorks,
     "Shifts utterances in time; what is uncovered is silent."},
    {"model.<ds>.augmentor.shift.prob", "float", kRequired, "[0,1]", "", kWorks,
     "Share of utterances that are shifted."},
    {"model.<ds>.augmentor.shift.min_shift_ms", "float", "-5.0", "", "", kWorks,
     "Least shift in milliseconds; negative: to the left."},
    {"model.<ds>.augmentor.shift.max_shift_ms", "float", "5.0", "", "", kWorks,
     "Largest shift in milliseconds."},
    {"model.<ds>.augmentor.white_noise", "map", "", "", "", kWorks,
     "Adds white noise of a random level."},
    {"model.<ds>.augmentor.white_noise.prob", "float", kRequired, "[0,1]", "", kWorks,
     "Share of utterances that get noise."},
    {"model.<ds>.augmentor.white_noise.min_level", "int", "-90", "", "", kWorks,
     "Lowest level of the noise, in dB."},
    {"model.<ds>.augmentor.white_noise.max_level", "int", "-46", "", "", kWorks,
     "Highest level of the noise, in dB (excluded)."},
    {"model.<ds>.augmentor.time_stretch", "map", "", "", "", kRefused, "Phase vocoder.",
     "not built in; speed, gain, shift and white_noise are"},
    {"model.<ds>.augmentor.silence", "map", "", "", "", kRefused, "Added silence.",
     "not built in; speed, gain, shift and white_noise are"},
    {"model.<ds>.augmentor.impulse", "map", "", "", "", kRefused, "Room impulse responses.",
     "not built in; speed, gain, shift and white_noise are"},
    {"model.<ds>.augmentor.noise", "map", "", "", "", kRefused, "Recorded noise.",
     "not built in; noise_manifest with batch_augmentor adds noise"},
    {"model.<ds>.augmentor.noise_norm", "map", "", "", "", kRefused, "Recorded noise.",
     "not built in; noise_manifest with batch_augmentor adds noise"},
    {"model.<ds>.augmentor.rir_noise_aug", "map", "", "", "", kRefused, "Rooms and noise.",
     "not built in; noise_manifest with batch_augmentor adds noise"},
    {"model.<ds>.augmentor.transcode_aug", "map", "", "", "", kRefused, "Codec artefacts.",
     "not built in; speed, gain, shift and white_noise are"},
    {"model.<ds>.augmentor.random_segment", "map", "", "", "", kRefused, "A random cut.",
     "not built in; cut the recordings with offset and duration in the manifest"},

    // Several data sets in one.
    {"model.<ds>.is_concat", "bool", "false", "", "", kWorks,
     "Sample from the listed manifests instead of joining them."},
    {"model.<ds>.concat_sampling_technique", "str|null", "temperature", "",
     "temperature|random|round-robin", kWorks,
     "How the next data set is chosen; null: round-robin."},
    {"model.<ds>.concat_sampling_temperature", "float", "5", ">0", "", kWorks,
     "Shares are sizes to the power 1/temperature."},
    {"model.<ds>.concat_sampling_probabilities", "list[float]|null", "null", "[0,1]", "", kWorks,
     "Shares for `random`; they sum to 1. null: equal."},
    {"model.<ds>.concat_sampling_scale", "int", "1", "[1,1e9]", "", kWorks,
     "Length of an epoch, times the sum of the sizes."},
    {"model.<ds>.concat_shuffle", "bool", "true", "", "", kWorks, "Shuffle inside each data set."},
    {"model.<ds>.concat_sampling_seed", "int|null", "null", ">=0", "", kWorks,
     "Own seed of the choice; null: from aerie.seed."},

    // Tar shards.
    {"model.<ds>.is_tarred", "bool", "false", "", "", kWorks, "Audio lies in tar files."},
    {"model.<ds>.tarred_audio_filepaths", kPaths, "null", "", "", kWorks,
     "Tar files: a pattern with braces or `_OP_.._CL_`, a list, or a list of lists (buckets)."},
    {"model.<ds>.shuffle_n", "int|null", "null", "[0,1e9]", "", kWorks,
     "Size of the shuffle buffer; null: 4 x batch_size; 0 when shuffle is false."},
    {"model.<ds>.tarred_shard_strategy", "str", "scatter", "", "scatter|replicate", kWorks,
     "Each device its own shards, or all of them."},

    // Classic bucketing.
    {"model.<ds>.bucketing_strategy", "str", "synced_randomized", "",
     "fixed_order|synced_randomized|fully_randomized", kWorks,
     "Order in which buckets are read: as listed, or shuffled, the same on every device or not."},
    {"model.<ds>.bucketing_weights", "list[int]|null", "null", "[1,1024]", "", kWorks,
     "How often each bucket is read in an epoch."},
    {"model.<ds>.bucketing_batch_size", "int|list[int]|null", "null", "[1,1048576]", "", kWorks,
     "Batch size per bucket: a list, or n for (buckets - i) x n. Needs batch_size 1."},

    // Lhotse's keys.
    {"model.<ds>.use_lhotse", "bool", "false", "", "", kWorks,
     "Lhotse's keys below work without it; written as false it turns them off."},
    {"model.<ds>.batch_duration", "float|null", "null", ">0", "", kWorks,
     "Seconds of audio per batch, padding included. Without buckets the clip that goes over it is "
     "still in the batch, as in Lhotse."},
    {"model.<ds>.quadratic_duration", "float|null", "null", ">0", "", kWorks,
     "Counts an utterance of d seconds as d + d^2/q."},
    {"model.<ds>.use_bucketing", "bool", "false", "", "", kWorks,
     "Put utterances of like duration together."},
    {"model.<ds>.num_buckets", "int", "30", "[1,1e9]", "", kWorks,
     "Buckets when bins are estimated."},
    {"model.<ds>.bucket_duration_bins", "list[float]|null", "null", ">0", "", kWorks,
     "Upper bounds of the buckets in seconds; null: estimated from the manifest."},
    {"model.<ds>.bucket_batch_size", "list[int]|null", "null", "[1,1048576]", "", kWorks,
     "Batch size of each bucket: one per bin (longer utterances are left out), or one more."},
    {"model.<ds>.num_cuts_for_bins_estimate", "int", "10000", "[1,1e9]", "", kWorks,
     "Utterances looked at for the estimate."},
    {"model.<ds>.bucket_buffer_size", "int", "10000", "[1,1e9]", "", kWorks,
     "Utterances held while filling buckets."},
    {"model.<ds>.shuffle_buffer_size", "int|null", "10000", "[0,1e9]", "", kWorks,
     "Utterances held at a time for shuffling."},
    {"model.<ds>.seed", "int|str", "0", ">=0", "trng|randomized", kWorks,
     "Added to aerie.seed; `trng` and `randomized` are not repeatable in Lhotse and are 0 here."},
    {"model.<ds>.shard_seed", "int|str", "trng", "", "trng|randomized", kNoEffect,
     "The order of shards follows aerie.seed."},
    {"model.<ds>.skip_missing_manifest_entries", "bool", "false", "", "", kWorks,
     "Tar members without manifest entry are fine."},
    {"model.<ds>.tarred_random_access", "bool", "false", "", "", kNoEffect,
     "Old name of skip_missing_manifest_entries."},
    {"model.<ds>.force_finite", "bool", "false", "", "", kWorks,
     "End after one pass over the data."},
    {"model.<ds>.concurrent_bucketing", "bool", "true", "", "", kNoEffect, "Always so here."},
    {"model.<ds>.bucketing_2d_strict_mode", "bool", "true", "", "", kNoEffect, kText},
    {"model.<ds>.max_open_streams", "int|null", "null", "[1,1e9]", "", kNoEffect,
     "Streams are bounded by the loader itself."},
    {"model.<ds>.cuda_expandable_segments", "bool", "true", "", "", kNoEffect,
     "Memory is managed by the engine."},
    {"model.<ds>.force_map_dataset", "bool", "false", "", "", kNoEffect, "There is one loader."},
    {"model.<ds>.force_iterable_dataset", "bool", "false", "", "", kNoEffect,
     "There is one loader."},
    {"model.<ds>.metadata_only", "bool", "false", "", "", kNoEffect, "Manifests are read lazily."},
    {"model.<ds>.slice_length", "int|null", "null", "[1,1e9]", "", kNoEffect,
     "Samples are shuffled one by one, which slicing approximates."},
    {"model.<ds>.input_cfg", "any", "null", "", "", kRefused, "Lhotse's input description.",
     kLhotseInput},
    {"model.<ds>.cuts_path", "str|null", "null", "", "", kRefused, "Lhotse cuts.", kLhotseInput},
    {"model.<ds>.shar_path", "any", "null", "", "", kRefused, "Lhotse Shar.", kLhotseInput},
    {"model.<ds>.multi_config", "bool", "false", "", "", kRefused, "Several samplers in one.",
     "not built in; is_concat mixes data sets"},
    {"model.<ds>.sampler_fusion", "str", "round_robin", "",
     "round_robin|randomized_round_robin|zip", kNoEffect, "Belongs to multi_config."},
    {"model.<ds>.sampler_weights", "map|null", "null", "", "", kNoEffect,
     "Belongs to multi_config."},
    {"model.<ds>.noise_path", "any", "null", "", "", kRefused, "Lhotse's noise.",
     "use noise_manifest with batch_augmentor"},
    {"model.<ds>.noise_snr", "list[float]", "[10.0, 20.0]", "", "", kNoEffect,
     "Belongs to noise_path."},
    {"model.<ds>.noise_mix_prob", "float", "0.5", "[0,1]", "", kNoEffect, "Belongs to noise_path."},
    {"model.<ds>.perturb_speed", "bool", "false", "", "", kRefused, "Speed perturbation.",
     "use augmentor.speed"},
    {"model.<ds>.concatenate_samples", "bool", "false", "", "", kRefused, "Joined utterances.",
     kLhotseAug},
    {"model.<ds>.concatenate_gap_seconds", "float", "0.1", ">=0", "", kNoEffect,
     "Belongs to concatenate_samples."},
    {"model.<ds>.concatenate_duration_factor", "float", "1.0", ">0", "", kNoEffect,
     "Belongs to concatenate_samples."},
    {"model.<ds>.concatenate_merge_supervisions", "bool", "true", "", "", kNoEffect,
     "Belongs to concatenate_samples."},
    {"model.<ds>.db_norm", "float|null", "-25.0", "", "", kNoEffect,
     "Belongs to concatenate_samples."},
    {"model.<ds>.truncate_duration", "float|null", "null", ">0", "", kRefused,
     "A cut of fixed length.", kLhotseAug},
    {"model.<ds>.truncate_offset_type", "str", "random", "", "random|start|end", kNoEffect,
     "Belongs to truncate_duration."},
    {"model.<ds>.cut_into_windows_duration", "float|null", "null", ">0", "", kRefused,
     "Windows of fixed length.", kLhotseAug},
    {"model.<ds>.cut_into_windows_hop", "float|null", "null", ">0", "", kNoEffect,
     "Belongs to cut_into_windows_duration."},
    {"model.<ds>.keep_excessive_supervisions", "bool", "true", "", "", kNoEffect, kText},
    {"model.<ds>.rir_enabled", "bool", "false", "", "", kRefused, "Room impulse responses.",
     kLhotseAug},
    {"model.<ds>.rir_path", "str|null", "null", "", "", kNoEffect, "Belongs to rir_enabled."},
    {"model.<ds>.rir_prob", "float", "0.5", "[0,1]", "", kNoEffect, "Belongs to rir_enabled."},
    {"model.<ds>.pad_min_duration", "float|null", "null", ">0", "", kRefused,
     "Padding of short audio.", "use aerie.data.min_audio_len_secs"},
    {"model.<ds>.pad_direction", "str", "right", "", "right|left|both|random", kNoEffect,
     "Belongs to pad_min_duration."},
    {"model.<ds>.text_field", "str", "text", "", "", kNoEffect, kText},
    {"model.<ds>.lang_field", "str", "lang", "", "", kNoEffect, kText},
    {"model.<ds>.pretokenize", "bool", "true", "", "", kNoEffect, kText},
    {"model.<ds>.prompt_format", "str|null", "null", "", "", kNoEffect, kText},
    {"model.<ds>.use_multimodal_sampling", "bool", "false", "", "", kRefused, "Text and audio.",
     kText},
    {"model.<ds>.audio_locator_tag", "str|null", "null", "", "", kNoEffect, kText},
    {"model.<ds>.token_equivalent_duration", "float|null", "null", "", "", kNoEffect, kText},
    {"model.<ds>.batch_tokens", "int|null", "null", "", "", kRefused, "Tokens per batch.", kText},
    {"model.<ds>.quadratic_factor", "float|null", "null", "", "", kNoEffect, kText},
    {"model.<ds>.min_tps", "float", "-1", "", "", kNoEffect, kText},
    {"model.<ds>.max_tps", "any", ".inf", "", "", kNoEffect, kText},
    {"model.<ds>.min_tokens", "int|null", "null", "", "", kNoEffect, kText},
    {"model.<ds>.max_tokens", "int|null", "null", "", "", kNoEffect, kText},
    {"model.<ds>.measure_total_length", "bool", "true", "", "", kNoEffect, kText},
    {"model.<ds>.min_tpt", "float", "-1", "", "", kNoEffect, kText},
    {"model.<ds>.max_tpt", "any", ".inf", "", "", kNoEffect, kText},
};

const FieldKeys<AerieDataConfig>& audio_data_keys() {
  using T = AerieDataConfig;
  static const FieldKeys<T> kKeys = [] {
    FieldKeys<T> keys("aerie.data");
    keys.key("cache_dir", &T::cache_dir, works("Folder of the packed audio cache; null: none."));
    keys.key("build_cache", &T::build_cache,
             works("Fill cache_dir during the first epoch; audio is delivered in 16 bits from the "
                   "start (`aerie "
                   "data pack --encoding float32` keeps what is finer)."));
    keys.choice("cache_format", &T::cache_format,
                {{"pcm16", CacheFormat::kPcm16}, {"flac", CacheFormat::kFlac}},
                works("How build_cache stores audio: plain 16-bit samples, or FLAC (smaller, "
                      "decoded at every "
                      "read)."));
    keys.key("index_dir", &T::index_dir,
             works("Folder of manifest and tar indexes; null: beside the data, or the user's cache "
                   "folder where "
                   "that cannot be written."));
    keys.key("skip_bad_lines", &T::skip_bad_lines,
             works("Go on without manifest lines that are not valid; otherwise they end the run."));
    keys.choice(
        "shuffle_level", &T::shuffle_level,
        {{"sample", ShuffleLevel::kSample}, {"shard", ShuffleLevel::kShard}},
        works("What shuffle_n shuffles in tarred data; null: samples, or shards under compat.")
            .absent_is_null());
    keys.key("min_audio_len_secs", &T::min_audio_len_secs,
             works("Shorter audio is filled up to this length.").range(">=0"));
    keys.choice("pad_audio_mode", &T::pad_audio_mode,
                {{"repeat", PadAudioMode::kRepeat}, {"zero", PadAudioMode::kZero}},
                works("How short audio is filled up."));
    keys.choice("mix_on", &T::mix_on,
                {{"auto", MixOn::kAuto}, {"cpu", MixOn::kCpu}, {"gpu", MixOn::kGpu}},
                works("Where noise and speech are mixed; both give the same samples."));
    keys.choice(
        "batch_dtype", &T::batch_dtype,
        {{"auto", BatchDtype::kAuto},
         {"int16", BatchDtype::kInt16},
         {"float32", BatchDtype::kFloat32}},
        works(
            "How audio travels to the GPU: 16-bit samples are half the bytes and exact for 16-bit "
            "recordings at the model's rate. `auto`: float32."));
    return keys;
  }();
  return kKeys;
}

const FieldKeys<AerieConfig>& audio_keys() {
  using T = AerieConfig;
  static const FieldKeys<T> kKeys = [] {
    FieldKeys<T> keys("aerie");
    keys.choice(
        "on_bad_audio", &T::on_bad_audio,
        {{"skip", OnBadAudio::kSkip}, {"zero", OnBadAudio::kZero}, {"fail", OnBadAudio::kFail}},
        works("A recording that cannot be read: leave it out, use silence, or stop."));
    keys.key("max_bad_fraction", &T::max_bad_fraction,
             works("Stop when more than this share of the recordings was bad.").range("[0,1]"));
    keys.child("data", &T::data, audio_data_keys());
    return keys;
  }();
  return kKeys;
}

}  // namespace

void add_speech_keys(SchemaParts& parts) {
  parts.insert_group("model.optim",
                     {"model.train_ds, model.validation_ds, model.test_ds",
                      "`<ds>` stands for any of the three. Defaults are NeMo's for a key that is "
                      "absent; the shipped files set many of them.",
                      {std::begin(kDataset), std::end(kDataset)}});
  // Each beside what it goes with: bad recordings, files, batches.
  const std::span<const KeySpec> audio = audio_keys().rows();
  parts.insert_after("aerie.on_oom", audio.first(2));
  parts.insert_after("aerie.lightning_checkpoints", audio.subspan(2, 4));
  parts.insert_after("aerie.data.memory_budget_gib", audio.subspan(6));
  parts.placeholders.push_back({"<ds>", {"train_ds", "validation_ds", "test_ds"}});
  parts.shared.push_back({"model.<ds>.ds_item.*", "model.<ds>"});
  parts.not_for_training.push_back("model.test_ds");
  const std::span<const TargetClass> targets = speech_targets();
  parts.targets.insert(parts.targets.end(), targets.begin(), targets.end());
  const std::span<const IdleRule> rules = speech_idle_rules();
  parts.idle_rules.insert(parts.idle_rules.end(), rules.begin(), rules.end());
}

void build_aerie_speech(const NodeReader& aerie, AerieConfig& out) {
  if (aerie.given("compat")) out.data.shuffle_level = ShuffleLevel::kShard;
  audio_keys().read(aerie, out);
}

std::span<const TargetClass> speech_targets() {
  constexpr std::string_view kModules = "nemo.collections.asr.modules";
  constexpr std::string_view kSsl = "nemo.collections.asr.modules.ssl_modules";
  constexpr std::string_view kMixing = "nemo.collections.asr.modules.ssl_modules.augmentation";
  static const std::vector<TargetClass> kClasses = {
      {"model.<ds>.batch_augmentor", "MultiSpeakerNoiseAugmentation", {kSsl, kModules, kMixing}},
      {"model.<ds>.batch_augmentor", "SpeakerNoiseAugmentation", {kSsl, kModules, kMixing}},
  };
  return kClasses;
}

}  // namespace aerie::config
