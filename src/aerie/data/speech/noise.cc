#include "aerie/data/speech/noise.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "aerie/base/log.h"
#include "aerie/base/retry.h"

namespace aerie::data {

namespace {

// Of noise whose manifest gives no duration no more than this is looked at, which bounds the memory
// a recording can take.
constexpr double kLongestUnknownS = 3600.0;

audio::ReadOptions read_options(const NoiseOptions& options) {
  audio::ReadOptions out;
  out.sample_rate = options.sample_rate;
  // NeMo does not choose a channel, so that stereo noise always fails; the mean is of more use.
  out.channels =
      options.compat_nemo ? audio::ChannelSelector::all() : audio::ChannelSelector::average();
  out.prefer_int16 = true;
  out.strict = !options.compat_nemo;
  out.limits = options.limits;
  return out;
}

double sum_of(const audio::AudioView& view) {
  double sum = 0.0;
  if (view.pcm16 != nullptr) {
    int64_t total = 0;
    for (int64_t i = 0; i < view.frames; ++i) total += view.pcm16[i];
    return static_cast<double>(total) / 32768.0;
  }
  for (int64_t i = 0; i < view.frames; ++i) sum += static_cast<double>(view.samples[i]);
  return sum;
}

bool has_energy(const audio::AudioView& view) {
  if (view.pcm16 != nullptr)
    return std::any_of(view.pcm16, view.pcm16 + view.frames, [](int16_t s) { return s != 0; });
  return view.samples != nullptr &&
         std::any_of(view.samples, view.samples + view.frames, [](float s) { return s != 0.0f; });
}

int16_t clipped_int16(double sample) {
  return static_cast<int16_t>(std::clamp(std::nearbyint(sample * 32768.0), -32768.0, 32767.0));
}

void write_samples(const audio::AudioView& view, float* out) {
  view.copy_to(out);
}

void write_samples(const audio::AudioView& view, int16_t* out) {
  if (view.pcm16 == out) return;  // read straight into place
  for (int64_t i = 0; i < view.frames; ++i)
    out[i] = view.pcm16 != nullptr ? view.pcm16[i] : clipped_int16(view.samples[i]);
}

void add_to(float& sample, double value) {
  sample = static_cast<float>(sample + value);
}

void add_to(int16_t& sample, double value) {
  sample = clipped_int16(sample / 32768.0 + value);
}

}  // namespace

NoiseReader::NoiseReader(std::shared_ptr<const Manifest> pool, const NoiseOptions& options,
                         NoiseStats* stats)
    : pool_(std::move(pool)), options_(options), stats_(stats), reader_(read_options(options)) {}

template <typename Sample>
Result<int64_t> NoiseReader::read_entry(uint64_t entry, int64_t n, int64_t wanted,
                                        NoiseDraws& draws, Sample* out) {
  const double whole_s = static_cast<double>(n) / options_.sample_rate;
  const double wanted_s = static_cast<double>(wanted) / options_.sample_rate;
  const double duration_s = pool_->duration_s(entry);
  std::vector<std::string> list;
  if (!pool_->resolve_path(entry, path_)) list = pool_->resolve_paths(entry);
  const auto read_segment = [&](const audio::Segment& segment) {
    return retry_passing(RetryPolicy{}, [&] {
      if constexpr (std::is_same_v<Sample, int16_t>) reader_.set_int16_target(out, wanted);
      return list.empty() ? reader_.read_file(path_, segment)
                          : reader_.read_file_list(list, segment);
    });
  };

  audio::AudioView view;
  if (duration_s > whole_s) {  // false when the duration is unknown
    for (int stretch = 0; stretch < kMaxStretches; ++stretch) {
      audio::Segment segment;
      segment.offset_s = draws.offset(duration_s - whole_s);
      segment.duration_s = wanted_s;
      AERIE_ASSIGN_OR_RETURN(view, read_segment(segment));
      if (options_.compat_nemo ? sum_of(view) > 0 : has_energy(view)) break;
      stats_->redrawn.fetch_add(1, std::memory_order_relaxed);
    }
  } else {
    audio::Segment segment;
    segment.offset_s = pool_->offset_s(entry);
    segment.duration_s = duration_s > 0 ? duration_s : kLongestUnknownS;
    AERIE_ASSIGN_OR_RETURN(view, read_segment(segment));
  }
  if (view.channels > 1)
    return data_error(str_cat("noise has ", view.channels, " channels")).with_context(path_);
  stats_->bytes.fetch_add(static_cast<uint64_t>(view.bytes_read), std::memory_order_relaxed);

  const bool silent = options_.compat_nemo ? sum_of(view) == 0 : !has_energy(view);
  const int64_t count = std::min(wanted, view.frames);
  view.frames = count;
  write_samples(view, out);
  if (silent) {
    const double amplitude = std::pow(10.0, draws.level_db(kMinWhiteDb, kMaxWhiteDb) / 20.0);
    for (int64_t i = 0; i < count; ++i) add_to(out[i], amplitude * draws.normal());
  }
  std::fill(out + count, out + wanted, Sample{0});
  return count;
}

template <typename Sample>
int64_t NoiseReader::read_any(int64_t n, int64_t wanted, NoiseDraws& draws, Sample* out) {
  static LogLimiter limiter(10.0);
  const uint64_t entries = pool_ == nullptr ? 0 : pool_->size();
  error_ = ok_status();
  for (int attempt = 0; attempt < kMaxAttempts && entries > 0; ++attempt) {
    const uint64_t entry = draws.entry(entries);
    const Result<int64_t> count = read_entry(entry, n, wanted, draws, out);
    if (count.ok()) {
      stats_->read.fetch_add(1, std::memory_order_relaxed);
      return *count;
    }
    // Another entry would be another mixture because the machine was busy.
    if (is_passing(count.status())) {
      error_ = count.status().with_context(pool_->place(entry));
      break;
    }
    stats_->failed.fetch_add(1, std::memory_order_relaxed);
    limiter.warn("noise", "data", "noise ", pool_->place(entry), ": ", count.status().to_string());
  }
  if (entries > 0) stats_->given_up.fetch_add(1, std::memory_order_relaxed);
  std::fill_n(out, wanted, Sample{0});
  return 0;
}

int64_t NoiseReader::read(int64_t n, int64_t wanted, NoiseDraws& draws, float* out) {
  return read_any(n, wanted, draws, out);
}

int64_t NoiseReader::read(int64_t n, int64_t wanted, NoiseDraws& draws, int16_t* out) {
  return read_any(n, wanted, draws, out);
}

}  // namespace aerie::data
