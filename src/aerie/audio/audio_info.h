// What an audio file says about itself, and the limits it is held to before anything is decoded.
// Codecs are recognised by their bytes, never by the file's name.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"

namespace aerie::audio {

enum class Codec : uint8_t {
  kUnknown = 0,
  kWavPcm,    // RIFF WAVE, integer PCM of 8, 16, 24 or 32 bits
  kWavFloat,  // RIFF WAVE, IEEE float of 32 or 64 bits
  kWavOther,  // RIFF WAVE with another encoding (a-law, mu-law, ADPCM, GSM, ...)
  kFlac,      // native or in Ogg
  kVorbis,
  kOpus,
  kMp3,
  kAiff,
  kAu,
  kRf64,  // RF64 and W64: WAVE beyond 4 GiB
  kSphere,
  kCaf,
  kOther,  // anything else libsndfile reads
};

// "wav", "flac", "vorbis", ...: the names used in messages and in allow-lists.
const char* codec_name(Codec codec);

// A set of codecs.
using CodecSet = uint32_t;
constexpr CodecSet codec_bit(Codec codec) {
  return 1u << static_cast<uint32_t>(codec);
}
// Formats people train on; each is decoded by a widely reviewed library. Others must be named.
constexpr CodecSet kDefaultCodecs =
    codec_bit(Codec::kWavPcm) | codec_bit(Codec::kWavFloat) | codec_bit(Codec::kWavOther) |
    codec_bit(Codec::kFlac) | codec_bit(Codec::kVorbis) | codec_bit(Codec::kOpus) |
    codec_bit(Codec::kMp3) | codec_bit(Codec::kAiff) | codec_bit(Codec::kAu) |
    codec_bit(Codec::kRf64) | codec_bit(Codec::kSphere) | codec_bit(Codec::kCaf);
// {"wav", "flac"} -> set; "wav" stands for all three RIFF kinds, "all" for everything.
Result<CodecSet> parse_codec_set(const std::vector<std::string>& names);

struct AudioLimits {
  CodecSet allowed_codecs = kDefaultCodecs;
  int max_channels = 64;
  int min_sample_rate = 1000;
  int max_sample_rate = 1'000'000;
  // Decoded samples (frames x channels) one call may produce; 2^30 is 18 hours of 16 kHz mono.
  int64_t max_samples = int64_t{1} << 30;
  // A compressed byte may decode to at most this many samples (a decompression bomb does more).
  // Digital silence in FLAC reaches about 400 a byte. Small files get a flat allowance of 2^20.
  int64_t max_samples_per_byte = 8192;
};

struct AudioInfo {
  Codec codec = Codec::kUnknown;
  int sample_rate = 0;  // Hz
  int channels = 0;
  int bits_per_sample = 0;  // 8..64 for PCM, float and FLAC, 0 for lossy codecs
  int64_t frames = -1;      // per channel, those in the file; -1: the header does not say
  // Frames the header promises and the file does not hold: it was cut. 0 for streams, whose header
  // was written before the length was known.
  int64_t missing_frames = 0;
  int64_t bytes = 0;  // size of the encoded file

  double duration_s() const {
    return frames < 0 || sample_rate <= 0 ? -1.0 : static_cast<double>(frames) / sample_rate;
  }
};

// Reads headers only (Ogg: also the last page; MP3 without a frame count: the frame headers). Any
// thread. Refuses what the limits refuse.
Result<AudioInfo> probe_file(const std::string& path, const AudioLimits& limits = {},
                             Env& env = Env::real());
Result<AudioInfo> probe_stream(std::unique_ptr<RandomAccessFile> file, std::string_view name,
                               const AudioLimits& limits = {});
Result<AudioInfo> probe_memory(std::span<const uint8_t> bytes, std::string_view name,
                               const AudioLimits& limits = {});

// The codec by magic bytes alone; `head` holds the first bytes (512 are enough but for MP3 behind a
// long tag). kUnknown when nothing matches; WAV kinds all report kWavPcm here.
Codec sniff_codec(std::span<const uint8_t> head);

}  // namespace aerie::audio
