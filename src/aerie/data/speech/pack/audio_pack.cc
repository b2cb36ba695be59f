#include "aerie/data/speech/pack/audio_pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include <xxhash.h>

#include "aerie/audio/audio_writer.h"

namespace aerie::data {

Result<PackEncoding> parse_pack_encoding(std::string_view text) {
  if (text == "pcm16") return PackEncoding::kPcm16;
  if (text == "flac") return PackEncoding::kFlac;
  if (text == "float32") return PackEncoding::kFloat32;
  return invalid_argument(str_cat("unknown pack encoding '", text, "'"))
      .with_hint("use pcm16, flac or float32");
}

const char* pack_encoding_name(PackEncoding encoding) {
  switch (encoding) {
    case PackEncoding::kFlac:
      return "flac";
    case PackEncoding::kFloat32:
      return "float32";
    case PackEncoding::kBytes:
      return "bytes";
    case PackEncoding::kPcm16:
      break;
  }
  return "pcm16";
}

namespace {

std::string absolute(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::path full = std::filesystem::absolute(path, ignored);
  return full.empty() ? path : full.lexically_normal().string();
}

}  // namespace

std::string pack_source(std::span<const std::string> paths) {
  std::string source;
  for (const std::string& path : paths) {
    if (!source.empty()) source += '\n';
    source += absolute(path);
  }
  return source;
}

std::string pack_tar_source(const std::string& archive, std::string_view member) {
  return str_cat(absolute(archive), "#", member);
}

PackKey pack_key(std::string_view source, double offset_s, double duration_s,
                 const audio::ChannelSelector& channels) {
  const std::string text = str_cat(source, "\n", offset_s > 0 ? offset_s : 0.0, "\n",
                                   duration_s > 0 ? duration_s : 0.0, "\n", channels.to_string());
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return {hash.low64, hash.high64};
}

std::string pack_settings(const audio::ReadOptions& options) {
  std::string text = str_cat("sample_rate=", options.sample_rate,
                             "\nint_values=", options.int_values, "\nresampler=soxr-hq");
  if (options.trim_silence)
    text += str_cat("\ntrim_silence=", options.trim.top_db, ",", options.trim.frame_length, ",",
                    options.trim.hop_length);
  return text;
}

float quantize_pack_samples(const audio::AudioView& view, std::vector<int16_t>* out) {
  out->resize(static_cast<size_t>(view.frames));
  if (view.pcm16 != nullptr) {
    std::copy_n(view.pcm16, view.frames, out->data());
    return kPackUnit;
  }
  float peak = 0.0f;
  for (int64_t i = 0; i < view.frames; ++i) peak = std::max(peak, std::abs(view.samples[i]));
  if (peak <= 1.0f) {
    audio::quantize_int16(view.samples, view.frames, out->data());
    return kPackUnit;
  }
  const float scale = peak / 32767.0f;
  for (int64_t i = 0; i < view.frames; ++i)
    (*out)[static_cast<size_t>(i)] = static_cast<int16_t>(std::nearbyint(view.samples[i] / scale));
  return scale;
}

Status encode_pack_item(const audio::AudioView& view, PackEncoding encoding, PackItem* item) {
  if (view.channels != 1)
    return data_error(str_cat("has ", view.channels, " channels; packs hold one"))
        .with_hint("set channel_selector");
  item->frames = static_cast<uint64_t>(view.frames);
  item->scale = kPackUnit;
  item->rounded = false;
  if (encoding == PackEncoding::kFloat32 && view.pcm16 == nullptr) {
    item->scale = 1.0f;
    item->bytes.resize(static_cast<size_t>(view.frames) * sizeof(float));
    std::memcpy(item->bytes.data(), view.samples, item->bytes.size());
    item->data_hash = XXH3_64bits(item->bytes.data(), item->bytes.size());
    return ok_status();
  }
  audio::AudioView ints = view;
  std::vector<int16_t> quantized;
  if (view.pcm16 == nullptr && view.frames > 0) {
    item->scale = quantize_pack_samples(view, &quantized);
    item->rounded = true;
    ints.samples = nullptr;
    ints.pcm16 = quantized.data();
  }
  item->bytes.clear();
  if (view.frames > 0) {
    if (encoding == PackEncoding::kFlac) {
      audio::EncodeOptions options;
      options.format = audio::FileFormat::kFlac;
      AERIE_RETURN_IF_ERROR(audio::encode_audio(ints, options, &item->bytes));
    } else {
      item->bytes.resize(static_cast<size_t>(view.frames) * sizeof(int16_t));
      std::memcpy(item->bytes.data(), ints.pcm16, item->bytes.size());
    }
  }
  item->data_hash = XXH3_64bits(item->bytes.data(), item->bytes.size());
  return ok_status();
}

}  // namespace aerie::data
