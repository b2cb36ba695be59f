#include <algorithm>
#include <cmath>
#include <vector>

#include "aerie/kernels/features/log_mel.h"

namespace aerie::kernels::reference {

int log_mel(const LogMel& a, void*) {
  std::vector<double> cosine(kFftSize), sine(kFftSize);
  for (size_t k = 0; k < kFftSize; ++k) {
    cosine[k] = std::cos(2.0 * M_PI * static_cast<double>(k) / kFftSize);
    sine[k] = std::sin(2.0 * M_PI * static_cast<double>(k) / kFftSize);
  }
  const int left = (kFftSize - a.window_length) / 2;
  for (int row = 0; row < a.rows; ++row) {
    // The whole waveform stage first.
    const int length = std::min(a.lengths[row], a.samples);
    std::vector<double> wave(static_cast<size_t>(length));
    for (int n = length - 1; n >= 0; --n) {
      const auto sample = [&](int i) {
        double x = a.audio[static_cast<size_t>(row) * static_cast<size_t>(a.samples) +
                           static_cast<size_t>(i)];
        if (a.dither > 0.0f)
          x += static_cast<double>(a.dither) *
               philox_normal(a.state->dither_key, static_cast<uint32_t>(row / a.items),
                             item_position(*a.state, static_cast<uint64_t>(row % a.items)),
                             static_cast<uint64_t>(i));
        return x;
      };
      wave[static_cast<size_t>(n)] =
          n > 0 ? sample(n) - static_cast<double>(a.preemphasis) * sample(n - 1) : sample(n);
    }
    for (int t = 0; t < std::min(a.lengths[row] / a.hop, a.frames); ++t) {
      std::vector<double> power(kFftBins);
      for (int k = 0; k < kFftBins; ++k) {
        double re = 0.0, im = 0.0;
        for (int w = 0; w < a.window_length; ++w) {
          const int n = t * a.hop - kFftSize / 2 + left + w;
          if (n < 0 || n >= length) continue;
          const double x = wave[static_cast<size_t>(n)] * a.window[w];
          const size_t turn = static_cast<size_t>((left + w) * k % kFftSize);
          re += x * cosine[turn];
          im -= x * sine[turn];
        }
        power[static_cast<size_t>(k)] = re * re + im * im;
      }
      for (int bin = 0; bin < a.bins; ++bin) {
        double sum = 0.0;
        for (int k = 0; k < kFftBins; ++k)
          sum +=
              static_cast<double>(a.filterbank[bin * kFftBins + k]) * power[static_cast<size_t>(k)];
        const double guard = a.log_guard;
        a.out[(static_cast<size_t>(row) * static_cast<size_t>(a.frames) + static_cast<size_t>(t)) *
                  static_cast<size_t>(a.bins) +
              static_cast<size_t>(bin)] =
            static_cast<float>(std::log(a.clamp_guard ? std::max(sum, guard) : sum + guard));
      }
    }
  }
  return kOk;
}

int normalize_features(const NormalizeFeatures& a, void*) {
  const size_t bins = static_cast<size_t>(a.bins), frames = static_cast<size_t>(a.frames);
  for (size_t row = 0; row < static_cast<size_t>(a.rows); ++row) {
    const size_t length = static_cast<size_t>(std::min(a.lengths[row], a.frames));
    const bool masked = a.mask != nullptr && static_cast<int>(row) >= a.first_masked_row;
    for (size_t bin = 0; bin < bins; ++bin) {
      const auto at = [&](size_t t) { return (row * frames + t) * bins + bin; };
      double mean = 0.0, squares = 0.0;
      for (size_t t = 0; t < length; ++t) mean += a.x[at(t)] / static_cast<double>(length);
      for (size_t t = 0; t < length; ++t) squares += (a.x[at(t)] - mean) * (a.x[at(t)] - mean);
      const double deviation =
          (length > 1 ? std::sqrt(squares / static_cast<double>(length - 1)) : 0.0) + a.guard;
      for (size_t t = 0; t < frames; ++t) {
        const bool hidden =
            masked && a.mask[(row - static_cast<size_t>(a.first_masked_row)) * frames + t] != 0;
        a.out[at(t)] = hidden       ? a.embedding[bin]
                       : t < length ? static_cast<float>((a.x[at(t)] - mean) / deviation)
                                    : a.pad_value;
      }
    }
  }
  return kOk;
}

}  // namespace aerie::kernels::reference
