#include "aerie/audio/audio_reader.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "aerie/audio/decode_path.h"
#include "aerie/audio/resampler.h"

namespace aerie::audio {
namespace {

// Python's int(seconds * rate) for what a manifest may hold; never beyond what a file can have.
int64_t truncated_frames(double seconds, int rate) {
  constexpr double kMost = 4e18;
  const double frames = seconds * static_cast<double>(rate);
  return frames >= kMost ? static_cast<int64_t>(kMost) : static_cast<int64_t>(frames);
}

// Frames of the file that become `samples` at the result's rate.
int64_t source_frames(int64_t samples, int file_rate, int out_rate) {
  const double frames = static_cast<double>(samples) * file_rate / out_rate;
  return frames >= 4e18 ? static_cast<int64_t>(4e18) : static_cast<int64_t>(frames);
}

Status cut_short(const AudioInfo& info) {
  const double rate = info.sample_rate;
  return data_error(str_cat(kCutShort, ": its header promises ",
                            static_cast<double>(info.frames + info.missing_frames) / rate,
                            " s, the file holds ", static_cast<double>(info.frames) / rate, " s"))
      .with_hint("copy or make the recording again");
}

Status no_room(double held_s, double room_s) {
  return data_error(str_cat("holds ", held_s > 0 ? str_cat(held_s, " s") : std::string("more"),
                            " where there is room for ", room_s, " s"))
      .with_hint("give its duration in the manifest, or raise aerie.data.memory_budget_gib");
}

// The segment is there to be used: it has a beginning, and the file was not cut before its end.
Status check_whole(const FrameRange& range, const AudioInfo& info) {
  if (info.frames < 0) return ok_status();
  if (info.missing_frames == 0)
    return range.first < info.frames ? ok_status() : data_error(std::string(kNoAudio));
  const int64_t promised = info.frames + info.missing_frames;
  const int64_t end = range.count < 0 || range.count > promised - range.first
                          ? promised
                          : range.first + range.count;
  const bool cut = static_cast<double>(end - info.frames) > kCutToleranceS * info.sample_rate ||
                   range.first >= info.frames;
  return cut ? cut_short(info) : ok_status();
}

// Which frames of the recording a segment means; an offset behind the end is an error.
Result<FrameRange> frames_of(const Segment& segment, const AudioInfo& info, int out_rate,
                             bool strict) {
  FrameRange range;
  if (segment.offset_s > 0) range.first = truncated_frames(segment.offset_s, info.sample_rate);
  if (segment.duration_s > 0) range.count = truncated_frames(segment.duration_s, info.sample_rate);
  if (info.frames >= 0 && range.first > info.frames + (strict ? info.missing_frames : 0))
    return data_error(str_cat("offset ", segment.offset_s, " s is behind the end (",
                              info.duration_s(), " s)"))
        .with_hint("correct offset in the manifest");
  if (strict) AERIE_RETURN_IF_ERROR(check_whole(range, info));
  if (range.count < 0 && segment.room_samples > 0) {
    const int64_t room = source_frames(segment.room_samples, info.sample_rate, out_rate);
    const int64_t left = info.frames - range.first;
    if (info.frames >= 0 && left > room)
      return no_room(static_cast<double>(left) / info.sample_rate,
                     static_cast<double>(room) / info.sample_rate);
    range.count = room + 1;  // one more shows that there is more
  }
  return range;
}

bool all_finite(const float* samples, int64_t n) {
  // On the bits and without branches, so that the loop vectorises.
  uint32_t bad = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(samples[i]);
    bad |= static_cast<uint32_t>((bits & 0x7F800000u) == 0x7F800000u);
  }
  return bad == 0;
}

}  // namespace

struct AudioReader::Impl {
  ReadOptions options;
  ByteSource source;
  DecodePath paths;
  Resampler resampler;
  GrowBuffer<float> decoded;
  GrowBuffer<float> selected;  // channel lists only
  GrowBuffer<float> resampled;
  GrowBuffer<float> stacked;  // file lists only
  GrowBuffer<int16_t> decoded16;
  int16_t* target = nullptr;  // of the next read
  int64_t target_capacity = 0;
  std::vector<int16_t> frame;

