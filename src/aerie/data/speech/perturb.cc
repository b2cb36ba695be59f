#include "aerie/data/speech/perturb.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace aerie::data {

namespace {

constexpr int64_t kMaxRate = 4'000'000;

Status check_speed(const config::SpeedPerturbation& speed) {
  if (speed.sr <= 0 || speed.sr > 1'000'000)
    return invalid_argument(str_cat("speed perturbation: sr must be positive, got ", speed.sr));
  const double low = std::min(speed.min_speed_rate, speed.max_speed_rate);
  const double high = std::max(speed.min_speed_rate, speed.max_speed_rate);
  // int(sr * rate) must be a sampling rate.
  if (!(low > 0) || static_cast<double>(speed.sr) * low < 1 ||
      !(static_cast<double>(speed.sr) * high <= static_cast<double>(kMaxRate)))
    return invalid_argument(
        str_cat("speed perturbation: rates must be positive and reasonable, "
                "got ",
                speed.min_speed_rate, " and ", speed.max_speed_rate));
  return ok_status();
}

}  // namespace

Result<Perturber> Perturber::make(const std::vector<config::PerturbationConfig>& list,
                                  int sample_rate) {
  Perturber out;
  out.sample_rate_ = sample_rate;
  for (const config::PerturbationConfig& config : list) {
    if (!(config.prob >= 0 && config.prob <= 1))
      return invalid_argument(
          str_cat("augmentor.", config.name, ": prob must be between 0 and 1, got ", config.prob));
    Step step{config, {}};
    if (const auto* speed = std::get_if<config::SpeedPerturbation>(&config.params)) {
      AERIE_RETURN_IF_ERROR(check_speed(*speed));
      AERIE_ASSIGN_OR_RETURN(SpeedResampler resampler, SpeedResampler::make(speed->resample_type));
      step.resampler.push_back(std::move(resampler));
    } else if (const auto* noise = std::get_if<config::WhiteNoisePerturbation>(&config.params)) {
      if (noise->min_level >= noise->max_level)
        return invalid_argument(
            str_cat("white_noise perturbation: min_level must be below "
                    "max_level, got ",
                    noise->min_level, " and ", noise->max_level));
    }
    out.steps_.push_back(std::move(step));
  }
  return out;
}

double Perturber::max_length_factor() const {
  double factor = 1.0;
  for (const Step& step : steps_)
    if (const auto* speed = std::get_if<config::SpeedPerturbation>(&step.config.params))
      factor *= std::max({1.0, speed->min_speed_rate, speed->max_speed_rate});
  return factor;
}

double Perturber::mean_length_factor() const {
  double factor = 1.0;
  for (const Step& step : steps_)
    if (const auto* speed = std::get_if<config::SpeedPerturbation>(&step.config.params)) {
      const double mean = speed->num_rates == 1
                              ? speed->min_speed_rate
                              : (speed->min_speed_rate + speed->max_speed_rate) / 2;
      factor *= 1.0 + step.config.prob * (mean - 1.0);
    }
  return factor;
}

void Perturber::speed(const config::SpeedPerturbation& config, SpeedResampler& resampler,
                      std::vector<float>& samples, PerturbDraws& draws) {
  double rate;
  if (config.num_rates > 0) {
    // The k-th of num_rates equally spaced rates, both ends included.
    const int64_t k = draws.below(PerturbDraw::kSpeedRate, config.num_rates);
    const double step = config.num_rates == 1 ? 0.0
                                              : (config.max_speed_rate - config.min_speed_rate) /
                                                    static_cast<double>(config.num_rates - 1);
    rate = config.num_rates > 1 && k == config.num_rates - 1
               ? config.max_speed_rate
               : config.min_speed_rate + static_cast<double>(k) * step;
  } else {
    rate = draws.uniform(PerturbDraw::kSpeedRate, config.min_speed_rate, config.max_speed_rate);
  }
  if (rate == 1.0) return;
  const int old_rate = static_cast<int>(config.sr);
  const int new_rate = std::max(1, static_cast<int>(static_cast<double>(config.sr) * rate));
  resampler.resample(samples, old_rate, new_rate, scratch_);
  samples.swap(scratch_);
}

void shift_samples(float* samples, int64_t length, int64_t shift) {
  const int64_t distance = std::min(std::abs(shift), length);
  const size_t kept = static_cast<size_t>(length - distance);
  if (shift < 0) {
    std::memmove(samples + distance, samples, kept * sizeof(float));
    std::fill_n(samples, distance, 0.0f);
  } else if (shift > 0) {
    std::memmove(samples, samples + distance, kept * sizeof(float));
    std::fill_n(samples + kept, distance, 0.0f);
  }
}

void Perturber::apply(std::vector<float>& samples, PerturbDraws& draws) {
  for (Step& step : steps_) {
    if (!(draws.uniform(PerturbDraw::kApply, 0, 1) < step.config.prob)) continue;
    if (const auto* config = std::get_if<config::SpeedPerturbation>(&step.config.params)) {
      speed(*config, step.resampler[0], samples, draws);
    } else if (const auto* gain = std::get_if<config::GainPerturbation>(&step.config.params)) {
      const double db = draws.uniform(PerturbDraw::kGain, gain->min_gain_dbfs, gain->max_gain_dbfs);
      const float factor = static_cast<float>(std::pow(10.0, db / 20.0));
      for (float& sample : samples) sample *= factor;
    } else if (const auto* shift = std::get_if<config::ShiftPerturbation>(&step.config.params)) {
      const double ms =
          draws.uniform(PerturbDraw::kShift, shift->min_shift_ms, shift->max_shift_ms);
      const double duration_s = static_cast<double>(samples.size()) / sample_rate_;
      if (std::abs(ms) / 1000 > duration_s) continue;
      shift_samples(samples.data(), static_cast<int64_t>(samples.size()),
                    static_cast<int64_t>(std::floor(ms * sample_rate_ / 1000)));
    } else if (const auto* noise =
                   std::get_if<config::WhiteNoisePerturbation>(&step.config.params)) {
      const int64_t level = noise->min_level + draws.below(PerturbDraw::kNoiseLevel,
                                                           noise->max_level - noise->min_level);
      const double amplitude = std::pow(10.0, static_cast<double>(level) / 20.0);
      for (float& sample : samples)
        sample = static_cast<float>(sample + amplitude * static_cast<double>(draws.normal()));
    }
  }
}

}  // namespace aerie::data
