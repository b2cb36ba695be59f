// Everything but plain WAV and FLAC, through libsndfile: Vorbis, Opus, MP3, AIFF, AU, odd WAV.
#pragma once

#include <memory>

#include "aerie/audio/decoder.h"

namespace aerie::audio {

class SndfileDecoder final : public Decoder {
 public:
  SndfileDecoder();
  ~SndfileDecoder() override;

  // Decode lossy codecs to 32-bit integers and scale those, as NeMo's int_values does. The other
  // codecs give the same numbers either way and are decoded to float.
  void set_int_values(bool on) { int_values_ = on; }

  Status open(ByteSource& source, const AudioLimits& limits, AudioInfo* info) override;
  bool is_exact_int16() const override;
  Status decode(const FrameRange& range, const SampleSink& sink) override;
  void close() override;

 private:
  Status skip(int64_t frames);

  struct Impl;
  std::unique_ptr<Impl> impl_;
  bool int_values_ = false;
};

}  // namespace aerie::audio
