// The `model:` node of a NEST run as plain structs: features, masking, quantizer, encoder, decoder,
// loss. Field names are NeMo's keys; member initialisers are NeMo's class defaults, std::optional
// stands where NeMo has null. Values filled by build_run_config() (run_config.h) are already
// checked against the schema table; code that makes these structs by hand is trusted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aerie/nn/conformer_config.h"

namespace aerie::config {

enum class FeatureNormalize { kPerFeature, kAllFeatures, kFixed, kNone };
enum class MaskPosition { kPreConv, kPostConv };
enum class QuantizerDistance { kL2, kCosine };
// kDefault (init_mode: null) keeps torch's own Conv1d initialisation.
enum class DecoderInit { kXavierUniform, kXavierNormal, kKaimingUniform, kKaimingNormal, kDefault };

// AudioToMelSpectrogramPreprocessor. Seconds and Hz unless the name says samples.
struct PreprocessorConfig {
  static constexpr int64_t kPadToMax = -1;

  int64_t sample_rate = 16000;
  std::optional<double> window_size = 0.02;  // seconds; exclusive with n_window_size (samples)
  std::optional<double> window_stride = 0.01;
  std::optional<int64_t> n_window_size;
  std::optional<int64_t> n_window_stride;
  std::string window = "hann";  // hann | hamming | blackman | bartlett | none
  std::optional<int64_t> n_fft;
  std::optional<double> preemph = 0.97;
  int64_t features = 64;
  double lowfreq = 0.0;
  std::optional<double> highfreq;   // null: sample_rate / 2
  std::string mel_norm = "slaney";  // slaney | none
  double mag_power = 2.0;
  bool log = true;
  bool log_zero_guard_clamp = false;                     // log_zero_guard_type: add | clamp
  double log_zero_guard_value = 5.9604644775390625e-08;  // "tiny" and "eps" already translated
  FeatureNormalize normalize = FeatureNormalize::kPerFeature;
  std::vector<double> fixed_mean;  // normalize: {fixed_mean, fixed_std}; one value per feature
  std::vector<double> fixed_std;
  double dither = 1e-5;
  int64_t frame_splicing = 1;
  int64_t pad_to = 16;  // 0: none, kPadToMax: the length of 16.7 s
  double pad_value = 0.0;
  bool exact_pad = false;
  double nb_augmentation_prob = 0.0;
  int64_t nb_max_freq = 4000;

  // Window, hop and FFT size in samples, as NeMo derives them.
  int64_t win_length() const {
    if (n_window_size) return *n_window_size;
    return static_cast<int64_t>(window_size.value_or(0.02) * static_cast<double>(sample_rate));
  }
  int64_t hop_length() const {
    if (n_window_stride) return *n_window_stride;
    return static_cast<int64_t>(window_stride.value_or(0.01) * static_cast<double>(sample_rate));
  }
  int64_t fft_size() const {
    if (n_fft) return *n_fft;
    int64_t size = 1;
    while (size < win_length()) size *= 2;
    return size;
  }
  bool operator==(const PreprocessorConfig&) const = default;
};

// SpectrogramAugmentation. NeMo demands the node and never applies it to NEST; kept for archives.
struct SpecAugmentConfig {
  int64_t freq_masks = 0;
  int64_t time_masks = 0;
  int64_t freq_width = 10;
  double time_width = 10;  // frames when written as an integer, else a fraction of the length
  bool time_width_is_fraction = false;
  double mask_value = 0.0;
  bool operator==(const SpecAugmentConfig&) const = default;
};

// RandomBlockMasking. block_size is in feature frames as written in the config, also for post_conv
// (the model divides it by subsampling_factor once, when it is built).
struct MaskingConfig {
  int64_t feat_in = 80;
  double mask_prob = 0.5;
  int64_t block_size = 48;
  std::optional<double> mask_value;  // null: N(0, 0.1^2) per feature
  bool freeze = true;
  bool allow_overlap = false;
  double max_mask_ratio = 0.8;
  bool operator==(const MaskingConfig&) const = default;
};

// RandomProjectionVectorQuantizer.
struct QuantizerConfig {
  int64_t feat_in = 80;
  int64_t code_dim = 16;
  int64_t num_classes = 8192;
  int64_t num_books = 1;
  QuantizerDistance dist_fn = QuantizerDistance::kCosine;
  bool freeze = true;
  bool squeeze_single = false;
  int64_t combine_time_steps = 1;
  bool operator==(const QuantizerConfig&) const = default;
};

// MultiSoftmaxDecoder.
struct DecoderConfig {
  int64_t feat_in = 512;
  int64_t num_classes = 8192;
  int64_t num_decoders = 1;
  DecoderInit init_mode = DecoderInit::kXavierUniform;
  bool use_bias = false;
  bool squeeze_single = false;
  bool operator==(const DecoderConfig&) const = default;
};

// MultiMLMLoss.
struct LossConfig {
  int64_t combine_time_steps = 1;
  double mask_threshold = 0.8;  // any number: below 0 every frame counts
  int64_t num_decoders = 1;
  bool squeeze_single = false;
  bool operator==(const LossConfig&) const = default;
};

}  // namespace aerie::config
