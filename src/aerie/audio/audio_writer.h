// Encodes samples into a file image in memory. Integer sources come back bit for bit from the
// lossless formats: samples are rounded on the same grid they are decoded from.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/audio/audio_reader.h"
#include "aerie/base/status.h"

namespace aerie::audio {

enum class FileFormat : uint8_t { kWav, kFlac, kVorbis, kOpus, kMp3 };

// "wav", "flac", "ogg" (Vorbis), "opus", "mp3": names of force_codec and file extensions alike.
Result<FileFormat> parse_file_format(std::string_view name);
const char* file_extension_of(FileFormat format);  // without the dot

struct EncodeOptions {
  FileFormat format = FileFormat::kWav;
  // 8 (WAV unsigned, FLAC signed), 16, 24, 32; 32 in WAV means float when as_float is set. Lossy
  // formats ignore it.
  int bits = 16;
  bool as_float = false;
};

// The narrowest options that lose nothing of `source` in `format`: 16 bits for lossy sources.
EncodeOptions lossless_options(const AudioInfo& source, FileFormat format);

// Replaces `out`. Samples beyond full scale are clipped in integer formats.
Status encode_audio(const AudioView& view, const EncodeOptions& options, std::vector<uint8_t>* out);

// round(x * 32768), clipped to 16 bits: exact for samples that came from 16 bits.
void quantize_int16(const float* in, int64_t count, int16_t* out);

}  // namespace aerie::audio
