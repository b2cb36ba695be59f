#include "aerie/data/speech/pack/pack_format.h"

#include <filesystem>

#include <xxhash.h>

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

}  // namespace aerie::data
