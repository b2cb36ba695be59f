#include "aerie/data/speech/speed_resampler.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numbers>
#include <numeric>

namespace aerie::data {

namespace {

constexpr int kMaxKeptPhases = 4096;
constexpr size_t kMaxKeptRates = 64;

// Modified Bessel function of order 0 by its power series; converges for every argument used here.
double bessel_i0(double x) {
  const double quarter = x * x / 4;
  double term = 1;
  double sum = 1;
  for (int k = 1; k < 1000; ++k) {
    term *= quarter / (static_cast<double>(k) * k);
    sum += term;
    if (term < sum * 1e-17) break;
  }
  return sum;
}

}  // namespace

std::shared_ptr<const SpeedResampler::Table> SpeedResampler::make_table(int zeros, int bits,
                                                                        double beta,
                                                                        double rolloff) {
  auto table = std::make_shared<Table>();
  table->steps = 1 << bits;
  const int n = table->steps * zeros;
  table->window.resize(static_cast<size_t>(n) + 1);
  const double scale = 1 / bessel_i0(beta);
  for (int i = 0; i <= n; ++i) {
    const double x = rolloff * i / table->steps;
    const double sinc = i == 0 ? 1.0 : std::sin(std::numbers::pi * x) / (std::numbers::pi * x);
    const double at = static_cast<double>(i) / n;
    const double kaiser = bessel_i0(beta * std::sqrt(std::max(0.0, 1 - at * at))) * scale;
    table->window[i] = rolloff * sinc * kaiser;
  }
  return table;
}

Result<SpeedResampler> SpeedResampler::make(std::string_view type) {
  // Beta, roll-off, zero crossings and table bits of resampy 0.4's two filters.
  static std::once_flag best_once, fast_once;
  static std::shared_ptr<const Table> best, fast;
  if (type == "kaiser_best") {
    std::call_once(best_once,
                   [] { best = make_table(50, 13, 12.984585183195971, 0.9173473712608761); });
    return SpeedResampler(best);
  }
  if (type == "kaiser_fast") {
    std::call_once(fast_once,
                   [] { fast = make_table(24, 9, 9.90322436038694, 0.8682120388377784); });
    return SpeedResampler(fast);
  }
  if (type == "fft" || type == "scipy")
    return unsupported(str_cat("speed perturbation: resample_type '", type, "' is not supported"))
        .with_hint("use kaiser_best or kaiser_fast");
  return invalid_argument(str_cat("speed perturbation: unknown resample_type '", type, "'"))
      .with_hint("kaiser_best, kaiser_fast");
}

int64_t SpeedResampler::output_length(int64_t n, int old_rate, int new_rate) {
  const double ratio = static_cast<double>(new_rate) / static_cast<double>(old_rate);
  return static_cast<int64_t>(std::ceil(static_cast<double>(n) * ratio));
}

// Taps around input sample n for an output at time n + fraction. The left wing weighs x[n - i] with
// the window at fraction + i, the right wing x[n + 1 + k] at (1 - fraction) + k, both stretched by
// the ratio when the rate goes down; between table entries the window is interpolated linearly.
void SpeedResampler::fill_taps(double fraction, double ratio, int before, int width,
                               float* taps) const {
  const double scale = std::min(1.0, ratio);
  const double level = ratio < 1 ? ratio : 1.0;
  const int steps = table_->steps;
  const int64_t size = static_cast<int64_t>(table_->window.size());
  const int64_t stride = static_cast<int64_t>(scale * steps);
  std::fill_n(taps, width, 0.0f);
  const auto wing = [&](double from, auto&& store) {
    const double index = from * steps;
    const int64_t offset = static_cast<int64_t>(index);
    const double eta = index - static_cast<double>(offset);
    const int64_t count = (size - offset) / stride;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = offset + i * stride;
      const double here = table_->window[at];
      const double next = at + 1 < size ? table_->window[at + 1] : here;
      store(i, static_cast<float>(level * (here + eta * (next - here))));
    }
  };
  const double left = scale * fraction;
  wing(left, [&](int64_t i, float weight) {
    if (i < before) taps[before - 1 - i] = weight;
  });
  wing(scale - left, [&](int64_t i, float weight) {
    if (before + i < width) taps[before + i] = weight;
  });
}

const SpeedResampler::Phases& SpeedResampler::phases_for(int old_rate, int new_rate,
                                                         int num_phases) {
  const auto key = std::make_pair(old_rate, new_rate);
  if (const auto found = phases_.find(key); found != phases_.end()) return found->second;
  if (phases_.size() >= kMaxKeptRates) phases_.clear();
  const double ratio = static_cast<double>(new_rate) / old_rate;
  const int64_t stride = static_cast<int64_t>(std::min(1.0, ratio) * table_->steps);
  Phases phases;
  phases.before = static_cast<int>(static_cast<int64_t>(table_->window.size()) / stride) + 1;
  phases.width = 2 * phases.before;
  phases.taps.resize(static_cast<size_t>(num_phases) * phases.width);
  for (int phase = 0; phase < num_phases; ++phase)
    fill_taps(static_cast<double>(phase) / num_phases, ratio, phases.before, phases.width,
              phases.taps.data() + static_cast<size_t>(phase) * phases.width);
  return phases_.emplace(key, std::move(phases)).first->second;
}

void SpeedResampler::resample(const std::vector<float>& in, int old_rate, int new_rate,
                              std::vector<float>& out) {
  const int64_t n = static_cast<int64_t>(in.size());
  const double ratio = static_cast<double>(new_rate) / old_rate;
  const int64_t computed = static_cast<int64_t>(static_cast<double>(n) * ratio);
  if (computed < 1 || new_rate == old_rate) {
    out = in;
    return;
  }
  out.assign(static_cast<size_t>(output_length(n, old_rate, new_rate)), 0.0f);
  // Output t lies at input time t * old / new, kept as whole and numerator to be exact.
  const int divisor = std::gcd(old_rate, new_rate);
  const int64_t step = old_rate / divisor;
  const int64_t num_phases = new_rate / divisor;
  const bool kept = num_phases <= kMaxKeptPhases;
  const Phases* phases =
      kept ? &phases_for(old_rate, new_rate, static_cast<int>(num_phases)) : nullptr;
  const int64_t stride = static_cast<int64_t>(std::min(1.0, ratio) * table_->steps);
  const int before =
      kept ? phases->before
           : static_cast<int>(static_cast<int64_t>(table_->window.size()) / stride) + 1;
  const int width = 2 * before;
  if (!kept) scratch_.resize(static_cast<size_t>(width));
  for (int64_t t = 0; t < computed; ++t) {
    const int64_t whole = t * step / num_phases;
    const int64_t phase = t * step % num_phases;
    const float* taps;
    if (kept) {
      taps = phases->taps.data() + phase * width;
    } else {
      fill_taps(static_cast<double>(phase) / static_cast<double>(num_phases), ratio, before, width,
                scratch_.data());
      taps = scratch_.data();
    }
    const int64_t first = whole - before + 1;
    const int64_t low = std::max<int64_t>(0, -first);
    const int64_t high = std::min<int64_t>(width, n - first);
    float lanes[8] = {};
    int64_t k = low;
    for (; k + 8 <= high; k += 8)
      for (int lane = 0; lane < 8; ++lane) lanes[lane] += taps[k + lane] * in[first + k + lane];
    for (; k < high; ++k) lanes[0] += taps[k] * in[first + k];
    out[t] = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
             ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
  }
}

}  // namespace aerie::data
