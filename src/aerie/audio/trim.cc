#include <algorithm>
#include <cmath>
#include <vector>

#include "aerie/audio/audio_reader.h"

namespace aerie::audio {
namespace {

double energy(const float* samples, int64_t begin, int64_t end, int channels, int channel) {
  double sum = 0.0;
  for (int64_t i = begin; i < end; ++i) {
    const double value = samples[i * channels + channel];
    sum += value * value;
  }
  return sum;
}

}  // namespace

TrimRange find_trim_range(const float* samples, int64_t frames, int channels,
                          const TrimOptions& options) {
  const int64_t length = options.frame_length;
  const int64_t hop = options.hop_length;
  AERIE_CHECK(length > 0 && hop > 0 && channels > 0, "bad trim options");
  // Window f covers [f * hop - length / 2, f * hop - length / 2 + length) of the signal.
  const int64_t half = length / 2;
  const int64_t padded = frames + 2 * half;
  if (padded < length) return {};
  const int64_t windows = 1 + (padded - length) / hop;
  // Square of the RMS per window in float32, the precision the decision is made in; the sums are
  // exact enough in double that their order does not matter.
  // Kept per thread, so that a loader's threads allocate once.
  thread_local std::vector<float> loudest;
  thread_local std::vector<double> hop_energy;
  loudest.assign(static_cast<size_t>(windows), 0.0f);
  const bool by_hops = length % hop == 0 && half % hop == 0;
  const int64_t hops = (frames + hop - 1) / hop;
  if (by_hops) hop_energy.resize(static_cast<size_t>(hops));
  float reference = 0.0f;
  for (int c = 0; c < channels; ++c) {
    if (by_hops)
      for (int64_t h = 0; h < hops; ++h)
        hop_energy[static_cast<size_t>(h)] =
            energy(samples, h * hop, std::min(frames, (h + 1) * hop), channels, c);
    for (int64_t f = 0; f < windows; ++f) {
      const int64_t begin = f * hop - half;
      double sum = 0.0;
      if (by_hops) {
        for (int64_t h = std::max<int64_t>(0, begin / hop);
             h < std::min(hops, (begin + length) / hop); ++h)
          sum += hop_energy[static_cast<size_t>(h)];
      } else {
        sum = energy(samples, std::max<int64_t>(0, begin), std::min(frames, begin + length),
                     channels, c);
      }
      const float rms = std::sqrt(static_cast<float>(sum / static_cast<double>(length)));
      loudest[static_cast<size_t>(f)] = std::max(loudest[static_cast<size_t>(f)], rms);
      reference = std::max(reference, rms);
    }
  }
  const auto decibel = [](float rms) { return 10.0f * std::log10(std::max(1e-10f, rms * rms)); };
  const float reference_db = decibel(reference);
  int64_t first = -1;
  int64_t last = -1;
  for (int64_t f = 0; f < windows; ++f) {
    if (decibel(loudest[static_cast<size_t>(f)]) - reference_db <=
        static_cast<float>(-options.top_db))
      continue;
    if (first < 0) first = f;
    last = f;
  }
  if (first < 0) return {};
  return {std::min(frames, first * hop), std::min(frames, (last + 1) * hop)};
}

}  // namespace aerie::audio
