// Per-utterance perturbations (`augmentor`): speed, gain, shift, white_noise, applied in the order
// written, each with its probability. Draws come from one stream per utterance (seed, kPerturb,
// epoch, position), so results do not depend on threads.
//
// Speed changes the length. Not thread-safe: each worker has its own copy.
#pragma once

#include <cstdint>
#include <vector>

#include "aerie/base/philox.h"
#include "aerie/base/status.h"
#include "aerie/data/speech/config/dataset_config.h"
#include "aerie/data/speech/speed_resampler.h"

namespace aerie::data {

// Decisions by name, so that a test can dictate them.
enum class PerturbDraw : uint8_t { kApply, kSpeedRate, kGain, kShift, kNoiseLevel };

class PerturbDraws {
 public:
  virtual ~PerturbDraws() = default;
  virtual double uniform(PerturbDraw what, double low, double high) = 0;
  virtual int64_t below(PerturbDraw what, int64_t n) = 0;
  virtual float normal() = 0;
};

class PhiloxPerturbDraws final : public PerturbDraws {
 public:
  PhiloxPerturbDraws(uint64_t seed, uint32_t epoch, uint64_t position)
      : stream_(seed, Purpose::kPerturb, epoch, position) {}
  double uniform(PerturbDraw, double low, double high) override {
    return stream_.uniform(low, high);
  }
  int64_t below(PerturbDraw, int64_t n) override {
    return static_cast<int64_t>(stream_.below(static_cast<uint64_t>(n)));
  }
  float normal() override { return stream_.normal(); }

 private:
  RandomStream stream_;
};

class Perturber {
 public:
  // Checks names, ranges and probabilities. `sample_rate` is that of the data.
  static Result<Perturber> make(const std::vector<config::PerturbationConfig>& list,
                                int sample_rate);

  bool empty() const { return steps_.empty(); }
  void apply(std::vector<float>& samples, PerturbDraws& draws);
  // No utterance becomes longer than this many times its length.
  double max_length_factor() const;
  double mean_length_factor() const;

 private:
  struct Step {
    config::PerturbationConfig config;
    std::vector<SpeedResampler> resampler;  // one entry for speed, none otherwise
  };
  void speed(const config::SpeedPerturbation& config, SpeedResampler& resampler,
             std::vector<float>& samples, PerturbDraws& draws);

  int sample_rate_ = 0;
  std::vector<Step> steps_;
  std::vector<float> scratch_;
};

// Moves the samples `shift` to the left (positive) or right, filling with zeros.
void shift_samples(float* samples, int64_t length, int64_t shift);

}  // namespace aerie::data
