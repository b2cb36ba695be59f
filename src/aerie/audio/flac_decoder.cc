#include "aerie/audio/flac_decoder.h"

#include <algorithm>
#include <cstring>
#include <string>

#include <FLAC/stream_decoder.h>

namespace aerie::audio {

int64_t find_flac_start(ByteSource& source) {
  int64_t at = 0;
  for (int tags = 0; tags < 8; ++tags) {
    const std::span<const uint8_t> head = source.view(at, 10);
    if (head.size() >= 4 && std::memcmp(head.data(), "fLaC", 4) == 0) return at;
    if (head.size() < 10 || std::memcmp(head.data(), "ID3", 3) != 0) return -1;
    at += 10 + (int64_t{head[6] & 0x7F} << 21 | int64_t{head[7] & 0x7F} << 14 |
                int64_t{head[8] & 0x7F} << 7 | int64_t{head[9] & 0x7F});
  }
  return -1;
}

struct FlacDecoder::Impl {
  FLAC__StreamDecoder* decoder = nullptr;
  bool initialized = false;
  ByteSource* source = nullptr;
  AudioInfo info;
  AudioLimits limits;
  bool total_known = false;

  // State of one decode().
  SampleSink sink;
  int64_t wanted = -1;     // frames still to deliver; -1: all
  int64_t skip = 0;        // frames to drop first (streams that cannot be sought)
  int64_t next_frame = 0;  // number of the next frame to arrive
  int64_t max_samples = 0;
  Status error;

  ~Impl() {
    if (decoder != nullptr) FLAC__stream_decoder_delete(decoder);
  }

  static FLAC__StreamDecoderReadStatus on_read(const FLAC__StreamDecoder*, FLAC__byte* out,
                                               size_t* bytes, void* client) {
    Impl& self = *static_cast<Impl*>(client);
    const int64_t got = self.source->read(out, static_cast<int64_t>(*bytes));
    *bytes = static_cast<size_t>(got);
    if (got > 0) return FLAC__STREAM_DECODER_READ_STATUS_CONTINUE;
    if (!self.source->error().ok()) {
      self.fail(self.source->error());
      return FLAC__STREAM_DECODER_READ_STATUS_ABORT;
    }
    return FLAC__STREAM_DECODER_READ_STATUS_END_OF_STREAM;
  }
  static FLAC__StreamDecoderSeekStatus on_seek(const FLAC__StreamDecoder*, FLAC__uint64 offset,
                                               void* client) {
    Impl& self = *static_cast<Impl*>(client);
    if (offset > static_cast<uint64_t>(self.source->size()))
      return FLAC__STREAM_DECODER_SEEK_STATUS_ERROR;
    self.source->seek(static_cast<int64_t>(offset));
    return FLAC__STREAM_DECODER_SEEK_STATUS_OK;
  }
  static FLAC__StreamDecoderTellStatus on_tell(const FLAC__StreamDecoder*, FLAC__uint64* offset,
                                               void* client) {
    *offset = static_cast<FLAC__uint64>(static_cast<Impl*>(client)->source->position());
    return FLAC__STREAM_DECODER_TELL_STATUS_OK;
  }
  static FLAC__StreamDecoderLengthStatus on_length(const FLAC__StreamDecoder*, FLAC__uint64* length,
                                                   void* client) {
    *length = static_cast<FLAC__uint64>(static_cast<Impl*>(client)->source->size());
    return FLAC__STREAM_DECODER_LENGTH_STATUS_OK;
  }
  static FLAC__bool on_eof(const FLAC__StreamDecoder*, void* client) {
    const Impl& self = *static_cast<Impl*>(client);
    return self.source->position() >= self.source->size();
  }
  static void on_metadata(const FLAC__StreamDecoder*, const FLAC__StreamMetadata*, void*) {}
  static void on_error(const FLAC__StreamDecoder*, FLAC__StreamDecoderErrorStatus status,
                       void* client) {
    Impl& self = *static_cast<Impl*>(client);
    // Junk after the last frame (an ID3v1 tag) shows as lost sync once everything has arrived.
    if (self.total_known && self.next_frame >= self.info.frames) return;
    self.fail(data_error(str_cat("corrupt FLAC near frame ", self.next_frame, " (",
                                 FLAC__StreamDecoderErrorStatusString[status], ")")));
  }
  static FLAC__StreamDecoderWriteStatus on_write(const FLAC__StreamDecoder*,
                                                 const FLAC__Frame* frame,
                                                 const FLAC__int32* const* channels, void* client) {
    return static_cast<Impl*>(client)->take(*frame, channels)
               ? FLAC__STREAM_DECODER_WRITE_STATUS_CONTINUE
               : FLAC__STREAM_DECODER_WRITE_STATUS_ABORT;
  }

