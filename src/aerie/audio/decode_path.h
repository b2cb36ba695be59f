// Picks the decoder for a source by its bytes. Internal to the folder.
#pragma once

#include <optional>

#include "aerie/audio/decoder.h"
#include "aerie/audio/flac_decoder.h"
#include "aerie/audio/sndfile_decoder.h"
#include "aerie/audio/wav_format.h"

namespace aerie::audio {

// Plain WAV through wav_format.h.
class WavDecoder final : public Decoder {
 public:
  Status open(ByteSource& source, const AudioLimits& limits, AudioInfo* info) override;
  bool is_exact_int16() const override { return layout_.encoding == WavEncoding::kS16; }
  Status decode(const FrameRange& range, const SampleSink& sink) override;
  void close() override { source_ = nullptr; }
  // open() for a layout that parse_wav has found.
  Status open_layout(const WavLayout& layout, ByteSource& source, const AudioLimits& limits,
                     AudioInfo* info);

 private:
  ByteSource* source_ = nullptr;
  WavLayout layout_;
  AudioInfo info_;
  AudioLimits limits_;
};

// One decoder of each kind, made when first needed.
class DecodePath {
 public:
  // Opens `source` with the decoder its content asks for. The result belongs to this object.
  Result<Decoder*> open(ByteSource& source, const AudioLimits& limits, bool int_values,
                        AudioInfo* info);

 private:
  WavDecoder wav_;
  std::optional<FlacDecoder> flac_;
  std::optional<SndfileDecoder> sndfile_;
};

}  // namespace aerie::audio