  Env& env() const { return options.env != nullptr ? *options.env : Env::real(); }

  // Decodes, selects and resamples what `source` holds.
  Result<AudioView> read(const Segment& segment, const ChannelSelector& selector, bool trim);
  void trim(AudioView* view) const;
};

void AudioReader::Impl::trim(AudioView* view) const {
  const TrimRange kept = find_trim_range(view->samples, view->frames, view->channels, options.trim);
  view->samples += kept.begin * view->channels;
  view->frames = kept.end - kept.begin;
}

Result<AudioView> AudioReader::Impl::read(const Segment& segment, const ChannelSelector& selector,
                                          bool trim_it) {
  int16_t* const destination = std::exchange(target, nullptr);
  AudioView view;
  AERIE_ASSIGN_OR_RETURN(Decoder * decoder,
                         paths.open(source, options.limits, options.int_values, &view.source));
  const int rate = view.source.sample_rate;
  const int channels = view.source.channels;
  AERIE_ASSIGN_OR_RETURN(const int out_channels, selector.output_channels(channels));
  const bool resample = options.sample_rate > 0 && options.sample_rate != rate;
  view.channels = out_channels;
  view.sample_rate = resample ? options.sample_rate : rate;
  AERIE_ASSIGN_OR_RETURN(const FrameRange range,
                         frames_of(segment, view.source, view.sample_rate, options.strict));
  const bool mixes = selector.kind() == ChannelSelector::Kind::kAverage && channels > 1;
  const bool as_int16 = options.prefer_int16 && !resample && !mixes && !trim_it &&
                        out_channels <= channels && decoder->is_exact_int16();

  SampleSink sink;
  decoded16.borrow(as_int16 ? destination : nullptr, target_capacity);
  if (as_int16)
    sink.ints = &decoded16;
  else
    sink.floats = &decoded;
  const Status status = decoder->decode(range, sink);
  decoder->close();
  view.bytes_read = source.bytes_read();
  AERIE_RETURN_IF_ERROR(status);
  view.frames = (as_int16 ? decoded16.size() : decoded.size()) / channels;
  if (view.frames == 0 && options.strict) return data_error(std::string(kNoAudio));
  if (segment.room_samples > 0 && !(segment.duration_s > 0) && view.frames == range.count)
    return no_room(0.0, static_cast<double>(range.count - 1) / rate);

  if (as_int16) {
    int16_t* data = decoded16.data();
    const std::vector<int>& wanted = selector.channels();
    if (selector.kind() != ChannelSelector::Kind::kAll && channels > 1) {
      // A list may repeat or reorder channels: each frame goes through a small copy.
      frame.resize(static_cast<size_t>(channels));
      for (int64_t i = 0; i < view.frames; ++i) {
        std::memcpy(frame.data(), data + i * channels, frame.size() * sizeof(int16_t));
        for (int k = 0; k < out_channels; ++k) {
          const int c = wanted[static_cast<size_t>(k)];
          data[i * out_channels + k] = frame[static_cast<size_t>(c < 0 ? c + channels : c)];
        }
      }
    }
    if (view.frames > 0) view.pcm16 = data;
    return view;
  }

  // Only float formats can carry NaN or infinity; one such sample would poison a training run.
  const bool may_be_bad = view.source.codec == Codec::kWavFloat ||
                          view.source.bits_per_sample == 0 || view.source.bits_per_sample >= 32;
  if (may_be_bad && !all_finite(decoded.data(), decoded.size()))
    return data_error("holds samples that are not numbers (NaN or infinity)");
  const float* samples = decoded.data();
  if (selector.kind() == ChannelSelector::Kind::kList && out_channels > 1) {
    AERIE_RETURN_IF_ERROR(selected.resize(view.frames * out_channels));
    select_channels(samples, view.frames, channels, selector, selected.data());
    samples = selected.data();
  } else if (selector.kind() != ChannelSelector::Kind::kAll && channels > 1) {
    select_channels(samples, view.frames, channels, selector, decoded.data());
  }
  if (resample) {
    const int64_t out = resampled_length(view.frames, rate, options.sample_rate);
    if (out > options.limits.max_samples / std::max(1, out_channels))
      return too_many_samples(view.source, options.limits);
    AERIE_RETURN_IF_ERROR(resampler.process(samples, view.frames, out_channels, rate,
                                            options.sample_rate, &resampled));
    samples = resampled.data();
    view.frames = out;
  }
  view.samples = view.frames > 0 ? samples : nullptr;
  if (trim_it && view.frames > 0) trim(&view);
  if (view.frames == 0) view.samples = nullptr;
  return view;
}

