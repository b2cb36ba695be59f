#include "aerie/data/speech/config/speech_schema.h"

#include "aerie/config/schema/field_keys.h"
#include "aerie/data/speech/config/speech_keys.h"

namespace aerie::config {
namespace {

const FieldKeys<AudioConfig>& audio_data_keys() {
  using T = AudioConfig;
  static const FieldKeys<T> table("aerie.data", [](FieldKeys<T>& keys) {
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
  });
  return table;
}

const FieldKeys<SpeechAerieConfig>& audio_keys() {
  using T = SpeechAerieConfig;
  static const FieldKeys<T> table("aerie", [](FieldKeys<T>& keys) {
    keys.choice(
        "on_bad_audio", &T::on_bad_audio,
        {{"skip", OnBadAudio::kSkip}, {"zero", OnBadAudio::kZero}, {"fail", OnBadAudio::kFail}},
        works("A recording that cannot be read: leave it out, use silence, or stop."));
    keys.key("max_bad_fraction", &T::max_bad_fraction,
             works("Stop when more than this share of the recordings was bad.").range("[0,1]"));
    keys.child("data", &T::audio, audio_data_keys());
  });
  return table;
}

}  // namespace

void add_speech_keys(SchemaParts& parts) {
  const std::span<const KeySpec> dataset = dataset_fields().rows();
  parts.insert_group("model.optim",
                     {"model.train_ds, model.validation_ds, model.test_ds",
                      "`<ds>` stands for any of the three. Defaults are NeMo's for a key that is "
                      "absent; the shipped files set many of them.",
                      {dataset.begin(), dataset.end()}});
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

void build_aerie_speech(const NodeReader& aerie, SpeechAerieConfig& out) {
  if (aerie.given("compat")) out.audio.shuffle_level = ShuffleLevel::kShard;
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
