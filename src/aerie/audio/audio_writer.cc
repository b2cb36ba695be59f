#include "aerie/audio/audio_writer.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include <sndfile.h>

namespace aerie::audio {
namespace {

// Frames handed to libsndfile at once: its Vorbis encoder keeps a whole write on the stack.
constexpr int64_t kPieceFrames = 4096;

struct MemoryFile {
  std::vector<uint8_t>* bytes;
  int64_t position = 0;
};

sf_count_t memory_length(void* user) {
  return static_cast<sf_count_t>(static_cast<MemoryFile*>(user)->bytes->size());
}
sf_count_t memory_seek(sf_count_t offset, int whence, void* user) {
  MemoryFile& file = *static_cast<MemoryFile*>(user);
  int64_t base = 0;
  if (whence == SEEK_CUR) base = file.position;
  if (whence == SEEK_END) base = static_cast<int64_t>(file.bytes->size());
  file.position = std::max<int64_t>(0, base + offset);
  return file.position;
}
sf_count_t memory_read(void* out, sf_count_t count, void* user) {
  MemoryFile& file = *static_cast<MemoryFile*>(user);
  const int64_t left = static_cast<int64_t>(file.bytes->size()) - file.position;
  const int64_t n = std::clamp<int64_t>(count, 0, std::max<int64_t>(0, left));
  if (n > 0) std::memcpy(out, file.bytes->data() + file.position, static_cast<size_t>(n));
  file.position += n;
  return n;
}
sf_count_t memory_write(const void* in, sf_count_t count, void* user) {
  MemoryFile& file = *static_cast<MemoryFile*>(user);
  const int64_t end = file.position + count;
  if (end > static_cast<int64_t>(file.bytes->size())) file.bytes->resize(static_cast<size_t>(end));
  std::memcpy(file.bytes->data() + file.position, in, static_cast<size_t>(count));
  file.position = end;
  return count;
}
sf_count_t memory_tell(void* user) {
  return static_cast<MemoryFile*>(user)->position;
}

Result<int> sndfile_format(const EncodeOptions& options) {
  switch (options.format) {
    case FileFormat::kVorbis:
      return SF_FORMAT_OGG | SF_FORMAT_VORBIS;
    case FileFormat::kOpus:
      return SF_FORMAT_OGG | SF_FORMAT_OPUS;
    case FileFormat::kMp3:
      return SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III;
    case FileFormat::kWav:
      if (options.as_float) return SF_FORMAT_WAV | SF_FORMAT_FLOAT;
      switch (options.bits) {
        case 8:
          return SF_FORMAT_WAV | SF_FORMAT_PCM_U8;
        case 16:
          return SF_FORMAT_WAV | SF_FORMAT_PCM_16;
        case 24:
          return SF_FORMAT_WAV | SF_FORMAT_PCM_24;
        case 32:
          return SF_FORMAT_WAV | SF_FORMAT_PCM_32;
        default:
          break;
      }
      break;
    case FileFormat::kFlac:
      switch (options.bits) {
        case 8:
          return SF_FORMAT_FLAC | SF_FORMAT_PCM_S8;
        case 16:
          return SF_FORMAT_FLAC | SF_FORMAT_PCM_16;
        case 24:
          return SF_FORMAT_FLAC | SF_FORMAT_PCM_24;
        default:
          break;
      }
      break;
  }
  return unsupported(str_cat(options.bits, " bits do not fit ", file_extension_of(options.format)));
}

// An integer of `bits`, left-justified in 32, as libsndfile's int interface wants it.
int quantize_left(float x, int bits) {
  const double scale = static_cast<double>(int64_t{1} << (bits - 1));
  const double value =
      std::clamp(std::nearbyint(static_cast<double>(x) * scale), -scale, scale - 1);
  return static_cast<int>(static_cast<int64_t>(value) * (int64_t{1} << (32 - bits)));
}

}  // namespace

Result<FileFormat> parse_file_format(std::string_view name) {
  const std::string lower = to_lower(name);
  if (lower == "wav") return FileFormat::kWav;
  if (lower == "flac") return FileFormat::kFlac;
  if (lower == "ogg" || lower == "vorbis") return FileFormat::kVorbis;
  if (lower == "opus") return FileFormat::kOpus;
  if (lower == "mp3") return FileFormat::kMp3;
  return invalid_argument(str_cat("unknown audio format '", name, "'"))
      .with_hint("known: wav, flac, ogg, opus, mp3");
}

const char* file_extension_of(FileFormat format) {
  switch (format) {
    case FileFormat::kWav:
      return "wav";
    case FileFormat::kFlac:
      return "flac";
    case FileFormat::kVorbis:
      return "ogg";
    case FileFormat::kOpus:
      return "opus";
    case FileFormat::kMp3:
      return "mp3";
  }
  return "wav";
}

EncodeOptions lossless_options(const AudioInfo& source, FileFormat format) {
  EncodeOptions options;
  options.format = format;
  options.bits = source.bits_per_sample == 0 ? 16 : (source.bits_per_sample + 7) / 8 * 8;
  const bool is_float = source.codec == Codec::kWavFloat || source.bits_per_sample > 32;
  if (format == FileFormat::kFlac) {
    options.bits = std::min(options.bits, 24);
  } else if (format == FileFormat::kWav && is_float) {
    options.bits = 32;
    options.as_float = true;
  }
  return options;
}

void quantize_int16(const float* in, int64_t count, int16_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    const float scaled = std::nearbyint(in[i] * 32768.0f);
    out[i] = static_cast<int16_t>(std::clamp(scaled, -32768.0f, 32767.0f));
  }
}

