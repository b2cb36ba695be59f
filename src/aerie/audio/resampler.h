// Sample-rate conversion with libsoxr's HQ recipe, one channel at a time, with the output length
// librosa gives: ceil(n * out_rate / in_rate), cut or zero-padded. Bit-equal to python-soxr.
#pragma once

#include <cstdint>
#include <memory>

#include "aerie/audio/grow_buffer.h"
#include "aerie/base/status.h"

namespace aerie::audio {

int64_t resampled_length(int64_t frames, int in_rate, int out_rate);

// Keeps the filter between calls with the same rates. One thread.
class Resampler {
 public:
  Resampler();
  ~Resampler();
  // `frames` interleaved frames; `out` is replaced.
  Status process(const float* in, int64_t frames, int channels, int in_rate, int out_rate,
                 GrowBuffer<float>* out);

 private:
  Status process_channel(const float* in, int64_t frames, float* out, int64_t out_frames);

  struct Handle;
  std::unique_ptr<Handle> handle_;
  GrowBuffer<float> in_scratch_;
  GrowBuffer<float> out_scratch_;
};

}  // namespace aerie::audio
