#include "aerie/audio/sndfile_decoder.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>

#include <sndfile.h>

#include "aerie/audio/claimed_end.h"

namespace aerie::audio {
namespace {

// Frames asked for at once where the length is unknown or not to be trusted.
constexpr int64_t kChunkFrames = 16384;
constexpr int64_t kSkipFrames = 4096;

// Some of the library's sentences speak of its own insides, or of files where there is none.
std::string_view open_error(std::string_view text) {
  if (text.find("SF_INFO") != std::string_view::npos ||
      text.find("internal error") != std::string_view::npos)
    return "the header's sample rate, channels or length make no sense";
  if (text.find("not a regular file") != std::string_view::npos)
    return "nothing in it can be decoded";
  return text;
}

Codec codec_of(int format) {
  const int container = format & SF_FORMAT_TYPEMASK;
  const int encoding = format & SF_FORMAT_SUBMASK;
  switch (encoding) {
    case SF_FORMAT_VORBIS:
      return Codec::kVorbis;
    case SF_FORMAT_OPUS:
      return Codec::kOpus;
    case SF_FORMAT_MPEG_LAYER_I:
    case SF_FORMAT_MPEG_LAYER_II:
    case SF_FORMAT_MPEG_LAYER_III:
      return Codec::kMp3;
    default:
      break;
  }
  switch (container) {
    case SF_FORMAT_WAV:
    case SF_FORMAT_WAVEX:
      switch (encoding) {
        case SF_FORMAT_PCM_U8:
        case SF_FORMAT_PCM_S8:
        case SF_FORMAT_PCM_16:
        case SF_FORMAT_PCM_24:
        case SF_FORMAT_PCM_32:
          return Codec::kWavPcm;
        case SF_FORMAT_FLOAT:
        case SF_FORMAT_DOUBLE:
          return Codec::kWavFloat;
        default:
          return Codec::kWavOther;
      }
    case SF_FORMAT_FLAC:
      return Codec::kFlac;
    case SF_FORMAT_OGG:
      return encoding == SF_FORMAT_PCM_16 ? Codec::kFlac : Codec::kOther;
    case SF_FORMAT_AIFF:
      return Codec::kAiff;
    case SF_FORMAT_AU:
      return Codec::kAu;
    case SF_FORMAT_RF64:
    case SF_FORMAT_W64:
      return Codec::kRf64;
    case SF_FORMAT_NIST:
      return Codec::kSphere;
    case SF_FORMAT_CAF:
      return Codec::kCaf;
    default:
      return Codec::kOther;
  }
}

int bits_of(int format) {
  switch (format & SF_FORMAT_SUBMASK) {
    case SF_FORMAT_PCM_S8:
    case SF_FORMAT_PCM_U8:
      return 8;
    case SF_FORMAT_PCM_16:
      return 16;
    case SF_FORMAT_PCM_24:
      return 24;
    case SF_FORMAT_PCM_32:
    case SF_FORMAT_FLOAT:
      return 32;
    case SF_FORMAT_DOUBLE:
      return 64;
    default:
      return 0;
  }
}

// Callbacks of libsndfile's virtual I/O; the user data is the ByteSource.
sf_count_t io_length(void* user) {
  return static_cast<ByteSource*>(user)->size();
}
sf_count_t io_seek(sf_count_t offset, int whence, void* user) {
  ByteSource& source = *static_cast<ByteSource*>(user);
  int64_t base = 0;
  if (whence == SEEK_CUR) base = source.position();
  if (whence == SEEK_END) base = source.size();
  int64_t target = 0;
  if (__builtin_add_overflow(base, static_cast<int64_t>(offset), &target) || target < 0) return -1;
  source.seek(std::min(target, source.size()));
  return source.position();
}
sf_count_t io_read(void* out, sf_count_t count, void* user) {
  return count <= 0 ? 0 : static_cast<ByteSource*>(user)->read(out, count);
}
sf_count_t io_write(const void*, sf_count_t, void*) {
  return 0;
}
sf_count_t io_tell(void* user) {
  return static_cast<ByteSource*>(user)->position();
}

}  // namespace

struct SndfileDecoder::Impl {
  SNDFILE* file = nullptr;
  SF_INFO sf{};
  AudioInfo info;
  AudioLimits limits;
  ByteSource* source = nullptr;
  GrowBuffer<int> int_scratch;

