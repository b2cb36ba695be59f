// 16-bit mono audio as the bytes of a WAV or FLAC file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "aerie/base/status.h"

namespace aerie::data::synth {

enum class AudioFormat { kWav, kFlac };

const char* audio_format_name(AudioFormat format);  // "wav", "flac": also the file extension
Result<AudioFormat> parse_audio_format(std::string_view name);

// Any thread.
Result<std::string> encode_audio(std::span<const int16_t> samples, int sample_rate,
                                 AudioFormat format);

}  // namespace aerie::data::synth
