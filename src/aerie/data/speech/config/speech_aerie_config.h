// The `aerie:` node with what speech data adds to it.
#pragma once

#include <string>

#include "aerie/config/schema/aerie_config.h"

namespace aerie::config {

enum class OnBadAudio { kSkip, kZero, kFail };
enum class ShuffleLevel { kSample, kShard };
enum class PadAudioMode { kRepeat, kZero };
enum class MixOn { kAuto, kCpu, kGpu };
enum class BatchDtype { kAuto, kInt16, kFloat32 };
enum class CacheFormat { kPcm16, kFlac };

// Keys of `aerie.data` that only audio has.
struct AudioConfig {
  std::string cache_dir;     // packed audio and indexes; empty: none
  bool build_cache = false;  // fill cache_dir during the first epoch
  CacheFormat cache_format = CacheFormat::kPcm16;
  std::string index_dir;        // empty: beside the manifest, else the user's cache
  bool skip_bad_lines = false;  // manifest lines that are not JSON
  ShuffleLevel shuffle_level = ShuffleLevel::kSample;  // compat: kShard unless set
  double min_audio_len_secs = 1.0;                     // shorter audio is filled up to this
  PadAudioMode pad_audio_mode = PadAudioMode::kRepeat;
  MixOn mix_on = MixOn::kAuto;
  BatchDtype batch_dtype = BatchDtype::kAuto;
  bool operator==(const AudioConfig&) const = default;
};

struct SpeechAerieConfig : AerieConfig {
  OnBadAudio on_bad_audio = OnBadAudio::kSkip;
  double max_bad_fraction = 0.01;
  AudioConfig audio;
  bool operator==(const SpeechAerieConfig&) const = default;
};

}  // namespace aerie::config