  ~Impl() { close(); }
  void close() {
    if (file != nullptr) sf_close(file);
    file = nullptr;
  }
  Status failure(const char* what) const {
    if (!source->error().ok()) return source->error();
    return data_error(str_cat(what, ": ", sf_strerror(file)));
  }
};

SndfileDecoder::SndfileDecoder() : impl_(std::make_unique<Impl>()) {}
SndfileDecoder::~SndfileDecoder() = default;

void SndfileDecoder::close() {
  impl_->close();
}

bool SndfileDecoder::is_exact_int16() const {
  return (impl_->sf.format & SF_FORMAT_SUBMASK) == SF_FORMAT_PCM_16;
}

Status SndfileDecoder::open(ByteSource& source, const AudioLimits& limits, AudioInfo* info) {
  Impl& self = *impl_;
  self.close();
  self.source = &source;
  self.limits = limits;
  self.sf = SF_INFO{};
  source.seek(0);
  SF_VIRTUAL_IO io{io_length, io_seek, io_read, io_write, io_tell};
  self.file = sf_open_virtual(&io, SFM_READ, &self.sf, &source);
  if (self.file == nullptr) {
    if (!source.error().ok()) return source.error();
    return data_error(str_cat("no readable audio: ", open_error(sf_strerror(nullptr))))
        .with_hint("convert it to WAV or FLAC");
  }
  *info = AudioInfo();
  info->codec = codec_of(self.sf.format);
  info->sample_rate = self.sf.samplerate;
  info->channels = self.sf.channels;
  info->bits_per_sample = bits_of(self.sf.format);
  // Streams without a length report the largest count.
  info->frames = self.sf.frames >= SF_COUNT_MAX / 2 ? -1 : self.sf.frames;
  info->bytes = source.size();
  if (const std::optional<ClaimedData> data = find_claimed_data(source); data && info->frames >= 0)
    info->missing_frames = data->missing_frames(info->frames, source.size());
  self.info = *info;
  const Status checked = check_info(*info, limits);
  if (!checked.ok()) self.close();
  return checked;
}

// Codecs that cannot seek: what comes before is decoded and dropped.
Status SndfileDecoder::skip(int64_t frames) {
  Impl& self = *impl_;
  std::vector<short> dropped(static_cast<size_t>(kSkipFrames * self.info.channels));
  while (frames > 0) {
    const int64_t got = sf_readf_short(self.file, dropped.data(), std::min(frames, kSkipFrames));
    if (sf_error(self.file) != SF_ERR_NO_ERROR) return self.failure("cannot decode");
    if (got <= 0) break;  // shorter than it says: nothing will be left to read
    frames -= got;
  }
  return ok_status();
}

Status SndfileDecoder::decode(const FrameRange& range, const SampleSink& sink) {
  Impl& self = *impl_;
  AERIE_CHECK(self.file != nullptr, "decode without open");
  const int channels = self.info.channels;
  const int64_t max_samples = max_decoded_samples(self.info, self.limits);
  if (sink.ints != nullptr)
    sink.ints->clear();
  else
    sink.floats->clear();
  if (range.first > 0) {
    if (self.sf.seekable != 0) {
      if (sf_seek(self.file, range.first, SEEK_SET) != range.first)
        return self.failure("cannot seek");
    } else {
      AERIE_RETURN_IF_ERROR(skip(range.first));
    }
  }
  // The length in the header is a hint for the first allocation only.
  int64_t expected = range.count;
  if (self.info.frames >= 0) {
    const int64_t left = std::max<int64_t>(0, self.info.frames - range.first);
    expected = expected < 0 ? left : std::min(expected, left);
  }
  if (expected < 0) expected = kChunkFrames;
  const int64_t hint = std::min(expected * channels, max_samples);
  AERIE_RETURN_IF_ERROR(sink.ints != nullptr ? sink.ints->reserve(hint)
                                             : sink.floats->reserve(hint));
  const bool through_ints = int_values_ && sink.ints == nullptr && self.info.bits_per_sample == 0;
  int64_t done = 0;
  while (range.count < 0 || done < range.count) {
    int64_t want = range.count < 0 ? kChunkFrames : std::min(range.count - done, kChunkFrames);
    const int64_t have = done * channels;
    if (have + want * channels > max_samples) {
      want = (max_samples - have) / channels;
      if (want <= 0) return too_many_samples(self.info, self.limits);
    }
    int64_t got = 0;
    if (sink.ints != nullptr) {
      AERIE_RETURN_IF_ERROR(sink.ints->resize(have + want * channels));
      got = sf_readf_short(self.file, sink.ints->data() + have, want);
    } else {
      AERIE_RETURN_IF_ERROR(sink.floats->resize(have + want * channels));
      float* out = sink.floats->data() + have;
      if (through_ints) {
        AERIE_RETURN_IF_ERROR(self.int_scratch.resize(want * channels));
        got = sf_readf_int(self.file, self.int_scratch.data(), want);
        for (int64_t i = 0; i < got * channels; ++i)
          out[i] = static_cast<float>(self.int_scratch.data()[i]) * (1.0f / 2147483648.0f);
      } else {
        got = sf_readf_float(self.file, out, want);
      }
    }
    if (sf_error(self.file) != SF_ERR_NO_ERROR) return self.failure("cannot decode");
    done += std::max<int64_t>(0, got);
    if (got < want) break;
  }
  return sink.ints != nullptr ? sink.ints->resize(done * channels)
                              : sink.floats->resize(done * channels);
}

}  // namespace aerie::audio
