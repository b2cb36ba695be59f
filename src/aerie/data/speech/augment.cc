#include "aerie/data/speech/augment.h"

#include <algorithm>
#include <cmath>

#include "aerie/base/check.h"
#include "aerie/base/simd.h"

namespace aerie::data {

namespace {

Status range_error(const char* low_name, double low, const char* high_name, double high) {
  return invalid_argument(str_cat("batch_augmentor: ", low_name, " must not be greater than ",
                                  high_name, " (", low, " and ", high, ")"));
}

// Appends one segment unless it is empty or its source has nothing.
void push_segment(MixPlan& plan, const MixSegment& segment) {
  if (segment.length > 0 && segment.source_period > 0) plan.segments.push_back(segment);
}

void push_raw_noise(const MixInput& input, int32_t row, MixPlan& plan) {
  push_segment(plan, {.source = MixSource::kNoise,
                      .row = row,
                      .dest_begin = 0,
                      .length = input.noise_len,
                      .source_begin = 0,
                      .source_period = input.noise_len});
}

// The i-th of the numbers 0, 1, ... without `self`.
int32_t other_item(int32_t i, int32_t self) {
  return i < self ? i : i + 1;
}

struct Scratch {
  std::vector<int64_t> counts;
  std::vector<int32_t> speakers;
};

// The first draw after skip and mode.
int64_t draw_mix_length(const AugmentConfig& config, int64_t length, MixDraws& draws) {
  const double rate =
      config.min_mix_rate < config.max_mix_rate
          ? draws.uniform(MixDraw::kMixRate, config.min_mix_rate, config.max_mix_rate)
          : config.min_mix_rate;
  return std::min<int64_t>(length, std::max<int64_t>(1, scaled_length(length, rate)));
}

void plan_multi(const AugmentConfig& config, std::span<const MixInput> inputs, int32_t self,
                bool noise_mode, MixDraws& draws, Scratch& scratch, MixPlan& plan, MixItem& item) {
  const int batch_size = static_cast<int>(inputs.size());
  const int64_t length = inputs[self].audio_len;
  const int64_t mix_len = draw_mix_length(config, length, draws);
  const int num_segments = static_cast<int>(
      draws.randint(MixDraw::kNumSegments, config.min_num_segments, config.max_num_segments));
  const int num_speakers = static_cast<int>(
      draws.randint(MixDraw::kNumSpeakers, config.min_num_speakers, config.max_num_speakers));
  draws.partition(mix_len, num_segments, scratch.counts);
  item.rule = GainRule::kUtterance;
  item.ratio_db = noise_mode
                      ? draws.uniform(MixDraw::kRatio, config.min_r_noise, config.max_r_noise)
                      : draws.uniform(MixDraw::kRatio, config.min_r_speech, config.max_r_speech);

  const size_t first = plan.segments.size();
  if (noise_mode) {
    int64_t begin = 0;
    for (const int64_t count : scratch.counts) {
      plan.segments.push_back({.source = MixSource::kNoise,
                               .row = self,
                               .dest_begin = 0,
                               .length = count,
                               .source_begin = begin,
                               .source_period = inputs[self].noise_len});
      begin += count;
    }
  } else {
    draws.choose(batch_size - 1, std::min(num_speakers, batch_size - 1), scratch.speakers);
    const int chosen = static_cast<int>(scratch.speakers.size());
    int turn = 0;
    for (const int64_t count : scratch.counts) {
      const int32_t row = other_item(scratch.speakers[turn], self);
      const int64_t available = inputs[row].audio_len;
      const int64_t begin =
          available > count ? draws.randint(MixDraw::kSourceStart, 0, available - count - 1) : 0;
      plan.segments.push_back({.source = MixSource::kSpeech,
                               .row = row,
                               .dest_begin = 0,
                               .length = count,
                               .source_begin = begin,
                               .source_period = available});
      if (++turn >= chosen)
        turn = static_cast<int>(draws.randint(MixDraw::kNextSpeaker, 0, chosen - 1));
    }
  }

  int64_t low = 0;
  int64_t high = length - mix_len;
  for (size_t i = first; i < plan.segments.size(); ++i) {
    MixSegment& segment = plan.segments[i];
    segment.dest_begin = low < high ? draws.randint(MixDraw::kPlacement, low, high - 1) : low;
    low = segment.dest_begin + segment.length;
    high += segment.length;
  }
  if (noise_mode && inputs[self].noise_len == 0) plan.segments.resize(first);
}

void plan_single(const AugmentConfig& config, std::span<const MixInput> inputs, int32_t self,
                 bool noise_mode, MixDraws& draws, Scratch& scratch, MixPlan& plan, MixItem& item) {
  const int64_t length = inputs[self].audio_len;
  int64_t mix_len;
  if (config.min_mix_rate < config.max_mix_rate) {
    const int64_t low = scaled_length(length, config.min_mix_rate);
    const int64_t high = scaled_length(length, config.max_mix_rate) - 1;
    mix_len = low < high ? draws.randint(MixDraw::kMixLength, low, high) : low;
  } else {
    mix_len = std::max<int64_t>(1, scaled_length(length, config.min_mix_rate));
  }
  mix_len = std::min(mix_len, length);
  const int64_t dest =
      mix_len < length ? draws.randint(MixDraw::kPlacement, 0, length - mix_len - 1) : 0;

  MixSegment segment{.source = MixSource::kNoise,
                     .row = self,
                     .dest_begin = dest,
                     .length = mix_len,
                     .source_begin = 0,
                     .source_period = inputs[self].noise_len};
  item.rule = GainRule::kSource;
  if (noise_mode) {
    item.ratio_db = draws.uniform(MixDraw::kRatio, config.min_r_noise, config.max_r_noise);
  } else {
    item.ratio_db = draws.uniform(MixDraw::kRatio, config.min_r_speech, config.max_r_speech);
    draws.choose(static_cast<int>(inputs.size()) - 1, 1, scratch.speakers);
    segment.source = MixSource::kSpeech;
    segment.row = other_item(scratch.speakers[0], self);
    segment.source_period = inputs[segment.row].audio_len;
  }
  if (segment.source_period <= mix_len) {
    item.energy_len = mix_len;
  } else {
    item.energy_len = segment.source_period;
    segment.source_begin =
        draws.randint(MixDraw::kSourceStart, 0, segment.source_period - mix_len - 1);
  }
  push_segment(plan, segment);
}

double row_energy(const MixRow& row, int64_t begin, int64_t length) {
  return row.i16 != nullptr ? sum_of_squares(row.i16 + begin, length)
                            : sum_of_squares(row.f32 + begin, length);
}

// Sum of squares of a periodic source over [begin, begin + length).
double periodic_energy(const MixRow& source, int64_t period, int64_t begin, int64_t length) {
  double sum = 0.0;
  int64_t at = begin % period;
  while (length > 0) {
    const int64_t run = std::min(length, period - at);
    sum += row_energy(source, at, run);
    length -= run;
    at = 0;
  }
  return sum;
}

const MixRow& source_row(const MixRows& rows, const MixSegment& segment) {
  const MixRow& row =
      segment.source == MixSource::kNoise ? rows.noise[segment.row] : rows.audio[segment.row];
  AERIE_CHECK(!row.empty(), "segment reads row ", segment.row, ", which is not there");
  return row;
}

double audio_energy_of(const MixRows& rows, size_t i) {
  if (!rows.audio_energy.empty() && rows.audio_energy[i] >= 0) return rows.audio_energy[i];
  return row_energy(rows.audio[i], 0, rows.inputs[i].audio_len);
}

AERIE_SIMD_CLONES void add_scaled(const float* __restrict from, int64_t count, float gain,
                                  float* __restrict out) {
  for (int64_t k = 0; k < count; ++k) out[k] += gain * from[k];
}

AERIE_SIMD_CLONES void add_scaled(const int16_t* __restrict from, int64_t count, float gain,
                                  float* __restrict out) {
  for (int64_t k = 0; k < count; ++k)
    out[k] += gain * (static_cast<float>(from[k]) * (1.0f / 32768.0f));
}

AERIE_SIMD_CLONES int64_t int_sum_of_squares(const int16_t* samples, int64_t length) {
  // Two squares of 16-bit numbers fit into 32 unsigned bits; blocks keep the inner sums small.
  constexpr int64_t kBlock = 2048;
  int64_t total = 0;
  for (int64_t begin = 0; begin < length; begin += kBlock) {
    const int64_t end = std::min(length, begin + kBlock);
    int64_t sum = 0;
    for (int64_t i = begin; i < end; ++i)
      sum += static_cast<uint32_t>(int32_t{samples[i]} * int32_t{samples[i]});
    total += sum;
  }
  return total;
}

}  // namespace

Status AugmentConfig::validate() const {
  if (kind == AugmentKind::kNone) return ok_status();
  if (!(prob >= 0 && prob <= 1))
    return invalid_argument(str_cat("batch_augmentor: prob must be in [0, 1], got ", prob));
  if (!(noise_ratio >= 0 && noise_ratio <= 1))
    return invalid_argument(
        str_cat("batch_augmentor: noise_ratio must be in [0, 1], got ", noise_ratio));
  if (!(min_r_speech <= max_r_speech))
    return range_error("min_r_speech", min_r_speech, "max_r_speech", max_r_speech);
  if (!(min_r_noise <= max_r_noise))
    return range_error("min_r_noise", min_r_noise, "max_r_noise", max_r_noise);
  if (!(0 <= min_mix_rate && min_mix_rate <= max_mix_rate && max_mix_rate <= 1))
    return invalid_argument(
        str_cat("batch_augmentor: min_mix_rate must not be greater than max_mix_rate and both must "
                "be in [0, 1], got ",
                min_mix_rate, " and ", max_mix_rate));
  if (kind == AugmentKind::kSpeakerNoise) return ok_status();
  if (min_num_segments < 1)
    return invalid_argument(
        str_cat("batch_augmentor: min_num_segments must be at least 1, got ", min_num_segments));
  if (min_num_speakers < 1)
    return invalid_argument(
        str_cat("batch_augmentor: min_num_speakers must be at least 1, got ", min_num_speakers));
  if (min_num_segments > max_num_segments)
    return range_error("min_num_segments", min_num_segments, "max_num_segments", max_num_segments);
  if (min_num_speakers > max_num_speakers)
    return range_error("min_num_speakers", min_num_speakers, "max_num_speakers", max_num_speakers);
  return ok_status();
}

int64_t scaled_length(int64_t length, double rate) {
  return static_cast<int64_t>(static_cast<float>(length) * static_cast<float>(rate));
}

double sum_of_squares(const float* samples, int64_t length) {
  // Squares of 16-bit audio are exact in float products of double; eight lanes vectorise and keep
  // the result independent of the caller.
  double lanes[8] = {};
  int64_t i = 0;
  for (; i + 8 <= length; i += 8)
    for (int k = 0; k < 8; ++k)
      lanes[k] += static_cast<double>(samples[i + k]) * static_cast<double>(samples[i + k]);
  for (; i < length; ++i) lanes[0] += static_cast<double>(samples[i]) * samples[i];
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
         ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

double sum_of_squares(const int16_t* samples, int64_t length) {
  return static_cast<double>(int_sum_of_squares(samples, length)) * (1.0 / (32768.0 * 32768.0));
}

int64_t binomial(RandomStream& random, int64_t n, double p) {
  if (n <= 0 || p <= 0) return 0;
  if (p >= 1) return n;
  if (p > 0.5) return n - binomial(random, n, 1 - p);
  if (static_cast<double>(n) * p < 10) {
    // Waiting times: the gaps between successes are geometric.
    const double log_q = std::log1p(-p);
    int64_t successes = 0;
    double trials = 0;
    while (true) {
      trials += std::floor(std::log1p(-random.uniform()) / log_q) + 1;
      if (trials > static_cast<double>(n)) return successes;
      ++successes;
    }
  }
  // Transformed rejection (Hoermann, 1993, algorithm BTRS).
  int sign;
  const double dn = static_cast<double>(n);
  const double spq = std::sqrt(dn * p * (1 - p));
  const double b = 1.15 + 2.53 * spq;
  const double a = -0.0873 + 0.0248 * b + 0.01 * p;
  const double centre = dn * p + 0.5;
  const double alpha = (2.83 + 5.1 / b) * spq;
  const double v_accept = 0.92 - 4.2 / b;
  const double log_odds = std::log(p / (1 - p));
  const double mode = std::floor((dn + 1) * p);
  const double h = lgamma_r(mode + 1, &sign) + lgamma_r(dn - mode + 1, &sign);
  while (true) {
    const double u = random.uniform() - 0.5;
    double v = random.uniform();
    const double us = 0.5 - std::abs(u);
    const double k = std::floor((2 * a / us + b) * u + centre);
    if (k < 0 || k > dn) continue;
    if (us >= 0.07 && v <= v_accept) return static_cast<int64_t>(k);
    v = std::log(v * alpha / (a / (us * us) + b));
    if (v <= h - lgamma_r(k + 1, &sign) - lgamma_r(dn - k + 1, &sign) + (k - mode) * log_odds)
      return static_cast<int64_t>(k);
  }
}

void PhiloxMixDraws::begin_item(size_t, uint64_t position) {
  stream_ = RandomStream(seed_, Purpose::kAugment, epoch_, position);
}

double PhiloxMixDraws::uniform(MixDraw, double low, double high) {
  return stream_.uniform(low, high);
}

int64_t PhiloxMixDraws::randint(MixDraw, int64_t low, int64_t high) {
  return stream_.randint(low, high);
}

// Bin by bin, the count is binomial in what is left. Given the counts, every sequence of balls is
// equally likely, so the next bin to be hit for the first time is one of the remaining bins with
// probability proportional to its count.
void PhiloxMixDraws::partition(int64_t total, int bins, std::vector<int64_t>& counts) {
  counts.clear();
  int64_t left = total;
  for (int bin = 0; bin < bins && left > 0; ++bin) {
    const int64_t count = bin + 1 == bins ? left : binomial(stream_, left, 1.0 / (bins - bin));
    if (count > 0) counts.push_back(count);
    left -= count;
  }
  int64_t unseen = total;
  for (size_t i = 0; i + 1 < counts.size(); ++i) {
    int64_t ball = static_cast<int64_t>(stream_.below(static_cast<uint64_t>(unseen)));
    size_t pick = i;
    while (ball >= counts[pick]) ball -= counts[pick++];
    unseen -= counts[pick];
    std::swap(counts[i], counts[pick]);
  }
}

void PhiloxMixDraws::choose(int n, int k, std::vector<int32_t>& chosen) {
  chosen.clear();
  if (k == 1) {
    chosen.push_back(static_cast<int32_t>(stream_.below(static_cast<uint64_t>(n))));
    return;
  }
  pool_.resize(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) pool_[i] = i;
  for (int i = 0; i < k; ++i) {
    std::swap(pool_[i], pool_[i + static_cast<int>(stream_.below(static_cast<uint64_t>(n - i)))]);
    chosen.push_back(pool_[i]);
  }
}

MixNeeds mix_needs(const AugmentConfig& config, MixDraws& draws, size_t batch_size,
                   const MixInput& input) {
  if (config.kind == AugmentKind::kNone) return {false, input.audio_len};
  draws.begin_item(0, input.position);
  MixNeeds out;
  out.mixed = !(draws.uniform(MixDraw::kSkip, 0, 1) > config.prob);
  if (config.compat_nemo) {
    out.noise_samples = input.audio_len;
    return out;
  }
  if (!out.mixed) return out;
  if (!(draws.uniform(MixDraw::kMode, 0, 1) < config.noise_ratio || batch_size == 1)) return out;
  // Segments of the Multi kind take the noise from its start; the other may take any part.
  out.noise_samples = config.kind == AugmentKind::kMultiSpeakerNoise
                          ? draw_mix_length(config, input.audio_len, draws)
                          : input.audio_len;
  return out;
}

void plan_mix(const AugmentConfig& config, std::span<const MixInput> inputs, MixDraws& draws,
              MixPlan& plan) {
  plan.items.clear();
  plan.segments.clear();
  Scratch scratch;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const MixInput& input = inputs[i];
    AERIE_DCHECK(input.audio_len >= 1, "item ", i, " is empty");
    const int32_t self = static_cast<int32_t>(i);
    MixItem item;
    item.first_segment = static_cast<int32_t>(plan.segments.size());
    item.noise_len = input.audio_len;
    item.noisy_len = input.audio_len;
    if (config.kind == AugmentKind::kNone) {
      push_raw_noise(input, self, plan);
      item.noise_len = input.noise_len;
    } else {
      draws.begin_item(i, input.position);
      if (draws.uniform(MixDraw::kSkip, 0, 1) > config.prob) {
        // Where there is no noise NeMo has zeros as long as the utterance: its length stays.
        if (config.compat_nemo && input.noise_len > 0) {
          push_raw_noise(input, self, plan);
          item.noise_len = input.noise_len;
          item.noisy_len = input.noise_len;
        }
      } else {
        const bool noise_mode =
            draws.uniform(MixDraw::kMode, 0, 1) < config.noise_ratio || inputs.size() == 1;
        if (config.kind == AugmentKind::kMultiSpeakerNoise)
          plan_multi(config, inputs, self, noise_mode, draws, scratch, plan, item);
        else
          plan_single(config, inputs, self, noise_mode, draws, scratch, plan, item);
      }
    }
    item.num_segments = static_cast<int32_t>(plan.segments.size()) - item.first_segment;
    plan.items.push_back(item);
  }
}

void resolve_gains(const MixRows& rows, MixPlan& plan) {
  for (size_t i = 0; i < plan.items.size(); ++i) {
    MixItem& item = plan.items[i];
    if (item.rule == GainRule::kUnit || item.num_segments == 0) {
      item.gain = 1.0f;
      continue;
    }
    const double length = static_cast<double>(rows.inputs[i].audio_len);
    const double audio_energy = audio_energy_of(rows, i) / length;
    double noise_energy = 0.0;
    for (int32_t s = item.first_segment; s < item.first_segment + item.num_segments; ++s) {
      const MixSegment& segment = plan.segments[s];
      const MixRow& source = source_row(rows, segment);
      if (item.rule == GainRule::kSource) {
        const bool whole = segment.source == MixSource::kSpeech &&
                           item.energy_len == rows.inputs[segment.row].audio_len;
        noise_energy =
            (whole ? audio_energy_of(rows, static_cast<size_t>(segment.row))
                   : periodic_energy(source, segment.source_period, 0, item.energy_len)) /
            static_cast<double>(item.energy_len);
      } else {
        noise_energy +=
            periodic_energy(source, segment.source_period, segment.source_begin, segment.length) /
            length;
      }
    }
    item.gain = noise_energy > 0
                    ? static_cast<float>(std::sqrt(
                          audio_energy / (std::pow(10.0, item.ratio_db / 10.0) * noise_energy)))
                    : 0.0f;
  }
}

void add_segments(const MixRows& rows, const MixPlan& plan, size_t i, float* noisy) {
  const MixItem& item = plan.items[i];
  for (int32_t s = item.first_segment; s < item.first_segment + item.num_segments; ++s) {
    const MixSegment& segment = plan.segments[s];
    const MixRow& source = source_row(rows, segment);
    int64_t at = segment.source_begin % segment.source_period;
    for (int64_t done = 0; done < segment.length;) {
      const int64_t run = std::min(segment.length - done, segment.source_period - at);
      float* out = noisy + segment.dest_begin + done;
      if (source.i16 != nullptr)
        add_scaled(source.i16 + at, run, item.gain, out);
      else
        add_scaled(source.f32 + at, run, item.gain, out);
      done += run;
      at = 0;
    }
  }
}

void write_noise(const MixRows& rows, const MixPlan& plan, size_t i, float* out, int64_t length) {
  std::fill_n(out, length, 0.0f);
  add_segments(rows, plan, i, out);
}

}  // namespace aerie::data
