#include "aerie/data/speech/synth/audio_encoder.h"

#include <algorithm>
#include <cstring>

#include <sndfile.h>

namespace aerie::data::synth {

namespace {

// libsndfile's view of a file that is a string.
struct Memory {
  std::string bytes;
  size_t at = 0;
};

Memory& memory(void* user) {
  return *static_cast<Memory*>(user);
}

sf_count_t get_length(void* user) {
  return static_cast<sf_count_t>(memory(user).bytes.size());
}

sf_count_t seek(sf_count_t offset, int whence, void* user) {
  Memory& file = memory(user);
  const sf_count_t from = whence == SEEK_SET   ? 0
                          : whence == SEEK_CUR ? static_cast<sf_count_t>(file.at)
                                               : static_cast<sf_count_t>(file.bytes.size());
  file.at = static_cast<size_t>(std::max<sf_count_t>(0, from + offset));
  return static_cast<sf_count_t>(file.at);
}

sf_count_t read(void* out, sf_count_t count, void* user) {
  Memory& file = memory(user);
  if (file.at >= file.bytes.size()) return 0;
  const size_t size = std::min(static_cast<size_t>(count), file.bytes.size() - file.at);
  std::memcpy(out, file.bytes.data() + file.at, size);
  file.at += size;
  return static_cast<sf_count_t>(size);
}

sf_count_t write(const void* in, sf_count_t count, void* user) {
  Memory& file = memory(user);
  const size_t size = static_cast<size_t>(count);
  if (file.bytes.size() < file.at + size) file.bytes.resize(file.at + size);
  std::memcpy(file.bytes.data() + file.at, in, size);
  file.at += size;
  return count;
}

sf_count_t tell(void* user) {
  return static_cast<sf_count_t>(memory(user).at);
}

}  // namespace

const char* audio_format_name(AudioFormat format) {
  return format == AudioFormat::kWav ? "wav" : "flac";
}

Result<AudioFormat> parse_audio_format(std::string_view name) {
  if (name == "wav") return AudioFormat::kWav;
  if (name == "flac") return AudioFormat::kFlac;
  return invalid_argument(str_cat("unknown audio format '", name, "'")).with_hint("wav or flac");
}

Result<std::string> encode_audio(std::span<const int16_t> samples, int sample_rate,
                                 AudioFormat format) {
  SF_VIRTUAL_IO io{get_length, seek, read, write, tell};
  SF_INFO info{};
  info.samplerate = sample_rate;
  info.channels = 1;
  info.format = (format == AudioFormat::kWav ? SF_FORMAT_WAV : SF_FORMAT_FLAC) | SF_FORMAT_PCM_16;
  Memory file;
  file.bytes.reserve(samples.size() * 2 + 4096);
  SNDFILE* handle = sf_open_virtual(&io, SFM_WRITE, &info, &file);
  if (handle == nullptr)
    return internal_error(
        str_cat("cannot encode ", audio_format_name(format), ": ", sf_strerror(nullptr)));
  const sf_count_t count = static_cast<sf_count_t>(samples.size());
  const sf_count_t wrote = sf_write_short(handle, samples.data(), count);
  const std::string problem = wrote == count ? "" : sf_strerror(handle);
  const int closed = sf_close(handle);
  if (wrote != count || closed != 0)
    return internal_error(str_cat("cannot encode ", audio_format_name(format), ": ",
                                  problem.empty() ? sf_error_number(closed) : problem));
  return std::move(file.bytes);
}

}  // namespace aerie::data::synth
