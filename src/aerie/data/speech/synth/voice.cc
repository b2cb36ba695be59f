#include "aerie/data/speech/synth/voice.h"

#include <algorithm>
#include <cmath>

#include "aerie/base/philox.h"
#include "aerie/data/speech/synth/streams.h"

namespace aerie::data::synth {

Voice make_voice(uint64_t seed, uint64_t index) {
  RandomStream random(seed, Purpose::kSynth, kVoiceStream, index);
  const auto normal = [&](double mean, double deviation) {
    return mean + deviation * std::clamp<double>(random.normal(), -2.5, 2.5);
  };
  Voice voice{};
  // Low and high voices alternate, so that a corpus of a few voices has both.
  const bool high = index % 2 == 1;
  voice.pitch_hz = high ? random.uniform(165.0, 255.0) : random.uniform(85.0, 150.0);
  voice.pitch_range = random.uniform(0.05, 0.25);
  voice.tract_scale = high ? random.uniform(1.03, 1.17) : random.uniform(0.90, 1.04);
  voice.rate = random.uniform(0.78, 1.10);
  voice.rate_spread = random.uniform(0.10, 0.20);
  voice.breathiness = random.uniform(0.01, 0.08);
  voice.open_quotient = random.uniform(0.45, 0.75);
  voice.tilt_hz = random.uniform(2200.0, 5000.0);
  voice.jitter = random.uniform(0.003, 0.015);
  voice.shimmer = random.uniform(0.02, 0.08);
  voice.articulation_ms = random.uniform(40.0, 65.0);
  voice.fricative_scale = std::exp(normal(0.0, 0.05)) * std::sqrt(voice.tract_scale);
  voice.pause_chance = random.uniform(0.06, 0.20);
  for (int p = 0; p < kNumPhonemes; ++p) {
    voice.f1_accent[static_cast<size_t>(p)] = std::exp(normal(0.0, 0.025));
    voice.f2_accent[static_cast<size_t>(p)] = std::exp(normal(0.0, 0.02));
  }
  voice.reverb_level = random.uniform(0.02, 0.16);
  voice.reverb_time_s = random.uniform(0.10, 0.40);
  return voice;
}

}  // namespace aerie::data::synth