  void fail(Status status) {
    if (error.ok()) error = std::move(status);
  }

  bool take(const FLAC__Frame& frame, const FLAC__int32* const* channels) {
    const int num_channels = static_cast<int>(frame.header.channels);
    if (num_channels != info.channels ||
        static_cast<int>(frame.header.bits_per_sample) != info.bits_per_sample) {
      fail(data_error(str_cat("FLAC frame of ", num_channels, " channels and ",
                              frame.header.bits_per_sample, " bits in a stream of ", info.channels,
                              " and ", info.bits_per_sample)));
      return false;
    }
    int64_t frames = frame.header.blocksize;
    next_frame += frames;
    int64_t from = 0;
    if (skip > 0) {
      from = std::min(skip, frames);
      skip -= from;
      frames -= from;
    }
    if (wanted >= 0) frames = std::min(frames, wanted);
    if (frames <= 0) return true;
    const int64_t add = frames * num_channels;
    const int64_t have = sink.ints != nullptr ? sink.ints->size() : sink.floats->size();
    if (have + add > max_samples) {
      fail(too_many_samples(info, limits));
      return false;
    }
    Status room =
        sink.ints != nullptr ? sink.ints->resize(have + add) : sink.floats->resize(have + add);
    if (!room.ok()) {
      fail(std::move(room));
      return false;
    }
    if (sink.ints != nullptr)
      interleave_ints(channels, from, frames, num_channels, sink.ints->data() + have);
    else
      interleave_floats(channels, from, frames, num_channels, sink.floats->data() + have);
    if (wanted >= 0) wanted -= frames;
    return true;
  }

  void interleave_floats(const FLAC__int32* const* channels, int64_t from, int64_t frames,
                         int num_channels, float* out) const {
    // 2^-(bits-1): exact, as is every sample of up to 24 bits.
    const float scale = 1.0f / static_cast<float>(int64_t{1} << (info.bits_per_sample - 1));
    if (num_channels == 1) {
      const FLAC__int32* in = channels[0] + from;
      for (int64_t i = 0; i < frames; ++i) out[i] = static_cast<float>(in[i]) * scale;
      return;
    }
    for (int c = 0; c < num_channels; ++c) {
      const FLAC__int32* in = channels[c] + from;
      for (int64_t i = 0; i < frames; ++i)
        out[i * num_channels + c] = static_cast<float>(in[i]) * scale;
    }
  }
  static void interleave_ints(const FLAC__int32* const* channels, int64_t from, int64_t frames,
                              int num_channels, int16_t* out) {
    for (int c = 0; c < num_channels; ++c) {
      const FLAC__int32* in = channels[c] + from;
      for (int64_t i = 0; i < frames; ++i) out[i * num_channels + c] = static_cast<int16_t>(in[i]);
    }
  }

