// Waveform to normalised log-mel features (docs/numerics.md 2) in the order of float32 operations
// of NeMo's AudioToMelSpectrogramPreprocessor. No gradients; runs on the device of its input.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "aerie/base/status.h"
#include "aerie/models/nest/config/model_config.h"
#include "aerie/nn/param_registry.h"
#include "aerie/nn/random_fill.h"

namespace aerie::nest {

struct Features {
  at::Tensor values;   // (B,D,T), T a multiple of pad_to
  at::Tensor lengths;  // (B) int64 valid frames
};

class Preprocessor {
 public:
  // scope is "preprocessor.featurizer": registers the buffers window and fb.
  static Result<Preprocessor> create(const nn::Scope& scope,
                                     const config::PreprocessorConfig& config);

  struct Mode {
    bool training = false;  // dither and narrow-band augmentation
    nn::RandomKey random;
    uint32_t signal = 0;  // which signal of the batch this is: 0 clean, 1 noisy
    // Draws given from outside, for parity tests.
    at::Tensor injected_dither;              // (B,N) standard normals
    std::vector<bool> injected_narrow_band;  // per item
  };
  // audio (B,N) in any float dtype, lengths (B) int64 samples. `audio` is not changed (NeMo adds
  // its dither in place). Lengths beyond N are the caller's mistake.
  Features forward(const at::Tensor& audio, const at::Tensor& lengths, const Mode& mode) const;

  // Log-mel values before normalisation and padding: (B,D,1+floor(N/hop)).
  at::Tensor log_mel(const at::Tensor& audio, const at::Tensor& lengths, const Mode& mode) const;

  int64_t frames_of(int64_t samples) const;         // valid frames of a clip
  int64_t padded_frames_of(int64_t samples) const;  // T of a batch padded to `samples`
  int64_t num_features() const { return config_.features * config_.frame_splicing; }

 private:
  explicit Preprocessor(const config::PreprocessorConfig& config) : config_(config) {}
  at::Tensor normalize(const at::Tensor& x, const at::Tensor& lengths) const;

  config::PreprocessorConfig config_;
  nn::ParamRef window_;
  nn::ParamRef filterbank_;
  at::Tensor ones_window_;  // window: none has no buffer
};

}  // namespace aerie::nest
