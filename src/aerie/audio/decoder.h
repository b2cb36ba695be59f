// What the reader asks of the codec paths (WAV, FLAC, libsndfile). Internal to the folder.
#pragma once

#include <cstdint>

#include "aerie/audio/audio_info.h"
#include "aerie/audio/byte_source.h"
#include "aerie/audio/grow_buffer.h"
#include "aerie/base/status.h"

namespace aerie::audio {

// Frames [first, first + count) as interleaved samples; count -1: to the end.
struct FrameRange {
  int64_t first = 0;
  int64_t count = -1;
};

// Where decoded samples go: floats, or 16-bit integers for sources that are exactly that.
struct SampleSink {
  GrowBuffer<float>* floats = nullptr;
  GrowBuffer<int16_t>* ints = nullptr;  // set: used instead of floats
};

class Decoder {
 public:
  virtual ~Decoder() = default;
  // Reads headers of `source`, which must stay open until the next open or close.
  virtual Status open(ByteSource& source, const AudioLimits& limits, AudioInfo* info) = 0;
  // True when the opened recording is 16-bit integer, so that SampleSink::ints is exact.
  virtual bool is_exact_int16() const = 0;
  // Replaces the sink's content. Gives fewer frames when the recording ends early. first lies
  // within the recording if its length is known.
  virtual Status decode(const FrameRange& range, const SampleSink& sink) = 0;
  virtual void close() = 0;
};

// Refuses channels, rates and codecs outside the limits and frame counts the file cannot hold.
Status check_info(const AudioInfo& info, const AudioLimits& limits);
// Samples (frames x channels) a file of this size may decode to.
int64_t max_decoded_samples(const AudioInfo& info, const AudioLimits& limits);
// The error for a recording that decodes to more than that.
Status too_many_samples(const AudioInfo& info, const AudioLimits& limits);

}  // namespace aerie::audio