AudioReader::AudioReader(ReadOptions options) : impl_(std::make_unique<Impl>()) {
  impl_->options = std::move(options);
}
AudioReader::~AudioReader() = default;
AudioReader::AudioReader(AudioReader&&) noexcept = default;
AudioReader& AudioReader::operator=(AudioReader&&) noexcept = default;

void AudioReader::set_int16_target(int16_t* out, int64_t capacity) {
  impl_->target = out;
  impl_->target_capacity = capacity;
}

const ReadOptions& AudioReader::options() const {
  return impl_->options;
}

Result<AudioView> AudioReader::read_file(const std::string& path, const Segment& segment) {
  Impl& self = *impl_;
  if (Status status = self.source.open_file(self.env(), path); !status.ok()) {
    self.target = nullptr;
    return std::move(status).with_context(path);
  }
  const ChannelSelector& selector =
      segment.channels != nullptr ? *segment.channels : self.options.channels;
  Result<AudioView> view = self.read(segment, selector, self.options.trim_silence);
  self.source.close();
  if (!view.ok()) return view.status().with_context(path);
  return view;
}

Result<AudioView> AudioReader::read_memory(std::span<const uint8_t> bytes, std::string_view name,
                                           const Segment& segment) {
  impl_->source.open_memory(bytes);
  return read_opened(name, segment);
}

Result<AudioView> AudioReader::read_stream(std::unique_ptr<RandomAccessFile> file,
                                           std::string_view name, const Segment& segment) {
  impl_->source.open_file(std::move(file));
  return read_opened(name, segment);
}

// A member of an archive.
Result<AudioView> AudioReader::read_opened(std::string_view name, const Segment& segment) {
  Impl& self = *impl_;
  static const ChannelSelector kAll;
  const ChannelSelector* selector = &self.options.channels;
  if (segment.channels != nullptr) selector = segment.channels;
  if (self.options.memory_ignores_channels) selector = &kAll;
  Result<AudioView> view = self.read(segment, *selector, self.options.trim_silence);
  self.source.close();
  if (!view.ok()) return view.status().with_context(std::string(name));
  return view;
}

