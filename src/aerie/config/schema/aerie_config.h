// The `aerie:` node: everything NeMo has no key for. It always exists with these defaults.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace aerie::config {

enum class Engine { kAuto, kFast, kReference };
enum class Tf32 { kNone, kConv, kAll };  // kConv is torch's default: convolutions only
enum class OnNan { kSkip, kFallback, kStop };
enum class OnOom { kSplit, kStop };
enum class OnBadAudio { kSkip, kZero, kFail };
enum class ValidationSeed { kFixed, kRandom };
enum class ShuffleLevel { kSample, kShard };
enum class PadAudioMode { kRepeat, kZero };
enum class MixOn { kAuto, kCpu, kGpu };
enum class BatchDtype { kAuto, kInt16, kFloat32 };
enum class StepUnit { kOptimizer, kMicro };
enum class CacheFormat { kPcm16, kFlac };

struct AerieDataConfig {
  std::string cache_dir;     // packed audio and indexes; empty: none
  bool build_cache = false;  // fill cache_dir during the first epoch
  CacheFormat cache_format = CacheFormat::kPcm16;
  std::string index_dir;                    // empty: beside the manifest, else the user's cache
  std::optional<int64_t> virtual_ranks;     // fixes the global order for any number of ranks
  std::optional<double> memory_budget_gib;  // for the loader; null: printed, not limited
  bool skip_bad_lines = false;              // manifest lines that are not JSON
  ShuffleLevel shuffle_level = ShuffleLevel::kSample;  // compat: kShard unless set
  double min_audio_len_secs = 1.0;                     // shorter audio is filled up to this
  PadAudioMode pad_audio_mode = PadAudioMode::kRepeat;
  MixOn mix_on = MixOn::kAuto;
  BatchDtype batch_dtype = BatchDtype::kAuto;
  int64_t max_shapes = 16;  // batch lengths are rounded up to this many values
  bool operator==(const AerieDataConfig&) const = default;
};

struct AerieConfig {
  uint64_t seed = 1234;
  bool compat_nemo_2_6 = false;  // compat: nemo-2.6
  Engine engine = Engine::kAuto;
  Tf32 tf32 = Tf32::kConv;
  bool activation_checkpointing = false;
  OnNan on_nan = OnNan::kSkip;
  int64_t max_nan_in_a_row = 10;
  OnOom on_oom = OnOom::kSplit;
  OnBadAudio on_bad_audio = OnBadAudio::kSkip;
  double max_bad_fraction = 0.01;
  ValidationSeed validation_seed = ValidationSeed::kFixed;  // compat: kRandom unless set
  std::optional<double> loss_scale;                         // 16-mixed: null is dynamic
  std::vector<std::string> no_weight_decay;  // parameter-name parts that get no weight decay
  double spike_zscore = 6.0;  // loss or gradient norm beyond this is an event; 0: off
  StepUnit step_unit = StepUnit::kOptimizer;  // what limits, logs and checkpoints count
  bool lightning_checkpoints = false;         // a .ckpt beside every native checkpoint
  // Start again where metrics.jsonl records saves and there are no checkpoints.
  bool ignore_missing_checkpoints = false;
  AerieDataConfig data;
  bool operator==(const AerieConfig&) const = default;
};

}  // namespace aerie::config