  Status start() {
    if (decoder == nullptr) {
      decoder = FLAC__stream_decoder_new();
      if (decoder == nullptr) return out_of_memory("no memory for a FLAC decoder");
    }
    if (initialized) {
      if (FLAC__stream_decoder_reset(decoder)) return ok_status();
      FLAC__stream_decoder_finish(decoder);
      initialized = false;
    }
    source->seek(0);
    const FLAC__StreamDecoderInitStatus status =
        FLAC__stream_decoder_init_stream(decoder, on_read, on_seek, on_tell, on_length, on_eof,
                                         on_write, on_metadata, on_error, this);
    if (status != FLAC__STREAM_DECODER_INIT_STATUS_OK)
      return internal_error(
          str_cat("libFLAC does not start: ", FLAC__StreamDecoderInitStatusString[status]));
    initialized = true;
    return ok_status();
  }
};

FlacDecoder::FlacDecoder() : impl_(std::make_unique<Impl>()) {}
FlacDecoder::~FlacDecoder() = default;

bool FlacDecoder::is_exact_int16() const {
  return impl_->info.bits_per_sample == 16;
}

void FlacDecoder::close() {
  impl_->source = nullptr;
}

Status FlacDecoder::open(ByteSource& source, const AudioLimits& limits, AudioInfo* info) {
  // The metadata blocks are walked here first: libFLAC trusts their lengths when it allocates.
  int64_t at = find_flac_start(source);
  if (at < 0) return data_error("no FLAC stream marker");
  at += 4;
  *info = AudioInfo();
  info->codec = Codec::kFlac;
  info->bytes = source.size();
  bool last = false;
  bool have_info = false;
  while (!last) {
    const std::span<const uint8_t> head = source.view(at, 4);
    if (head.size() < 4) return data_error("FLAC metadata ends early");
    last = (head[0] & 0x80) != 0;
    const int type = head[0] & 0x7F;
    const int64_t length = int64_t{head[1]} << 16 | int64_t{head[2]} << 8 | head[3];
    at += 4;
    if (at + length > source.size())
      return data_error(str_cat("FLAC metadata block of ", length, " bytes runs past the end"));
    if (type == 0 && !have_info) {
      const std::span<const uint8_t> b = source.view(at, 34);
      if (length < 34 || b.size() < 34) return data_error("FLAC stream info is too short");
      info->sample_rate = b[10] << 12 | b[11] << 4 | b[12] >> 4;
      info->channels = ((b[12] >> 1) & 7) + 1;
      info->bits_per_sample = (((b[12] & 1) << 4) | (b[13] >> 4)) + 1;
      const int64_t total = int64_t{b[13] & 0x0F} << 32 | int64_t{b[14]} << 24 |
                            int64_t{b[15]} << 16 | int64_t{b[16]} << 8 | b[17];
      info->frames = total > 0 ? total : -1;
      have_info = true;
    }
    at += length;
  }
  if (!have_info) return data_error("FLAC file without stream info");
  if (info->bits_per_sample < 4) return data_error("FLAC stream info with less than 4 bits");
  AERIE_RETURN_IF_ERROR(check_info(*info, limits));
  impl_->source = &source;
  impl_->info = *info;
  impl_->limits = limits;
  impl_->total_known = info->frames >= 0;
  return ok_status();
}

Status FlacDecoder::decode(const FrameRange& range, const SampleSink& sink) {
  Impl& self = *impl_;
  AERIE_CHECK(self.source != nullptr, "decode without open");
  self.sink = sink;
  self.error = ok_status();
  self.next_frame = 0;
  self.skip = 0;
  self.wanted = range.count;
  self.max_samples = max_decoded_samples(self.info, self.limits);
  if (sink.ints != nullptr)
    sink.ints->clear();
  else
    sink.floats->clear();
  if (self.total_known) {
    const int64_t left = std::max<int64_t>(0, self.info.frames - range.first);
    self.wanted = range.count < 0 ? left : std::min(range.count, left);
    const int64_t expected = std::min(self.wanted * self.info.channels, self.max_samples);
    AERIE_RETURN_IF_ERROR(sink.ints != nullptr ? sink.ints->reserve(expected)
                                               : sink.floats->reserve(expected));
  }
  if (self.wanted == 0) return ok_status();
  AERIE_RETURN_IF_ERROR(self.start());
  FLAC__bool alive = FLAC__stream_decoder_process_until_end_of_metadata(self.decoder);
  if (alive && range.first > 0) {
    if (self.total_known) {
      self.next_frame = range.first;
      alive =
          FLAC__stream_decoder_seek_absolute(self.decoder, static_cast<FLAC__uint64>(range.first));
      if (!alive && self.error.ok())
        self.fail(data_error(str_cat("cannot seek to frame ", range.first)));
    } else {
      self.skip = range.first;
    }
  }
  while (alive && self.error.ok() && self.wanted != 0) {
    const FLAC__StreamDecoderState state = FLAC__stream_decoder_get_state(self.decoder);
    if (state == FLAC__STREAM_DECODER_END_OF_STREAM) break;
    alive = FLAC__stream_decoder_process_single(self.decoder);
  }
  if (self.error.ok() && !alive)
    self.fail(data_error(
        str_cat("FLAC decoder stopped: ",
                FLAC__StreamDecoderStateString[FLAC__stream_decoder_get_state(self.decoder)])));
  // The header promised more frames than there are: a cut file.
  if (self.error.ok() && self.total_known && self.wanted > 0)
    self.fail(data_error(str_cat("FLAC stream ends ", self.wanted, " frames early")));
  if (!self.error.ok()) {
    FLAC__stream_decoder_finish(self.decoder);
    self.initialized = false;
    return self.error;
  }
  return ok_status();
}

}  // namespace aerie::audio
