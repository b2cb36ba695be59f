#include "aerie/audio/wav_format.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "aerie/audio/claimed_end.h"

namespace aerie::audio {
namespace {

static_assert(std::endian::native == std::endian::little, "samples are copied as they lie");

constexpr uint16_t kFormatPcm = 1;
constexpr uint16_t kFormatFloat = 3;
constexpr uint16_t kFormatExtensible = 0xFFFE;
// A header with more chunks than this before its data is not one a recorder wrote.
constexpr int kMaxChunks = 1000;

template <typename T>
T load(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

bool is_tag(const uint8_t* bytes, const char* tag) {
  return std::memcmp(bytes, tag, 4) == 0;
}

// KSDATAFORMAT_SUBTYPE_*: two bytes of format tag, then a fixed tail.
bool has_wave_guid_tail(const uint8_t* guid) {
  static const uint8_t kTail[14] = {0x00, 0x00, 0x00, 0x00, 0x10, 0x00, 0x80,
                                    0x00, 0x00, 0xAA, 0x00, 0x38, 0x9B, 0x71};
  return std::memcmp(guid + 2, kTail, sizeof(kTail)) == 0;
}

bool parse_format(std::span<const uint8_t> chunk, WavLayout* layout) {
  if (chunk.size() < 16) return false;
  const uint8_t* b = chunk.data();
  uint16_t tag = load<uint16_t>(b);
  const uint16_t channels = load<uint16_t>(b + 2);
  const uint32_t rate = load<uint32_t>(b + 4);
  const uint16_t block_align = load<uint16_t>(b + 12);
  const uint16_t bits = load<uint16_t>(b + 14);
  if (tag == kFormatExtensible) {
    if (chunk.size() < 40 || load<uint16_t>(b + 16) < 22) return false;
    const uint16_t valid_bits = load<uint16_t>(b + 18);
    if (valid_bits != bits) return false;
    if (!has_wave_guid_tail(b + 24)) return false;
    tag = load<uint16_t>(b + 24);
  }
  if (tag == kFormatPcm) {
    switch (bits) {
      case 8:
        layout->encoding = WavEncoding::kU8;
        break;
      case 16:
        layout->encoding = WavEncoding::kS16;
        break;
      case 24:
        layout->encoding = WavEncoding::kS24;
        break;
      case 32:
        layout->encoding = WavEncoding::kS32;
        break;
      default:
        return false;
    }
  } else if (tag == kFormatFloat) {
    switch (bits) {
      case 32:
        layout->encoding = WavEncoding::kF32;
        break;
      case 64:
        layout->encoding = WavEncoding::kF64;
        break;
      default:
        return false;
    }
  } else {
    return false;
  }
  if (channels == 0 || rate == 0 || rate > 0x7FFFFFFFu) return false;
  layout->channels = channels;
  layout->sample_rate = static_cast<int>(rate);
  layout->bytes_per_sample = bits / 8;
  return block_align == layout->frame_bytes();
}

// Whether whole chunks fill the file from `at` to its end, as behind a data chunk that is really
// empty. Samples behind a size that was never filled in do not look like that.
bool only_chunks_follow(ByteSource& source, int64_t at) {
  while (at < source.size()) {
    const std::span<const uint8_t> header = source.view(at, 8);
    if (header.size() < 8) return false;
    for (int i = 0; i < 4; ++i)
      if (header[i] < 0x20 || header[i] > 0x7E) return false;
    const int64_t size = load<uint32_t>(header.data() + 4);
    at += 8 + size + (size & 1);
  }
  // The pad byte of the last one is often left out.
  return at - source.size() <= 1;
}

}  // namespace

std::optional<WavLayout> parse_wav(ByteSource& source) {
  const std::span<const uint8_t> head = source.view(0, 12);
  if (head.size() < 12 || !is_tag(head.data(), "RIFF") || !is_tag(head.data() + 8, "WAVE"))
    return std::nullopt;
  WavLayout layout;
  bool have_format = false;
  int64_t at = 12;
  for (int chunk = 0; chunk < kMaxChunks; ++chunk) {
    const std::span<const uint8_t> header = source.view(at, 8);
    if (header.size() < 8) return std::nullopt;
    for (int i = 0; i < 4; ++i)
      if (header[i] < 0x20 || header[i] > 0x7E) return std::nullopt;
    const bool is_format = is_tag(header.data(), "fmt ");
    const bool is_data = is_tag(header.data(), "data");
    const int64_t size = load<uint32_t>(header.data() + 4);
    const int64_t begin = at + 8;
    if (is_format) {
      if (have_format || size > 4096 || !parse_format(source.view(begin, size), &layout))
        return std::nullopt;
      have_format = true;
    } else if (is_data) {
      if (!have_format) return std::nullopt;
      // 0: a recorder that never came back to fill the size in; libsndfile knows the variants.
      if (size == 0 && !only_chunks_follow(source, begin)) return std::nullopt;
      const int64_t bytes = std::min(size, source.size() - begin);
      layout.data_offset = begin;
      layout.frames = bytes / layout.frame_bytes();
      if (!is_stream_size(size))
        layout.missing_frames = size / layout.frame_bytes() - layout.frames;
      return layout;
    }
    at = begin + size + (size & 1);
  }
  return std::nullopt;
}

void convert_wav_samples(const uint8_t* in, WavEncoding encoding, int64_t count, float* out) {
  switch (encoding) {
    case WavEncoding::kU8:
      for (int64_t i = 0; i < count; ++i)
        out[i] = static_cast<float>(static_cast<int>(in[i]) - 128) * (1.0f / 128.0f);
      return;
    case WavEncoding::kS16:
      for (int64_t i = 0; i < count; ++i)
        out[i] = static_cast<float>(load<int16_t>(in + 2 * i)) * (1.0f / 32768.0f);
      return;
    case WavEncoding::kS24:
      for (int64_t i = 0; i < count; ++i) {
        const uint8_t* b = in + 3 * i;
        const uint32_t high = static_cast<uint32_t>(b[0]) << 8 | static_cast<uint32_t>(b[1]) << 16 |
                              static_cast<uint32_t>(b[2]) << 24;
        out[i] = static_cast<float>(static_cast<int32_t>(high)) * (1.0f / 2147483648.0f);
      }
      return;
    case WavEncoding::kS32:
      for (int64_t i = 0; i < count; ++i)
        out[i] = static_cast<float>(load<int32_t>(in + 4 * i)) * (1.0f / 2147483648.0f);
      return;
    case WavEncoding::kF32:
      std::memcpy(out, in, static_cast<size_t>(count) * sizeof(float));
      return;
    case WavEncoding::kF64:
      for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(load<double>(in + 8 * i));
      return;
  }
}

}  // namespace aerie::audio
