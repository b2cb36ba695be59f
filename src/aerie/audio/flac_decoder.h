// FLAC through libFLAC. The decoder object lives as long as this one and is reset between files,
// which keeps its block buffers.
#pragma once

#include <memory>

#include "aerie/audio/decoder.h"

namespace aerie::audio {

class FlacDecoder final : public Decoder {
 public:
  FlacDecoder();
  ~FlacDecoder() override;

  Status open(ByteSource& source, const AudioLimits& limits, AudioInfo* info) override;
  bool is_exact_int16() const override;
  Status decode(const FrameRange& range, const SampleSink& sink) override;
  void close() override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Where "fLaC" stands in the file (0, or behind an ID3 tag), or -1.
int64_t find_flac_start(ByteSource& source);

}  // namespace aerie::audio
