#include "aerie/models/nest/mel_filterbank.h"

#include <algorithm>
#include <cmath>

#include "aerie/base/strings.h"

namespace aerie::nest {
namespace {

// Linear below 1 kHz (15 mels), logarithmic above: 27 mels per factor of 6.4.
constexpr double kLinearStep = 200.0 / 3.0;
constexpr double kBreakHz = 1000.0;
const double kLogStep = std::log(6.4) / 27.0;

double hz_to_mel(double hz) {
  if (hz < kBreakHz) return hz / kLinearStep;
  return kBreakHz / kLinearStep + std::log(hz / kBreakHz) / kLogStep;
}

double mel_to_hz(double mel) {
  const double break_mel = kBreakHz / kLinearStep;
  if (mel < break_mel) return kLinearStep * mel;
  return kBreakHz * std::exp(kLogStep * (mel - break_mel));
}

}  // namespace

Status check_filterbank(const FilterbankOptions& o) {
  auto bad = [](std::string text) {
    return invalid_argument(std::move(text)).with_context("model.preprocessor");
  };
  if (!(o.low_hz >= 0.0 && o.low_hz < o.high_hz))
    return bad(str_cat("lowfreq ", o.low_hz, " must be below highfreq ", o.high_hz));
  for (const char* known : {"", "slaney", "1", "2", "inf"})
    if (o.norm == known) return ok_status();
  return bad(str_cat("mel_norm '", o.norm, "' is not known"))
      .with_hint("slaney, 1, 2, inf or null");
}

std::vector<float> mel_filterbank(const FilterbankOptions& o) {
  const int64_t bins = o.n_fft / 2 + 1;
  const double low = hz_to_mel(o.low_hz);
  const double high = hz_to_mel(o.high_hz);
  const double step = (high - low) / static_cast<double>(o.num_mels + 1);
  std::vector<double> edges(static_cast<size_t>(o.num_mels + 2));
  for (int64_t i = 0; i < o.num_mels + 2; ++i) {
    // The last point is the end itself, as numpy's linspace has it.
    const double mel = i == o.num_mels + 1 ? high : low + static_cast<double>(i) * step;
    edges[static_cast<size_t>(i)] = mel_to_hz(mel);
  }

  const double bin_hz =
      1.0 / (static_cast<double>(o.n_fft) * (1.0 / static_cast<double>(o.sample_rate)));
  std::vector<float> bank(static_cast<size_t>(o.num_mels * bins), 0.0f);
  for (int64_t m = 0; m < o.num_mels; ++m) {
    const double left = edges[static_cast<size_t>(m)];
    const double centre = edges[static_cast<size_t>(m + 1)];
    const double right = edges[static_cast<size_t>(m + 2)];
    float* row = bank.data() + m * bins;
    for (int64_t k = 0; k < bins; ++k) {
      const double hz = static_cast<double>(k) * bin_hz;
      const double rising = (hz - left) / (centre - left);
      const double falling = (right - hz) / (right - centre);
      row[k] = static_cast<float>(std::max(0.0, std::min(rising, falling)));
    }
    if (o.norm == "slaney") {
      const double area = 2.0 / (right - left);
      for (int64_t k = 0; k < bins; ++k) row[k] = static_cast<float>(row[k] * area);
    } else if (o.norm == "1" || o.norm == "2" || o.norm == "inf") {
      double length = 0.0;
      for (int64_t k = 0; k < bins; ++k) {
        const double v = row[k];
        if (o.norm == "1") length += v;
        if (o.norm == "2") length += v * v;
        if (o.norm == "inf") length = std::max(length, v);
      }
      if (o.norm == "2") length = std::sqrt(length);
      if (length > 0.0)
        for (int64_t k = 0; k < bins; ++k) row[k] = static_cast<float>(row[k] / length);
    }
  }
  return bank;
}

}  // namespace aerie::nest