Result<AudioView> AudioReader::read_file_list(std::span<const std::string> paths,
                                              const Segment& segment) {
  Impl& self = *impl_;
  self.target = nullptr;  // channels are stacked elsewhere
  if (paths.empty()) return data_error("an empty list of audio files");
  const ChannelSelector& selector =
      segment.channels != nullptr ? *segment.channels : self.options.channels;
  const int num_files = static_cast<int>(paths.size());
  if (selector.kind() == ChannelSelector::Kind::kIndex) {
    int channel = selector.channels()[0];
    if (channel < 0) channel += num_files;
    if (channel < 0 || channel >= num_files)
      return data_error(str_cat("channel_selector ", selector.to_string(), " on a list of ",
                                num_files, " files"))
          .with_context(paths[0]);
    paths = paths.subspan(static_cast<size_t>(channel), 1);
  }
  static const ChannelSelector kAll;
  // The files are read as they are; trimming and the selector see the stacked signal.
  const bool prefer_int16 = std::exchange(self.options.prefer_int16, false);
  AudioView all;
  Status status;
  for (size_t f = 0; f < paths.size() && status.ok(); ++f) {
    status = self.source.open_file(self.env(), paths[f]);
    if (status.ok()) {
      Result<AudioView> one = self.read(segment, kAll, false);
      self.source.close();
      if (!one.ok()) {
        status = one.status();
      } else if (one->channels != 1) {
        status = data_error(
            str_cat("has ", one->channels, " channels; files of a list must have one each"));
      } else if (f > 0 && one->frames != all.frames) {
        status = data_error(
            str_cat("has ", one->frames, " samples, the first file of the list ", all.frames));
      } else if (f > 0 && one->sample_rate != all.sample_rate) {
        status = data_error(
            str_cat("has ", one->sample_rate, " Hz, the first file of the list ", all.sample_rate));
      } else {
        const int64_t bytes = all.bytes_read + one->bytes_read;
        if (f == 0) {
          all = *one;
          const int64_t total = one->frames * static_cast<int64_t>(paths.size());
          status = total > self.options.limits.max_samples
                       ? too_many_samples(one->source, self.options.limits)
                       : self.stacked.resize(total);
        }
        all.bytes_read = bytes;
        if (status.ok())
          for (int64_t i = 0; i < one->frames; ++i)
            self.stacked.data()[i * static_cast<int64_t>(paths.size()) + static_cast<int64_t>(f)] =
                one->samples[i];
      }
    }
    if (!status.ok()) status = std::move(status).with_context(paths[f]);
  }
  self.options.prefer_int16 = prefer_int16;
  AERIE_RETURN_IF_ERROR(status);
  all.channels = static_cast<int>(paths.size());
  all.samples = self.stacked.data();
  if (selector.kind() == ChannelSelector::Kind::kList ||
      selector.kind() == ChannelSelector::Kind::kAverage) {
    Result<int> out = selector.output_channels(all.channels);
    if (!out.ok()) return out.status().with_context(paths[0]);
    AERIE_RETURN_IF_ERROR(self.selected.resize(all.frames * *out));
    select_channels(all.samples, all.frames, all.channels, selector, self.selected.data());
    all.samples = self.selected.data();
    all.channels = *out;
  }
  if (self.options.trim_silence && all.frames > 0) self.trim(&all);
  if (all.frames == 0) all.samples = nullptr;
  return all;
}

void AudioView::copy_to(float* out) const {
  if (pcm16 != nullptr) {
    for (int64_t i = 0; i < size(); ++i) out[i] = static_cast<float>(pcm16[i]) * (1.0f / 32768.0f);
  } else if (samples != nullptr) {
    std::memcpy(out, samples, static_cast<size_t>(size()) * sizeof(float));
  }
}

Result<PadMode> parse_pad_mode(std::string_view text) {
  if (text == "repeat") return PadMode::kRepeat;
  if (text == "zero") return PadMode::kZero;
  return invalid_argument(str_cat("pad_audio_mode '", text, "' is unknown"))
      .with_hint("use repeat or zero");
}

int64_t min_length_samples(double min_audio_len_s, int sample_rate) {
  return min_audio_len_s > 0 ? truncated_frames(min_audio_len_s, sample_rate) : 0;
}

template <typename Sample>
int64_t pad_to_min_length(Sample* out, int64_t n, int64_t min_samples, PadMode mode) {
  if (n >= min_samples) return n;
  if (n == 0 || mode == PadMode::kZero) {
    std::fill(out + n, out + min_samples, Sample{});
    return min_samples;
  }
  // Doubling copies: the filled part is always whole repetitions followed by a prefix.
  for (int64_t have = n; have < min_samples;) {
    const int64_t add = std::min(have, min_samples - have);
    std::memcpy(out + have, out, static_cast<size_t>(add) * sizeof(Sample));
    have += add;
  }
  return min_samples;
}
template int64_t pad_to_min_length<float>(float*, int64_t, int64_t, PadMode);
template int64_t pad_to_min_length<int16_t>(int16_t*, int64_t, int64_t, PadMode);

}  // namespace aerie::audio