Status encode_audio(const AudioView& view, const EncodeOptions& options,
                    std::vector<uint8_t>* out) {
  out->clear();
  AERIE_ASSIGN_OR_RETURN(const int format, sndfile_format(options));
  SF_INFO info{};
  info.samplerate = view.sample_rate;
  info.channels = view.channels;
  info.format = format;
  if (sf_format_check(&info) == 0)
    return unsupported(str_cat("cannot write ", file_extension_of(options.format), " with ",
                               view.channels, " channels at ", view.sample_rate, " Hz"))
        .with_hint(options.format == FileFormat::kOpus ? "Opus takes 8, 12, 16, 24 or 48 kHz"
                                                       : "choose another format");
  MemoryFile memory{out};
  SF_VIRTUAL_IO io{memory_length, memory_seek, memory_read, memory_write, memory_tell};
  SNDFILE* file = sf_open_virtual(&io, SFM_WRITE, &info, &memory);
  if (file == nullptr)
    return unsupported(
        str_cat("cannot write ", file_extension_of(options.format), ": ", sf_strerror(nullptr)));
  const bool lossy = options.format == FileFormat::kVorbis || options.format == FileFormat::kOpus ||
                     options.format == FileFormat::kMp3;
  std::vector<int> ints;
  std::vector<float> floats;
  bool ok = true;
  for (int64_t at = 0; at < view.frames && ok; at += kPieceFrames) {
    const int64_t frames = std::min(kPieceFrames, view.frames - at);
    const int64_t from = at * view.channels;
    const int64_t count = frames * view.channels;
    if (view.pcm16 != nullptr && !lossy && !options.as_float) {
      ok = sf_writef_short(file, view.pcm16 + from, frames) == frames;
      continue;
    }
    const float* samples = view.samples + from;
    if (view.pcm16 != nullptr) {
      floats.resize(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i)
        floats[static_cast<size_t>(i)] = static_cast<float>(view.pcm16[from + i]) / 32768.0f;
      samples = floats.data();
    }
    if (lossy || options.as_float) {
      ok = sf_writef_float(file, samples, frames) == frames;
      continue;
    }
    ints.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i)
      ints[static_cast<size_t>(i)] = quantize_left(samples[i], options.bits);
    ok = sf_writef_int(file, ints.data(), frames) == frames;
  }
  const std::string reason = ok ? "" : sf_strerror(file);
  if (sf_close(file) != 0) ok = false;
  if (!ok)
    return internal_error(
        str_cat("libsndfile stopped writing ", file_extension_of(options.format), ": ", reason));
  return ok_status();
}

}  // namespace aerie::audio
