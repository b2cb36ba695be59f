// Audio from files and from memory as float32 (or exact int16) at the rate a model wants.
//
// The chain is NeMo's (segment cut, channel selection, resampling, silence trimming), with its
// truncation rules; results equal NeMo's AudioSegment sample for sample up to the resampler's
// rounding. Decoding runs through three paths: an own reader for WAV PCM and float, libFLAC for
// FLAC, libsndfile for the rest.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/audio/audio_info.h"
#include "aerie/audio/channel_selector.h"
#include "aerie/base/env.h"
#include "aerie/base/status.h"

namespace aerie::audio {

struct TrimOptions {
  double top_db = 60.0;
  int frame_length = 2048;  // samples
  int hop_length = 512;     // samples
};

struct ReadOptions {
  int sample_rate = 16000;  // Hz of the result; 0 keeps the file's
  // Decode to 32-bit integers first, then scale by 2^-31: the same numbers as the float path for
  // up to 24 bits, rounded differently beyond.
  bool int_values = false;
  ChannelSelector channels;
  // NeMo ignores channel_selector for tarred data: true reproduces that for read_memory.
  bool memory_ignores_channels = false;
  bool trim_silence = false;
  TrimOptions trim;
  // Deliver int16 when that loses nothing: 16-bit WAV or FLAC at the wanted rate, no mean over
  // channels, no trimming. AudioView::pcm16 is then set instead of samples.
  bool prefer_int16 = false;
  // Whatever is read is meant to be used: no audio at all, and a segment that reaches into the part
  // a cut file has lost, are errors. Off: NeMo's AudioSegment, which gives what is there.
  bool strict = false;
  AudioLimits limits;
  Env* env = nullptr;  // null: the real file system
};

// Which part of a recording. First frame = trunc(offset_s * file rate), number of frames =
// trunc(duration_s * file rate); values <= 0 (or a duration of NaN) mean from the start and to the
// end. A recording that ends before the segment does gives fewer frames; an offset past its end is
// an error.
struct Segment {
  double offset_s = 0.0;
  double duration_s = 0.0;
  const ChannelSelector* channels = nullptr;  // replaces ReadOptions::channels for this read
  // What the caller has room for, in samples a channel of the result: a segment without a duration
  // that holds more is refused before it is decoded. 0: what ReadOptions::limits allow.
  int64_t room_samples = 0;
};

// How the messages of the two errors of ReadOptions::strict begin, for those who list them.
constexpr std::string_view kNoAudio = "holds no audio";
constexpr std::string_view kCutShort = "is cut short";

// What may be missing of a segment: less than one step of the features, as headers that are off by
// a few bytes cost nobody.
constexpr double kCutToleranceS = 0.01;

// Points into the reader's buffers: valid until its next call. Frames are interleaved. Exactly one
// of samples and pcm16 is set (both null when frames is 0).
struct AudioView {
  const float* samples = nullptr;
  const int16_t* pcm16 = nullptr;  // value / 32768 is the float sample, exactly
  int64_t frames = 0;
  int channels = 1;
  int sample_rate = 0;
  int64_t bytes_read = 0;  // encoded bytes taken from the file or the buffer
  AudioInfo source;

  int64_t size() const { return frames * channels; }
  // Writes frames * channels floats, whichever form the view has.
  void copy_to(float* out) const;
};

// One per thread; not thread-safe. Keeps decoders and buffers between calls, so that a steady
// stream of similar recordings allocates nothing of ours (codec libraries may).
class AudioReader {
 public:
  explicit AudioReader(ReadOptions options);
  ~AudioReader();
  AudioReader(AudioReader&&) noexcept;
  AudioReader& operator=(AudioReader&&) noexcept;

  Result<AudioView> read_file(const std::string& path, const Segment& segment = {});
  // `name` appears in errors only. `bytes` is not kept.
  Result<AudioView> read_memory(std::span<const uint8_t> bytes, std::string_view name,
                                const Segment& segment = {});
  // From anything that can be read by position, a piece at a time: what is too large to be held in
  // memory encoded and decoded.
  Result<AudioView> read_stream(std::unique_ptr<RandomAccessFile> file, std::string_view name,
                                const Segment& segment = {});
  // Several single-channel files stacked as channels. An index selector picks one file; lengths
  // must agree after resampling.
  Result<AudioView> read_file_list(std::span<const std::string> paths, const Segment& segment = {});

  // Where the next read may put its samples when they come out as int16 (prefer_int16) and number
  // at most `capacity`: the view then points there and no copy is needed. Forgotten after one read.
  void set_int16_target(int16_t* out, int64_t capacity);

  const ReadOptions& options() const;

 private:
  struct Impl;
  Result<AudioView> read_opened(std::string_view name, const Segment& segment);
  std::unique_ptr<Impl> impl_;
};

enum class PadMode : uint8_t { kRepeat, kZero };
Result<PadMode> parse_pad_mode(std::string_view text);  // "repeat", "zero"

// trunc(min_audio_len_s * sample_rate): what a data set passes to pad_to_min_length.
int64_t min_length_samples(double min_audio_len_s, int sample_rate);
// Fills out[0, max(n, min_samples)) in place when the first n samples are already there: tiled
// (repeat) or followed by zeros. An empty signal becomes zeros in both modes. Returns the length.
template <typename Sample>
int64_t pad_to_min_length(Sample* out, int64_t n, int64_t min_samples, PadMode mode);

// [first, last) samples that trim_silence keeps: frame RMS (zero padded at both ends, centred) not
// more than top_db below the loudest frame, loudest over channels; (0, 0) when none is.
struct TrimRange {
  int64_t begin = 0;
  int64_t end = 0;
};
TrimRange find_trim_range(const float* samples, int64_t frames, int channels,
                          const TrimOptions& options = {});

}  // namespace aerie::audio
