// Log-mel features of waveforms in two launches for clean and noisy rows alike.
//   log_mel: dither, pre-emphasis, windowed power spectrum of 512 points, mel bands, log
//   normalize_features: per row and band mean 0 and standard deviation 1 over valid frames; padding
//     set to a value; hidden frames replaced by the mask embedding
// Time-major throughout: features are (rows,T,bins). Spectra are centred with zero padding, so that
// frame t is about sample t * hop; a row of n samples has n / hop valid frames.
#pragma once

#include "aerie/kernels/types.h"

namespace aerie::kernels {

constexpr int kFftSize = 512;
constexpr int kFftBins = kFftSize / 2 + 1;

struct LogMel {
  int rows = 0;     // items * signals; row r is signal r / items of item r % items
  int items = 0;    // per signal, for the dither's streams
  int samples = 0;  // from row to row
  int frames = 0;   // of the output; frames from n / hop on are not written
  const float* audio = nullptr;
  const int32_t* lengths = nullptr;  // (rows), in samples
  const RandomState* state = nullptr;
  float dither = 0.0f;  // 0: off
  float preemphasis = 0.97f;
  int hop = 160;
  const float* window = nullptr;  // (window_length), centred in the 512 points
  int window_length = 400;
  const float* twiddles = nullptr;    // (512,2): cos and sin of -2 pi k / 512
  const float* filterbank = nullptr;  // (bins,257)
  const int32_t* bands = nullptr;     // (bins,2): first and one past the last bin of each band
  int bins = 80;
  float log_guard = 5.9604645e-08f;
  bool clamp_guard = false;  // log(max(x, guard)) in place of log(x + guard)
  float* out = nullptr;      // (rows,T,bins)
};

struct NormalizeFeatures {
  int rows = 0, frames = 0, bins = 0;
  const float* x = nullptr;
  const int32_t* lengths = nullptr;  // (rows), in frames
  float guard = 1e-5f;               // added to the standard deviation
  float pad_value = 0.0f;
  int first_masked_row = 0;          // rows from here on are masked
  const uint8_t* mask = nullptr;     // (rows - first_masked_row, T); null: none
  const float* embedding = nullptr;  // (bins)
  float* out = nullptr;              // may be x
};

AERIE_DECLARE_KERNEL(log_mel, LogMel)
AERIE_DECLARE_KERNEL(normalize_features, NormalizeFeatures)

}  // namespace aerie::kernels
