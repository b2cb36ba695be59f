#include "aerie/audio/decode_path.h"

#include <algorithm>
#include <cmath>

namespace aerie::audio {
namespace {

constexpr int64_t kPieceBytes = 64 * 1024;

}  // namespace

Status WavDecoder::open(ByteSource& source, const AudioLimits& limits, AudioInfo* info) {
  const std::optional<WavLayout> layout = parse_wav(source);
  if (!layout) return data_error("not a plain WAV file");
  return open_layout(*layout, source, limits, info);
}

Status WavDecoder::open_layout(const WavLayout& layout, ByteSource& source,
                               const AudioLimits& limits, AudioInfo* info) {
  source_ = &source;
  layout_ = layout;
  limits_ = limits;
  *info = AudioInfo();
  info->codec = layout.is_float() ? Codec::kWavFloat : Codec::kWavPcm;
  info->sample_rate = layout.sample_rate;
  info->channels = layout.channels;
  info->bits_per_sample = layout.bytes_per_sample * 8;
  info->frames = layout.frames;
  info->missing_frames = layout.missing_frames;
  info->bytes = source.size();
  info_ = *info;
  return check_info(*info, limits);
}

Status WavDecoder::decode(const FrameRange& range, const SampleSink& sink) {
  AERIE_CHECK(source_ != nullptr, "decode without open");
  const int64_t left = std::max<int64_t>(0, layout_.frames - range.first);
  const int64_t frames = range.count < 0 ? left : std::min(range.count, left);
  const int64_t count = frames * layout_.channels;
  if (count > max_decoded_samples(info_, limits_)) return too_many_samples(info_, limits_);
  int64_t offset = layout_.data_offset + range.first * layout_.frame_bytes();
  if (sink.ints != nullptr) {
    AERIE_RETURN_IF_ERROR(sink.ints->resize(count));
    return source_->read_exact(offset, sink.ints->data(), count * layout_.bytes_per_sample);
  }
  AERIE_RETURN_IF_ERROR(sink.floats->resize(count));
  const int64_t piece = kPieceBytes / layout_.bytes_per_sample;
  for (int64_t done = 0; done < count;) {
    const int64_t now = std::min(piece, count - done);
    const std::span<const uint8_t> bytes = source_->view(offset, now * layout_.bytes_per_sample);
    if (static_cast<int64_t>(bytes.size()) < now * layout_.bytes_per_sample) {
      if (!source_->error().ok()) return source_->error();
      return data_error("the file became shorter while it was read");
    }
    convert_wav_samples(bytes.data(), layout_.encoding, now, sink.floats->data() + done);
    done += now;
    offset += now * layout_.bytes_per_sample;
  }
  return ok_status();
}

Result<Decoder*> DecodePath::open(ByteSource& source, const AudioLimits& limits, bool int_values,
                                  AudioInfo* info) {
  if (source.size() == 0) return data_error("the file is empty");
  const std::span<const uint8_t> head = source.view(0, 512);
  if (head.empty()) return source.error().ok() ? data_error("cannot read") : source.error();
  const Codec codec = sniff_codec(head);
  if (codec == Codec::kWavPcm) {
    if (const std::optional<WavLayout> layout = parse_wav(source)) {
      AERIE_RETURN_IF_ERROR(wav_.open_layout(*layout, source, limits, info));
      return &wav_;
    }
  } else if (codec == Codec::kFlac || codec == Codec::kMp3) {
    // An ID3 tag may stand before either.
    if (find_flac_start(source) >= 0) {
      if (!flac_) flac_.emplace();
      AERIE_RETURN_IF_ERROR(flac_->open(source, limits, info));
      return &*flac_;
    }
  } else if (codec == Codec::kUnknown && (limits.allowed_codecs & codec_bit(Codec::kOther)) == 0) {
    // libsndfile also guesses at headerless and exotic formats; those must be asked for.
    return data_error("not a known audio format (no WAV, FLAC, Ogg, MP3, AIFF, AU, CAF or SPHERE)")
        .with_hint("convert it to WAV or FLAC");
  }
  if (!sndfile_) sndfile_.emplace();
  sndfile_->set_int_values(int_values);
  AERIE_RETURN_IF_ERROR(sndfile_->open(source, limits, info));
  return &*sndfile_;
}

}  // namespace aerie::audio
