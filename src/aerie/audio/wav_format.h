// RIFF WAVE headers and sample conversion, without a library: the format most corpora are in, and
// the one whose decoding cost is all overhead. Results equal libsndfile's float path bit for bit.
#pragma once

#include <cstdint>
#include <optional>

#include "aerie/audio/byte_source.h"
#include "aerie/base/status.h"

namespace aerie::audio {

enum class WavEncoding : uint8_t { kU8, kS16, kS24, kS32, kF32, kF64 };

struct WavLayout {
  WavEncoding encoding = WavEncoding::kS16;
  int channels = 0;
  int sample_rate = 0;
  int bytes_per_sample = 0;
  int64_t data_offset = 0;
  int64_t frames = 0;          // those really in the file, whatever the header claims
  int64_t missing_frames = 0;  // those the header claims beyond them

  int64_t frame_bytes() const { return int64_t{channels} * bytes_per_sample; }
  bool is_float() const { return encoding >= WavEncoding::kF32; }
};

// Understands a plain little-endian RIFF WAVE of the encodings above (also WAVE_FORMAT_EXTENSIBLE).
// nullopt: something else or something odd, which libsndfile may judge.
std::optional<WavLayout> parse_wav(ByteSource& source);

// `count` samples (not frames) from little-endian bytes; floats scaled to [-1, 1).
void convert_wav_samples(const uint8_t* in, WavEncoding encoding, int64_t count, float* out);

}  // namespace aerie::audio
