#include "aerie/audio/audio_info.h"

#include <algorithm>
#include <cstring>

#include "aerie/audio/decode_path.h"
#include "aerie/audio/decoder.h"

namespace aerie::audio {
namespace {

struct CodecName {
  Codec codec;
  const char* name;
};
constexpr CodecName kCodecNames[] = {
    {Codec::kWavPcm, "wav"},  {Codec::kWavFloat, "wav-float"}, {Codec::kWavOther, "wav-other"},
    {Codec::kFlac, "flac"},   {Codec::kVorbis, "vorbis"},      {Codec::kOpus, "opus"},
    {Codec::kMp3, "mp3"},     {Codec::kAiff, "aiff"},          {Codec::kAu, "au"},
    {Codec::kRf64, "rf64"},   {Codec::kSphere, "sphere"},      {Codec::kCaf, "caf"},
    {Codec::kOther, "other"},
};

// Small files may decode to this many samples whatever their size: a few kilobytes of silence are
// legitimate in every codec.
constexpr int64_t kSampleAllowance = int64_t{1} << 20;

bool is_mpeg_audio_header(const uint8_t* b) {
  if (b[0] != 0xFF || (b[1] & 0xE0) != 0xE0) return false;
  const int version = (b[1] >> 3) & 3;
  const int layer = (b[1] >> 1) & 3;
  const int bitrate = b[2] >> 4;
  const int rate = (b[2] >> 2) & 3;
  return version != 1 && layer != 0 && bitrate != 15 && rate != 3;
}

}  // namespace

const char* codec_name(Codec codec) {
  for (const CodecName& entry : kCodecNames)
    if (entry.codec == codec) return entry.name;
  return "unknown";
}

Result<CodecSet> parse_codec_set(const std::vector<std::string>& names) {
  CodecSet set = 0;
  for (const std::string& raw : names) {
    const std::string name = to_lower(trim(raw));
    if (name == "all") {
      for (const CodecName& entry : kCodecNames) set |= codec_bit(entry.codec);
      continue;
    }
    if (name == "wav") {
      set |= codec_bit(Codec::kWavPcm) | codec_bit(Codec::kWavFloat) | codec_bit(Codec::kWavOther);
      continue;
    }
    if (name == "ogg") {
      set |= codec_bit(Codec::kVorbis) | codec_bit(Codec::kOpus);
      continue;
    }
    const CodecName* found = nullptr;
    std::vector<std::string> known{"all", "ogg"};
    for (const CodecName& entry : kCodecNames) {
      known.push_back(entry.name);
      if (name == entry.name) found = &entry;
    }
    if (found == nullptr)
      return invalid_argument(str_cat("unknown audio codec '", raw, "'"))
          .with_hint(str_cat("known: ", join(known, ", ")));
    set |= codec_bit(found->codec);
  }
  return set;
}

Codec sniff_codec(std::span<const uint8_t> head) {
  const auto starts = [&](size_t at, std::string_view tag) {
    return head.size() >= at + tag.size() &&
           std::memcmp(head.data() + at, tag.data(), tag.size()) == 0;
  };
  if ((starts(0, "RIFF") || starts(0, "RIFX")) && starts(8, "WAVE")) return Codec::kWavPcm;
  if (starts(0, "fLaC")) return Codec::kFlac;
  if (starts(0, "OggS")) {
    // The first packet begins behind the segment table of the first page.
    const size_t packet = head.size() > 26 ? 27 + size_t{head[26]} : head.size();
    if (starts(packet, "OpusHead")) return Codec::kOpus;
    if (starts(packet, std::string_view("\x01vorbis", 7))) return Codec::kVorbis;
    return Codec::kOther;
  }
  if (starts(0, "RF64") && starts(8, "WAVE")) return Codec::kRf64;
  if (starts(0, "riff\x2E\x91\xCF\x11")) return Codec::kRf64;  // W64
  if (starts(0, "FORM") && (starts(8, "AIFF") || starts(8, "AIFC"))) return Codec::kAiff;
  if (starts(0, ".snd") || starts(0, "dns.")) return Codec::kAu;
  if (starts(0, "NIST_1A")) return Codec::kSphere;
  if (starts(0, "caff")) return Codec::kCaf;
  if (starts(0, "ID3")) return Codec::kMp3;
  if (head.size() >= 4 && is_mpeg_audio_header(head.data())) return Codec::kMp3;
  return Codec::kUnknown;
}

int64_t max_decoded_samples(const AudioInfo& info, const AudioLimits& limits) {
  int64_t by_size = 0;
  if (__builtin_mul_overflow(info.bytes, limits.max_samples_per_byte, &by_size))
    by_size = limits.max_samples;
  return std::min(limits.max_samples, std::max(by_size, kSampleAllowance));
}

Status too_many_samples(const AudioInfo& info, const AudioLimits& limits) {
  if (max_decoded_samples(info, limits) == limits.max_samples)
    return data_error(str_cat("decodes to more than the ", limits.max_samples,
                              " samples one read may give"))
        .with_hint("give the entry a duration, or cut the recording");
  return data_error(str_cat("a file of ", info.bytes, " bytes claims or holds more than ",
                            max_decoded_samples(info, limits),
                            " samples: damaged, or made to exhaust memory"));
}

Status check_info(const AudioInfo& info, const AudioLimits& limits) {
  if ((limits.allowed_codecs & codec_bit(info.codec)) == 0)
    return unsupported(str_cat("codec ", codec_name(info.codec), " is not on the allow-list"))
        .with_hint("convert the recording, or add the codec to the list");
  if (info.channels < 1 || info.channels > limits.max_channels)
    return data_error(str_cat("header claims ", info.channels, " channels; 1 to ",
                              limits.max_channels, " are accepted"));
  if (info.sample_rate < limits.min_sample_rate || info.sample_rate > limits.max_sample_rate)
    return data_error(str_cat("header claims ", info.sample_rate, " Hz; ", limits.min_sample_rate,
                              " to ", limits.max_sample_rate, " are accepted"));
  if (info.frames > 0) {
    int64_t samples = 0;
    int64_t by_size = 0;
    const bool huge = __builtin_mul_overflow(info.frames, int64_t{info.channels}, &samples);
    if (__builtin_mul_overflow(info.bytes, limits.max_samples_per_byte, &by_size))
      by_size = INT64_MAX;
    if (huge || samples > std::max(by_size, kSampleAllowance))
      return data_error(
          str_cat("header claims ", info.frames, " frames in a file of ", info.bytes, " bytes"));
  }
  return ok_status();
}

namespace {

Result<AudioInfo> probe_source(ByteSource& source, std::string_view name,
                               const AudioLimits& limits) {
  DecodePath paths;
  AudioInfo info;
  Result<Decoder*> decoder = paths.open(source, limits, false, &info);
  if (!decoder.ok()) return decoder.status().with_context(std::string(name));
  (*decoder)->close();
  return info;
}

}  // namespace

Result<AudioInfo> probe_file(const std::string& path, const AudioLimits& limits, Env& env) {
  ByteSource source;
  if (Status status = source.open_file(env, path); !status.ok())
    return std::move(status).with_context(path);
  return probe_source(source, path, limits);
}

Result<AudioInfo> probe_stream(std::unique_ptr<RandomAccessFile> file, std::string_view name,
                               const AudioLimits& limits) {
  ByteSource source;
  source.open_file(std::move(file));
  return probe_source(source, name, limits);
}

Result<AudioInfo> probe_memory(std::span<const uint8_t> bytes, std::string_view name,
                               const AudioLimits& limits) {
  ByteSource source;
  source.open_memory(bytes);
  return probe_source(source, name, limits);
}

}  // namespace aerie::audio
